"""The stream time of a check."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3012"
down_revision = "3011"


def upgrade() -> None:
    """Add `timestamp` to `checks`; it is not known of checks until now."""
    op.add_column("checks", sa.Column("timestamp", sa.BigInteger), schema="supervisor")
