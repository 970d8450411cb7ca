"""The number of deleted samples that a trigger set heeds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3002"
down_revision = "3001"


def upgrade() -> None:
    """Add the column; sets of before heeded no deletion."""
    num_deleted = sa.Column("num_deleted", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("triggers", num_deleted, schema="selector")
