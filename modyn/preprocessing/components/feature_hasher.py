"""FeatureHasher: maps columns with any number of categories to a fixed number of features, without statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from modyn.preprocessing.base import ColumnName, ComponentConfig, StatelessComponent
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, SparseColumn
from modyn.preprocessing.statistics.categories import Categories, JoinedCategories
from modyn.preprocessing.statistics.string_hash import bucket, combine, hash_text


class FeatureHasherConfig(ComponentConfig):
    """Options of FeatureHasher."""

    output: ColumnName = Field("hashed", description="name of the output column")
    num_features: int = Field(1 << 18, ge=1, le=1 << 31, description="number of features that all columns share")
    alternate_sign: bool = Field(
        True, description="give half of the features a negative sign, so that collisions cancel out on average"
    )


class FeatureHasher(StatelessComponent):
    """Hash all columns into one sparse column of `num_features` features: each category of a column has the value 1 or -1, and each number its value
    or the negative value.

    A missing value contributes 0. Two features share an index with a probability of 1 / `num_features`; then their values are added.

    Source: Weinberger et al., Feature Hashing for Large Scale Multitask Learning, 2009, section 2.

    >>> import pyarrow as pa
    >>> from modyn.preprocessing import Preprocessing
    >>> section = {"columns": {"city": "category"}, "components": [{"id": "FeatureHasher", "num_features": 4}]}
    >>> Preprocessing(section).update_and_transform({"city": pa.array(["Bern", "Rome", None])}).to_dense().tolist()
    [[0.0, 0.0, 0.0, 1.0], [-1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """

    Config = FeatureHasherConfig
    takes = frozenset({ColumnKind.NUMBER, ColumnKind.CATEGORY, ColumnKind.INDEX})

    def __init__(self, config: FeatureHasherConfig, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self.config: FeatureHasherConfig = config
        self._seeds = np.concatenate([hash_text(name) for name in inputs])

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Output one sparse column."""
        return {self.config.output: ColumnType(ColumnKind.SPARSE, self.config.num_features)}

    def transform(self, columns: Columns) -> dict[str, Any]:
        """Return one entry for each row and column, including entries with the value 0.

        Numbers beyond float32 are limited to ±3.4e38.
        """
        num_rows = len(columns[next(iter(self.inputs))])
        indices = np.empty((num_rows, len(self.inputs)), np.int64)
        values = np.empty((num_rows, len(self.inputs)), np.float32)
        largest = float(np.finfo(np.float32).max)
        categories = [at for at, found in enumerate(self.inputs.values()) if found.kind is ColumnKind.CATEGORY]
        if categories:
            joined = JoinedCategories([column for column in map(columns.get, self.inputs) if isinstance(column, Categories)])
            hashes = combine(self._seeds[categories][joined.columns], joined.hashes)
            indices[:, categories] = joined.per_row(bucket(hashes, self.config.num_features)).T
            values[:, categories] = joined.per_row(self._signs(hashes)).T
        for at, (name, found) in enumerate(self.inputs.items()):
            column, seed = columns[name], self._seeds[at : at + 1]
            if found.kind is ColumnKind.INDEX:
                hashes = combine(seed, column.astype(np.uint64))
                indices[:, at] = np.where(column == 0, 0, bucket(hashes, self.config.num_features))
                values[:, at] = np.where(column == 0, 0, self._signs(hashes))
            elif found.kind is ColumnKind.NUMBER:
                indices[:, at] = bucket(seed, self.config.num_features)
                values[:, at] = np.clip(np.nan_to_num(column) * self._signs(seed), -largest, largest)
        return {self.config.output: SparseColumn(indices, values)}

    def _signs(self, hashes: Any) -> Any:
        """Return +1 or -1 by the lowest bit, which `bucket` does not use."""
        if not self.config.alternate_sign:
            return np.ones(len(hashes), np.int8)
        return np.where(hashes & np.uint64(1), 1, -1).astype(np.int8)
