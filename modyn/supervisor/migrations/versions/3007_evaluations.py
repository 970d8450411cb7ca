"""Evaluations that users ask for are a queue of their own; a run can be asked to finish."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from modyn.db.engine import columns

revision = "3007"
down_revision = "3006"


def upgrade() -> None:
    """A table of requested evaluations in place of the column that a finished run had for them."""
    op.create_table(
        "evaluations",
        sa.Column("run_id", sa.Text, sa.ForeignKey("supervisor.runs.run_id"), primary_key=True),
        *columns(sa.BigInteger, "number", primary_key=True),
        *columns(sa.Text, "state error error_reason", nullable=False),
        *columns(JSONB, "handlers", nullable=False),
        *columns(JSONB(none_as_null=True), "section"),
        *columns(sa.Float, "submitted_at", nullable=False),
        *columns(sa.Float, "finished_at"),
        *columns(sa.BigInteger, "after_seq", nullable=False),
        schema="supervisor",
    )
    op.drop_column("runs", "manual_handlers", schema="supervisor")
    op.add_column(
        "runs", sa.Column("finish_requested", sa.Boolean, nullable=False, server_default=sa.false()), schema="supervisor"
    )
