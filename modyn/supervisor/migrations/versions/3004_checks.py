"""Checks of trigger policies that looked at data, and the newest position that was decided on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from modyn.db.engine import columns

revision = "3004"
down_revision = "3002"


def upgrade() -> None:
    """Create `checks`, and note in `cursors` where the policy decided last."""
    op.create_table(
        "checks",
        sa.Column("run_id", sa.Text, sa.ForeignKey("supervisor.runs.run_id"), primary_key=True),
        *columns(sa.BigInteger, "position", primary_key=True),
        *columns(sa.Boolean, "fires", nullable=False),
        *columns(JSONB, "evidence", nullable=False),
        *columns(sa.Float, "seconds", nullable=False),
        schema="supervisor",
    )
    op.add_column("cursors", sa.Column("last_check", sa.BigInteger), schema="supervisor")
    # Until now every check fired, and the samples since the last trigger were counted.
    op.execute("UPDATE supervisor.cursors SET last_check = position - num_pending")
    op.alter_column("cursors", "last_check", nullable=False, schema="supervisor")
