"""Runs, their cursors, triggers, checks, steps, evaluations on request, events, and the versions that served."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from modyn.db.engine import columns

revision = "5001"
down_revision = None


def upgrade() -> None:
    """Create the tables and the sequence of run numbers; the comments on the columns are in `journal/tables.py`."""
    op.execute("CREATE SEQUENCE supervisor.run_numbers")
    _create(
        "runs",
        *columns(sa.Text, "run_id", primary_key=True),
        *columns(sa.BigInteger, "number", nullable=False, unique=True),
        *columns(sa.Text, "pipeline_name mode state yaml file_name", nullable=False),
        *columns(sa.Text, "error error_reason message dataset_identity", nullable=False, server_default=""),
        *columns(sa.Text, "submission_id", unique=True),
        *columns(JSONB, "pipeline", nullable=False),
        *columns(JSONB, "tags", nullable=False, server_default="[]"),
        *columns(JSONB, "evaluation_identities", nullable=False, server_default="{}"),
        *columns(sa.BigInteger, "from_timestamp to_timestamp max_triggers total_samples end_key end_label"),
        *columns(sa.BigInteger, "selection_seed", nullable=False),
        *columns(sa.Float, "submitted_at", nullable=False),
        *columns(sa.Float, "finished_at"),
        *columns(sa.BigInteger, "attempt last_seq", nullable=False, server_default="0"),
        *columns(sa.Boolean, "final_trigger finish_requested removing", nullable=False, server_default=sa.false()),
    )
    _create("pipelines", *columns(sa.Text, "slug", primary_key=True), *columns(sa.BigInteger, "num_runs", nullable=False))
    _create(
        "cursors",
        _run_id(),
        *columns(sa.Integer, "version", nullable=False),
        *columns(sa.BigInteger, "position num_pending num_triggers last_check", nullable=False),
        *columns(sa.BigInteger, "num_waiting next_label", nullable=False, server_default="0"),
        *columns(sa.BigInteger, "last_timestamp last_key max_timestamp first_pending last_pending first_waiting"),
        *columns(JSONB, "policy_state", nullable=False),
        *columns(sa.Boolean, "stream_ended", nullable=False),
    )
    _create(
        "triggers",
        _run_id(),
        *columns(sa.BigInteger, "trigger_id", primary_key=True),
        *columns(sa.BigInteger, "position first_timestamp last_timestamp fired_at_timestamp", nullable=False),
        *columns(sa.BigInteger, "num_waiting", nullable=False, server_default="0"),
        *columns(sa.Text, "state", nullable=False),
        *columns(sa.Float, "started_at", nullable=False),
        *columns(sa.Float, "finished_at downsampling_score"),
        *columns(sa.BigInteger, "num_keys model_id parent_model_id downsampling_turn"),
        *columns(sa.Text, "keys_checksum weights_sha256"),
        *columns(JSONB, "training_result", nullable=False, server_default="{}"),
        *columns(sa.Boolean, "online", nullable=False, server_default=sa.false()),
    )
    _create(
        "checks",
        _run_id(),
        *columns(sa.BigInteger, "position", primary_key=True),
        *columns(sa.Boolean, "online", primary_key=True, server_default=sa.false()),
        *columns(sa.Boolean, "fires", nullable=False),
        *columns(JSONB, "evidence", nullable=False),
        *columns(JSONB, "memory", nullable=False, server_default="{}"),
        *columns(sa.Float, "seconds", nullable=False),
        *columns(sa.BigInteger, "timestamp"),
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
        "evaluations",
        _run_id(),
        *columns(sa.BigInteger, "number", primary_key=True),
        *columns(sa.Text, "state error error_reason", nullable=False),
        *columns(JSONB, "handlers", nullable=False),
        *columns(JSONB(none_as_null=True), "section"),
        *columns(sa.Float, "submitted_at", nullable=False),
        *columns(sa.Float, "finished_at"),
        *columns(sa.BigInteger, "after_seq", nullable=False),
    )
    _create(
        "served",
        *columns(sa.Text, "run_id", primary_key=True),
        *columns(sa.BigInteger, "start width model_id", primary_key=True),
        *columns(sa.Text, "role", primary_key=True),
        *columns(sa.Float, "first_at last_at", nullable=False),
        *columns(JSONB, "latencies", nullable=False),
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


def _create(name: str, *table: sa.Column[Any]) -> None:
    op.create_table(name, *table, schema="supervisor")


def _run_id() -> sa.Column[str]:
    return sa.Column("run_id", sa.Text, sa.ForeignKey("supervisor.runs.run_id"), primary_key=True)
