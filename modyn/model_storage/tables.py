"""The catalogue of models. A version is visible when its row is committed. The file of the version is in the folder `models` before the row is
committed.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, ForeignKey, Index, MetaData, Table, Text, text

metadata = MetaData(schema="model_storage")

models = Table(
    "models",
    metadata,
    Column("model_id", BigInteger, primary_key=True),
    Column("run_id", Text, nullable=False),  # empty: imported
    Column("trigger_id", BigInteger, nullable=False),
    Column("parent_id", BigInteger),  # lineage only: the parent may be deleted
    Column("model_class", Text, nullable=False),
    Column("model_config", JSON, nullable=False),
    Column("model_definition", Text, nullable=False),  # empty: none is needed
    Column("training_result", JSON, nullable=False),
    Column("section", JSON, nullable=False),  # ModelStorageSection
    Column("strategy", Text, nullable=False),  # name of the strategy by which the version is stored
    Column(
        "base_id", BigInteger, ForeignKey("model_storage.models.model_id")
    ),  # the file is a difference to this version; null: it is whole
    Column("layout", JSON, nullable=False),  # [[name, dtype, shape], …]
    Column("file_name", Text, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),  # of the file
    Column("unpacked_bytes", BigInteger, nullable=False),  # of the file before compression
    Column("encode_s", Double, nullable=False),
    Column("full_bytes", BigInteger, nullable=False),  # as num_bytes and encode_s, if the version was stored whole
    Column("full_encode_s", Double, nullable=False),
    Column("weights_sha256", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("promoted", Boolean, nullable=False),
    Column("optimizers_bytes", BigInteger),  # size of the state of the optimizers, in a file of the same stem; null: no state
    Index("one_model_a_trigger", "run_id", "trigger_id", unique=True, postgresql_where=text("run_id <> ''")),
    Index("differences_to_a_model", "base_id", postgresql_where=text("base_id IS NOT NULL")),
    Index("one_promoted_a_run", "run_id", unique=True, postgresql_where=text("promoted AND run_id <> ''")),
)

promotions = Table(
    "promotions",
    metadata,
    Column("promotion_id", BigInteger, primary_key=True),
    Column("run_id", Text, nullable=False),  # empty: imported
    Column("model_id", BigInteger, nullable=False),  # the version may be deleted later; this row stays
    Column("action", Text, nullable=False),  # promote, rollback, refuse
    Column("before_id", BigInteger),  # the version that was promoted before; null: none
    Column("reason", Text, nullable=False),
    Column("made_by", Text, nullable=False),
    Column("made_at", Double, nullable=False),
    Column("verdicts", JSON, nullable=False),  # list of the fields of `GateVerdict`
    Index("promotions_of_a_run", "run_id", "promotion_id"),
)
"""The audit trail: one row for each change of a run's promoted version, and for each refused promotion."""

store = Table("store", metadata, Column("store_id", Text, primary_key=True))
"""Table with one row, which identifies the folder that belongs to this catalogue."""
