"""Ids that clients give their submissions, so that one may be repeated. No run that is there has one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3010"
down_revision = "3009"


def upgrade() -> None:
    """Add the column, and its index."""
    op.add_column("runs", sa.Column("submission_id", sa.Text, unique=True), schema="supervisor")
