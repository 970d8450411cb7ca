"""The catalogue of models. A row is what makes a version visible; its file lies in the folder `models` before the row is committed."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Dialect, Double, Index, MetaData, Table, Text, text
from sqlalchemy.types import TypeDecorator


class JsonText(TypeDecorator[Any]):
    """JSON as text: PostgreSQL's own JSON types refuse the infinite and undefined losses that trainings report."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        return json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


metadata = MetaData(schema="model_storage")

models = Table(
    "models",
    metadata,
    Column("model_id", BigInteger, primary_key=True),
    Column("run_id", Text, nullable=False),  # empty: imported
    Column("trigger_id", BigInteger, nullable=False),
    Column("parent_id", BigInteger),  # lineage only: the parent may be deleted
    Column("model_class", Text, nullable=False),
    Column("model_config", JsonText, nullable=False),
    Column("training_result", JsonText, nullable=False),
    Column("strategy", Text, nullable=False),
    Column("strategy_config", JsonText, nullable=False),  # FullModelStrategy
    Column("layout", JsonText, nullable=False),  # [[name, dtype, shape], …]
    Column("file_name", Text, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),  # of the file
    Column("unpacked_bytes", BigInteger, nullable=False),  # of the file before compression
    Column("weights_sha256", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("promoted", Boolean, nullable=False),
    Index("one_model_a_trigger", "run_id", "trigger_id", unique=True, postgresql_where=text("run_id <> ''")),
    Index("one_promoted_a_run", "run_id", unique=True, postgresql_where=text("promoted AND run_id <> ''")),
)

store = Table("store", metadata, Column("store_id", Text, primary_key=True))
"""One row: the name of the folder that belongs to this catalogue."""
