"""Tables of the evaluator in its own schema."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, DateTime, Double, ForeignKey, MetaData, Table, Text, func

metadata = MetaData(schema="evaluator")

evaluations = Table(
    "evaluations",
    metadata,
    Column("evaluation_id", Text, primary_key=True),
    Column("run_id", Text, nullable=False, index=True),
    Column("trigger_id", BigInteger, nullable=False),
    Column("model_id", BigInteger, nullable=False),
    Column("handler", Text, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("state", Text, nullable=False),  # queued until it has ended
    Column("samples_seen", BigInteger, nullable=False),
    Column("samples_total", BigInteger, nullable=False),
    Column("error", Text, nullable=False),
    Column("error_reason", Text, nullable=False),
    Column("changed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

results = Table(
    "results",
    metadata,
    Column("evaluation_id", Text, ForeignKey("evaluator.evaluations.evaluation_id", ondelete="CASCADE"), primary_key=True),
    Column("interval_start", BigInteger, primary_key=True),
    Column("interval_end", BigInteger, primary_key=True),
    Column("interval_anchor", BigInteger, primary_key=True),
    Column("metric", Text, primary_key=True),
    Column("model_id", BigInteger, nullable=False),
    Column("dataset_digest", Text, nullable=False),  # of how samples are decoded
    Column("metric_digest", Text, nullable=False),  # of the metric's options
    Column("value", Double),
    Column("note", Text, nullable=False),
    Column("num_samples", BigInteger, nullable=False),
    Column("num_listed", BigInteger, nullable=False),  # samples in the interval when it was evaluated
)
