"""Verdicts of evaluations that decide about promotions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3004"
down_revision = "3003"


def upgrade() -> None:
    """Column `promotions.verdicts`."""
    column = sa.Column("verdicts", sa.JSON, nullable=False, server_default="[]")
    op.add_column("promotions", column, schema="model_storage")
