"""Samples that are rows of columns, and a pipeline that makes features of them by the section `preprocessing`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from modyn.config.preprocessing import with_columns
from modyn.dataset.connections import DatasetClients
from modyn.preprocessing import Preprocessing
from modyn.records import Int64Array
from tests.support.fake_dataset import FakeTriggerSet
from tests.support.training import MemoryData, small_pipeline

# Columns in the order of their names, as pipelines have them.
DENSE: dict[str, Any] = {
    "format": "json",
    "columns": {"age": "number", "income": "number", "site": "category"},
    "components": [{"id": "Imputer"}, {"id": "StandardScaler"}, {"id": "LabelIndexer", "max_categories": 6}],
}
"""Three dense features."""
SPARSE: dict[str, Any] = {
    "format": "json",
    "columns": {"age": "number", "income": "number", "query": "text", "site": "category"},
    "components": [
        {"id": "Imputer", "columns": ["age", "income"], "strategy": "median"},
        {"id": "StandardScaler"},
        {"id": "OneHotEncoder", "max_categories": 6},
        {"id": "TokenCounts", "num_features": 50},
    ],
}
"""Two dense and 57 sparse features."""
SPARSE_MODEL: dict[str, Any] = {
    "id": "SparseLogisticRegression",
    "config": {"num_features": 57, "num_dense": 2, "num_classes": 10},
}


def row_of(key: int) -> dict[str, Any]:
    """The columns of a sample, with missing values here and there."""
    random = np.random.default_rng(key)
    words = " ".join(f"word{random.integers(12)}" for _ in range(random.integers(4)))
    return {
        "age": None if key % 7 == 3 else float(random.normal(40 + key / 10, 9)),
        "income": float(random.lognormal(8)),
        "site": None if key % 11 == 5 else f"site-{random.integers(1 + min(key, 9))}",
        "query": words,
        "other": [key],
    }


def label_of(key: int) -> int:
    """A label of the sample that follows from its site, so that it can be learned."""
    site = row_of(key)["site"]
    return 0 if site is None else int(site[-1])


def json_row(key: int) -> bytes:
    return json.dumps(row_of(key)).encode()


def csv_row(key: int) -> bytes:
    """Fields age, income, site, query."""
    row = row_of(key)
    return ",".join("" if row[name] is None else str(row[name]) for name in ("age", "income", "site", "query")).encode()


CSV: dict[str, Any] = {**DENSE, "format": "csv", "names": ["age", "income", "site", "query"]}


def columns_of(keys: list[int]) -> dict[str, Any]:
    """Columns of samples as numpy arrays, not read by the parser: numbers with NaN, texts with None."""
    rows = [row_of(key) for key in keys]
    numbers = {name: np.array([np.nan if row[name] is None else row[name] for row in rows]) for name in ("age", "income")}
    return {**numbers, **{name: np.array([row[name] for row in rows], object) for name in ("site", "query")}}


def tensors(keys: list[int]) -> list[dict[str, Any]]:
    """The columns of samples as inputs of a request for predictions, in JSON."""
    rows = [row_of(key) for key in keys]
    types = {"age": "FP64", "income": "FP64", "site": "BYTES", "query": "BYTES"}
    return [
        {"name": name, "datatype": datatype, "shape": [len(keys)], "data": [row[name] for row in rows]}
        for name, datatype in types.items()
    ]


def preprocessing_of_keys(section: Mapping[str, Any], *batches: list[int]) -> Preprocessing:
    """Statistics of batches, taken one after the other."""
    made = Preprocessing({name: value for name, value in section.items() if name != "statistics"})
    for keys in batches:
        made.update(columns_of(keys))
    return made


def column_pipeline(
    section: Mapping[str, Any], training: Mapping[str, Any] | None = None, **sections: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `small_pipeline` with columns, in the form that services get."""
    dense = {"id": "MLP", "config": {"input_size": 3, "hidden_sizes": [8], "num_classes": 10}}
    model = SPARSE_MODEL if "query" in section["columns"] else dense
    own = {"model": model, "data": {"dataset_id": "fake"}, "preprocessing": section, **sections}
    return with_columns(small_pipeline({"seed": 7, **(training or {})}, **own))


@dataclass(frozen=True)
class ColumnData(MemoryData):
    """A trigger set of samples that are rows of columns. payload: of a key. keys: None: 0, 1, 2, …"""

    payload: Callable[[int], bytes] = json_row
    keys: tuple[int, ...] | None = None

    def __call__(self) -> DatasetClients:
        keys: Int64Array = np.array(self.keys if self.keys is not None else range(self.num_keys), np.int64)
        fake = FakeTriggerSet(
            keys, self.partition_size, self.deleted, self.payload, before_fetch=self.before_fetch, trigger_id=self.trigger_id
        )
        return fake()
