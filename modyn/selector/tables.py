"""Tables of the selector in its own schema: runs, their triggers, and the samples of runs that keep them in PostgreSQL."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, ForeignKey, Identity, Integer, MetaData, Table, Text

SCHEMA = "selector"
metadata = MetaData(schema=SCHEMA)

RUNS = Table(
    "runs",
    metadata,
    Column("number", Integer, Identity(), primary_key=True),
    Column("run_id", Text, nullable=False, unique=True),
    Column("dataset", Text, nullable=False),
    Column("selection_strategy", JSON, nullable=False),
    Column("seed", BigInteger, nullable=False),
    # The section of that name; unknown for runs of older releases.
    Column("data", JSON),
    # Of its samples, copied into its table where the strategy asks for one. Committed together with the rows.
    Column("num_rows", BigInteger, nullable=False, server_default="0"),
    # Set before files are removed, so that a crash in between is noticed and finished.
    Column("deleting", Boolean, nullable=False, server_default="false"),
)

TRIGGERS = Table(
    "triggers",
    metadata,
    Column("run_number", Integer, ForeignKey(RUNS.c.number, ondelete="CASCADE"), primary_key=True),
    Column("trigger_id", BigInteger, primary_key=True, autoincrement=False),
    Column("num_samples", BigInteger, nullable=False),
    Column("num_keys", BigInteger, nullable=False),
    Column("partition_size", BigInteger, nullable=False),
    Column("keys_checksum", Text, nullable=False),
    Column("policy_state", JSON, nullable=False),
)


def samples_table(run_number: int) -> str:
    """Samples of a run in PostgreSQL; written by COPY, which SQLAlchemy does not know, so it is not a Table here."""
    return f"samples_{run_number}"
