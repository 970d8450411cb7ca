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
    # That section of the pipeline, if the run was registered with it.
    Column("data", JSON),
    # Samples copied into the run's own table, if its strategy asks for one; committed together with the rows.
    Column("num_rows", BigInteger, nullable=False, server_default="0"),
    # Set before files are removed, so that a deletion that a crash cut off is finished at the next start.
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
    """Name of the table with a run's samples. It is written by COPY, which SQLAlchemy does not offer, so it is no Table here."""
    return f"samples_{run_number}"
