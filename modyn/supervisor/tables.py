"""The supervisor's tables. A trigger's evaluations are steps, named `<handler>/<dataset>/<when they became due>`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, MetaData, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

METADATA = MetaData(schema="supervisor")

RUNS = Table(
    "runs",
    METADATA,
    Column("run_id", Text, primary_key=True),
    Column("number", BigInteger),
    Column("pipeline_name", Text),
    Column("mode", Text),
    Column("state", Text),
    Column("error", Text),
    Column("error_reason", Text),
    Column("message", Text),
    Column("yaml", Text),
    Column("file_name", Text),
    Column("pipeline", JSONB),
    Column("from_timestamp", BigInteger),
    Column("to_timestamp", BigInteger),
    Column("max_triggers", BigInteger),
    Column("total_samples", BigInteger),
    # What selection draws from: training.seed, or a number drawn at submission, which a resumed run needs again.
    Column("selection_seed", BigInteger),
    # Set while a finished run is evaluated once more: names of handlers.
    Column("manual_handlers", JSONB(none_as_null=True)),
    Column("submitted_at", Float),
    Column("finished_at", Float),
    # Number of the newest attempt to execute the run. Writes of earlier attempts are refused.
    Column("attempt", BigInteger),
    Column("last_seq", BigInteger),
)

CURSORS = Table(
    "cursors",
    METADATA,
    Column("run_id", Text, primary_key=True),
    Column("version", Integer),
    Column("position", BigInteger),
    Column("last_timestamp", BigInteger),
    Column("last_key", BigInteger),
    Column("max_timestamp", BigInteger),
    # The samples since the last trigger: how many, and the range of their timestamps.
    Column("num_pending", BigInteger),
    Column("first_pending", BigInteger),
    Column("last_pending", BigInteger),
    Column("num_triggers", BigInteger),
    Column("policy_state", JSONB),
    Column("stream_ended", Boolean),
)

TRIGGERS = Table(
    "triggers",
    METADATA,
    Column("run_id", Text, primary_key=True),
    Column("trigger_id", BigInteger, primary_key=True),
    Column("position", BigInteger),
    Column("first_timestamp", BigInteger),
    Column("last_timestamp", BigInteger),
    Column("fired_at_timestamp", BigInteger),
    Column("state", Text),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("num_keys", BigInteger),
    Column("keys_checksum", Text),
    Column("model_id", BigInteger),
    Column("parent_model_id", BigInteger),
    Column("weights_sha256", Text),
    Column("training_result", JSONB),
)

STEPS = Table(
    "steps",
    METADATA,
    Column("run_id", Text, primary_key=True),
    Column("trigger_id", BigInteger, primary_key=True),
    Column("step", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("state", Text),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("detail", JSONB),
)

EVENTS = Table(
    "events",
    METADATA,
    Column("run_id", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("time", Float),
    Column("kind", Text),
    Column("trigger_id", BigInteger),
    Column("detail", JSONB),
)
