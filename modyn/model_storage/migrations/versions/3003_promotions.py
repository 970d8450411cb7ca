"""The audit trail of promotions and rollbacks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3003"
down_revision = "3002"


def upgrade() -> None:
    """Table `promotions`."""
    op.create_table(
        "promotions",
        sa.Column("promotion_id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("model_id", sa.BigInteger, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("before_id", sa.BigInteger),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("made_by", sa.Text, nullable=False),
        sa.Column("made_at", sa.Double, nullable=False),
        schema="model_storage",
    )
    op.create_index("promotions_of_a_run", "promotions", ["run_id", "promotion_id"], schema="model_storage")
