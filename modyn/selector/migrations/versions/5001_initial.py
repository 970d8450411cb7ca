"""Runs and their triggers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from modyn.db.engine import columns

revision = "5001"
down_revision = None


def upgrade() -> None:
    """Create the tables `runs` and `triggers`."""
    op.create_table(
        "runs",
        sa.Column("number", sa.Integer, sa.Identity(), primary_key=True),
        *columns(sa.Text, "run_id", nullable=False, unique=True),
        *columns(sa.Text, "dataset", nullable=False),
        *columns(sa.Text, "dataset_identity", nullable=False, server_default=""),
        *columns(sa.JSON, "selection_strategy", nullable=False),
        *columns(sa.JSON, "data online"),
        *columns(sa.BigInteger, "seed", nullable=False),
        *columns(sa.BigInteger, "num_rows", nullable=False, server_default="0"),
        *columns(sa.Boolean, "deleting", nullable=False, server_default="false"),
        schema="selector",
    )
    op.create_table(
        "triggers",
        sa.Column("run_number", sa.Integer, sa.ForeignKey("selector.runs.number", ondelete="CASCADE"), primary_key=True),
        *columns(sa.BigInteger, "trigger_id", primary_key=True, autoincrement=False),
        *columns(sa.BigInteger, "num_samples num_keys partition_size", nullable=False),
        # The number of deleted samples that the trigger set leaves out.
        *columns(sa.BigInteger, "num_deleted", nullable=False, server_default="0"),
        *columns(sa.Text, "keys_checksum", nullable=False),
        *columns(sa.JSON, "policy_state", nullable=False),
        *columns(sa.JSON, "state_files", nullable=False, server_default="{}"),
        # Null until the first request for the summary.
        *columns(sa.JSON, "summary"),
        *columns(sa.Boolean, "online", nullable=False, server_default="false"),
        schema="selector",
    )
