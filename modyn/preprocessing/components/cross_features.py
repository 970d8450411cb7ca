"""CrossFeatures: a hashed feature for each combination of the categories of several columns."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import comb
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from modyn.config.base import PlacedError
from modyn.preprocessing.base import ColumnName, ComponentConfig, StatelessComponent
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, SparseColumn
from modyn.preprocessing.statistics.categories import Categories
from modyn.preprocessing.statistics.string_hash import UInt64Array, bucket, combine, hash_text, mix


class CrossFeaturesConfig(ComponentConfig):
    """Options of CrossFeatures."""

    columns: tuple[ColumnName, ...] = Field(min_length=2, description="columns to combine: categories, or indices of buckets")
    degree: int = Field(
        2, ge=2, le=4, description="number of columns in a combination; all choices of this number of `columns` are combined"
    )
    num_buckets: int = Field(1 << 16, ge=1, le=1 << 31, description="number of features of each combination of columns")
    output: ColumnName = Field("crosses", description="name of the output column")

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.degree > len(self.columns):
            raise PlacedError(
                "degree", f"{self.degree} is more than the {len(self.columns)} columns; name more columns or lower it"
            )
        return self


class CrossFeatures(StatelessComponent):
    """Add a sparse column with one feature of value 1 for each combination of columns, chosen by the hash of the combination's categories in the row.

    A missing value is a separate category. The input columns are passed on to later components, so place CrossFeatures before the encoders. Two
    combinations of categories share a feature with a probability of 1 / `num_buckets`.

    >>> import pyarrow as pa
    >>> from modyn.preprocessing import Preprocessing
    >>> crosses = {"id": "CrossFeatures", "columns": ["city", "day"], "num_buckets": 16}
    >>> section = {"columns": {"city": "category", "day": "category"}, "components": [crosses, {"id": "LabelIndexer"}]}
    >>> Preprocessing(section).update_and_transform({"city": pa.array(["Bern", "Rome"]), "day": pa.array(["Mo", "Mo"])}).indices.tolist()
    [4, 6]
    """

    Config = CrossFeaturesConfig
    takes = frozenset({ColumnKind.CATEGORY, ColumnKind.INDEX})

    def __init__(self, config: CrossFeaturesConfig, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self.config: CrossFeaturesConfig = config
        self._crosses = list(combinations(inputs, config.degree))

    @classmethod
    def num_combinations(cls, config: CrossFeaturesConfig, num_columns: int) -> int:
        """Count the choices of `degree` columns."""
        return comb(num_columns, config.degree)

    @property
    def keeps_inputs(self) -> bool:
        """Keep the combined columns."""
        return True

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Output one sparse column."""
        return {self.config.output: ColumnType(ColumnKind.SPARSE, len(self._crosses) * self.config.num_buckets)}

    def transform(self, columns: Columns) -> dict[str, Any]:
        """Add one entry for each row and combination."""
        hashes = {name: _row_hashes(columns[name]) for name in self.inputs}
        indices = np.empty((len(hashes[next(iter(hashes))]), len(self._crosses)), np.int64)
        for at, names in enumerate(self._crosses):
            crossed = hashes[names[0]]
            for name in names[1:]:
                crossed = combine(crossed, hashes[name])
            indices[:, at] = bucket(crossed, self.config.num_buckets) + at * self.config.num_buckets
        return {self.config.output: SparseColumn(indices)}


_MISSING = hash_text("\0missing")


def _row_hashes(column: Any) -> UInt64Array:
    """Hash the value of each row, uint64 (n,)."""
    if isinstance(column, Categories):
        table = np.concatenate([_MISSING, column.hashes])
        return table[column.codes + 1]
    return mix(column.astype(np.uint64) + np.uint64(1))
