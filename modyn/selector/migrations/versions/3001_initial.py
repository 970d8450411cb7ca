"""Tables of runs and triggers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3001"
down_revision = None


def upgrade() -> None:
    """Tables `runs` and `triggers`."""
    op.create_table(
        "runs",
        sa.Column("number", sa.Integer, sa.Identity(), primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False, unique=True),
        sa.Column("dataset", sa.Text, nullable=False),
        sa.Column("selection_strategy", sa.JSON, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("data", sa.JSON),
        sa.Column("num_rows", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("deleting", sa.Boolean, nullable=False, server_default="false"),
        schema="selector",
    )
    op.create_table(
        "triggers",
        sa.Column("run_number", sa.Integer, sa.ForeignKey("selector.runs.number", ondelete="CASCADE"), primary_key=True),
        sa.Column("trigger_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("num_samples", sa.BigInteger, nullable=False),
        sa.Column("num_keys", sa.BigInteger, nullable=False),
        sa.Column("partition_size", sa.BigInteger, nullable=False),
        sa.Column("keys_checksum", sa.Text, nullable=False),
        sa.Column("policy_state", sa.JSON, nullable=False),
        schema="selector",
    )
