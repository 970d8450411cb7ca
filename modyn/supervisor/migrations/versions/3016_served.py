"""Which versions of a run answered requests, and how fast."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "3016"
down_revision = "3015"


def upgrade() -> None:
    """Add `served`."""
    op.create_table(
        "served",
        sa.Column("run_id", sa.Text, primary_key=True),
        *(sa.Column(name, sa.BigInteger, primary_key=True) for name in ("start", "width", "model_id")),
        sa.Column("role", sa.Text, primary_key=True),
        *(sa.Column(name, sa.Float, nullable=False) for name in ("first_at", "last_at")),
        sa.Column("latencies", JSONB, nullable=False),
        schema="supervisor",
    )
