"""Runs, where they stand in their streams, their triggers, steps and events."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from modyn.db.engine import columns

revision = "3001"
down_revision = None


def upgrade() -> None:
    """Tables of runs, cursors, triggers, steps and events."""
    _create(
        "runs",
        *columns(sa.Text, "run_id", primary_key=True),
        *columns(sa.BigInteger, "number", nullable=False, unique=True),
        *columns(sa.Text, "pipeline_name mode state yaml file_name", nullable=False),
        *columns(sa.Text, "error error_reason message", nullable=False, server_default=""),
        *columns(JSONB, "pipeline", nullable=False),
        *columns(sa.BigInteger, "from_timestamp to_timestamp max_triggers total_samples"),
        *columns(sa.BigInteger, "selection_seed", nullable=False),
        *columns(JSONB(none_as_null=True), "manual_handlers"),
        *columns(sa.Float, "submitted_at", nullable=False),
        *columns(sa.Float, "finished_at"),
        *columns(sa.BigInteger, "attempt last_seq", nullable=False, server_default="0"),
    )
    _create(
        "cursors",
        _run_id(),
        *columns(sa.Integer, "version", nullable=False),
        *columns(sa.BigInteger, "position num_pending num_triggers", nullable=False),
        *columns(sa.BigInteger, "last_timestamp last_key max_timestamp first_pending last_pending"),
        *columns(JSONB, "policy_state", nullable=False),
        *columns(sa.Boolean, "stream_ended", nullable=False),
    )
    _create(
        "triggers",
        _run_id(),
        *columns(sa.BigInteger, "trigger_id", primary_key=True),
        *columns(sa.BigInteger, "position first_timestamp last_timestamp fired_at_timestamp", nullable=False),
        *columns(sa.Text, "state", nullable=False),
        *columns(sa.Float, "started_at", nullable=False),
        *columns(sa.Float, "finished_at"),
        *columns(sa.BigInteger, "num_keys model_id parent_model_id"),
        *columns(sa.Text, "keys_checksum weights_sha256"),
        *columns(JSONB, "training_result", nullable=False, server_default="{}"),
    )
    _create(
        "steps",
        _run_id(),
        *columns(sa.BigInteger, "trigger_id", primary_key=True),
        *columns(sa.Text, "step name", primary_key=True),
        *columns(sa.Text, "state", nullable=False),
        *columns(sa.Float, "started_at", nullable=False),
        *columns(sa.Float, "finished_at"),
        *columns(JSONB, "detail", nullable=False, server_default="{}"),
    )
    _create(
        "events",
        _run_id(),
        *columns(sa.BigInteger, "seq", primary_key=True),
        *columns(sa.Float, "time", nullable=False),
        *columns(sa.Text, "kind", nullable=False),
        *columns(sa.BigInteger, "trigger_id"),
        *columns(JSONB, "detail", nullable=False),
    )


def _create(name: str, *of_table: sa.Column[Any]) -> None:
    op.create_table(name, *of_table, schema="supervisor")


def _run_id() -> sa.Column[str]:
    return sa.Column("run_id", sa.Text, sa.ForeignKey("supervisor.runs.run_id"), primary_key=True)
