"""Runs, where they stand in their streams, their triggers, steps and events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "2001"
down_revision = None

SCHEMA = "supervisor"


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False, unique=True),
        sa.Column("pipeline_name", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("error", sa.Text, nullable=False, server_default=""),
        sa.Column("error_reason", sa.Text, nullable=False, server_default=""),
        sa.Column("message", sa.Text, nullable=False, server_default=""),
        sa.Column("yaml", sa.Text, nullable=False),
        sa.Column("file_name", sa.Text, nullable=False),
        sa.Column("pipeline", JSONB, nullable=False),
        sa.Column("from_timestamp", sa.BigInteger),
        sa.Column("to_timestamp", sa.BigInteger),
        sa.Column("max_triggers", sa.BigInteger),
        sa.Column("total_samples", sa.BigInteger),
        sa.Column("selection_seed", sa.BigInteger, nullable=False),
        sa.Column("manual_handlers", JSONB(none_as_null=True)),
        sa.Column("submitted_at", sa.Float, nullable=False),
        sa.Column("finished_at", sa.Float),
        sa.Column("attempt", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("last_seq", sa.BigInteger, nullable=False, server_default="0"),
        schema=SCHEMA,
    )
    op.create_table(
        "cursors",
        _run_id(),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("last_timestamp", sa.BigInteger),
        sa.Column("last_key", sa.BigInteger),
        sa.Column("max_timestamp", sa.BigInteger),
        sa.Column("num_pending", sa.BigInteger, nullable=False),
        sa.Column("first_pending", sa.BigInteger),
        sa.Column("last_pending", sa.BigInteger),
        sa.Column("num_triggers", sa.BigInteger, nullable=False),
        sa.Column("policy_state", JSONB, nullable=False),
        sa.Column("stream_ended", sa.Boolean, nullable=False),
        schema=SCHEMA,
    )
    op.create_table(
        "triggers",
        _run_id(),
        sa.Column("trigger_id", sa.BigInteger, primary_key=True),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("first_timestamp", sa.BigInteger, nullable=False),
        sa.Column("last_timestamp", sa.BigInteger, nullable=False),
        sa.Column("fired_at_timestamp", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("finished_at", sa.Float),
        sa.Column("num_keys", sa.BigInteger),
        sa.Column("keys_checksum", sa.Text),
        sa.Column("model_id", sa.BigInteger),
        sa.Column("parent_model_id", sa.BigInteger),
        sa.Column("weights_sha256", sa.Text),
        sa.Column("training_result", JSONB, nullable=False, server_default="{}"),
        schema=SCHEMA,
    )
    op.create_table(
        "steps",
        _run_id(),
        sa.Column("trigger_id", sa.BigInteger, primary_key=True),
        sa.Column("step", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("finished_at", sa.Float),
        sa.Column("detail", JSONB, nullable=False, server_default="{}"),
        schema=SCHEMA,
    )
    op.create_table(
        "events",
        _run_id(),
        sa.Column("seq", sa.BigInteger, primary_key=True),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("trigger_id", sa.BigInteger),
        sa.Column("detail", JSONB, nullable=False),
        schema=SCHEMA,
    )


def _run_id() -> sa.Column[str]:
    return sa.Column("run_id", sa.Text, sa.ForeignKey(f"{SCHEMA}.runs.run_id"), primary_key=True)
