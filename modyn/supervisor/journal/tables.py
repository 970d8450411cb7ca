"""The supervisor's tables. A trigger's evaluations are steps, named `<handler>/<dataset>/<when they became due>`."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, MetaData, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from modyn.db.engine import columns

METADATA = MetaData(schema="supervisor")

RUNS = Table(
    "runs",
    METADATA,
    *columns(Text, "run_id", primary_key=True),
    *columns(Text, "pipeline_name mode state error error_reason message yaml file_name dataset_identity"),
    *columns(BigInteger, "number from_timestamp to_timestamp max_triggers total_samples end_key end_label last_seq"),
    *columns(Float, "submitted_at finished_at"),
    *columns(Boolean, "final_trigger"),
    Column("pipeline", JSONB),
    # Seed of the selection: training.seed, or a number drawn at submission, which a resumed run needs again.
    Column("selection_seed", BigInteger),
    # Whether the user asked the run by `modyn finish` to end its stream and to make its final evaluations.
    Column("finish_requested", Boolean),
    # Whether `modyn rm` has begun to remove the run; the column `state` stays the same.
    Column("removing", Boolean),
    Column("tags", JSONB),
    Column("evaluation_identities", JSONB),
    # Id of the submission, made by its client: unique.
    Column("submission_id", Text, unique=True),
    # Number of the newest attempt to execute the run; the acceptance of the run is the first attempt. Writes of earlier attempts are refused.
    Column("attempt", BigInteger),
)

PIPELINES = Table(
    "pipelines",
    METADATA,
    # Start of the ids of the pipeline's runs.
    *columns(Text, "slug", primary_key=True),
    # Number of all runs that the pipeline ever had; this is the number of the newest run.
    *columns(BigInteger, "num_runs"),
)

CURSORS = Table(
    "cursors",
    METADATA,
    *columns(Text, "run_id", primary_key=True),
    *columns(Integer, "version"),
    *columns(BigInteger, "position last_timestamp last_key max_timestamp num_triggers last_check"),
    # Number of pending samples, and smallest and largest timestamp of these samples.
    *columns(BigInteger, "num_pending first_pending last_pending"),
    # See the fields of `Cursor` with the same names.
    *columns(BigInteger, "num_waiting first_waiting next_label"),
    *columns(JSONB, "policy_state"),
    *columns(Boolean, "stream_ended"),
)

TRIGGERS = Table(
    "triggers",
    METADATA,
    *columns(Text, "run_id", primary_key=True),
    *columns(BigInteger, "trigger_id", primary_key=True),
    *columns(
        BigInteger, "position first_timestamp last_timestamp fired_at_timestamp num_keys model_id parent_model_id num_waiting"
    ),
    *columns(Text, "state keys_checksum weights_sha256"),
    *columns(Float, "started_at finished_at"),
    *columns(JSONB, "training_result"),
    # If a score decides: the position of the chosen policy in `downsampling_list`, and the score.
    *columns(BigInteger, "downsampling_turn"),
    *columns(Float, "downsampling_score"),
    # Whether the trigger consists of online steps.
    *columns(Boolean, "online"),
)

CHECKS = Table(
    "checks",
    METADATA,
    *columns(Text, "run_id", primary_key=True),
    *columns(BigInteger, "position", primary_key=True),
    # Whether `online.trigger` made the check.
    *columns(Boolean, "online", primary_key=True),
    *columns(Boolean, "fires"),
    *columns(JSONB, "evidence"),
    *columns(Float, "seconds"),
    *columns(JSONB, "memory"),
    # The largest timestamp before the position.
    *columns(BigInteger, "timestamp"),
)

STEPS = Table(
    "steps",
    METADATA,
    *columns(Text, "run_id", primary_key=True),
    *columns(BigInteger, "trigger_id", primary_key=True),
    *columns(Text, "step name", primary_key=True),
    *columns(Text, "state"),
    *columns(Float, "started_at finished_at"),
    *columns(JSONB, "detail"),
)

EVALUATIONS = Table(
    "evaluations",
    METADATA,
    *columns(Text, "run_id", primary_key=True),
    *columns(BigInteger, "number", primary_key=True),
    *columns(Text, "state error error_reason"),
    *columns(JSONB, "handlers"),
    # The `evaluation` section that replaces the run's own section.
    Column("section", JSONB(none_as_null=True)),
    *columns(Float, "submitted_at finished_at"),
    # The run's newest event at submission: watchers start after this event.
    *columns(BigInteger, "after_seq"),
)

SERVED = Table(
    "served",
    METADATA,
    *columns(Text, "run_id", primary_key=True),
    *columns(BigInteger, "start width model_id", primary_key=True),
    *columns(Text, "role", primary_key=True),
    *columns(Float, "first_at last_at"),
    *columns(JSONB, "latencies"),
)

EVENTS = Table(
    "events",
    METADATA,
    *columns(Text, "run_id", primary_key=True),
    *columns(BigInteger, "seq", primary_key=True),
    *columns(Float, "time"),
    *columns(Text, "kind"),
    *columns(BigInteger, "trigger_id"),
    *columns(JSONB, "detail"),
)
