"""FeatureHasher: columns of any number of categories as features of a fixed number, without any statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from modyn.preprocessing.base import ColumnName, ComponentConfig, StatelessComponent
from modyn.preprocessing.categories import Categories, JoinedCategories
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, SparseColumn
from modyn.preprocessing.string_hash import bucket, combine, hash_text


class FeatureHasherConfig(ComponentConfig):
    """Options of FeatureHasher."""

    output: ColumnName = Field("hashed", description="name of the column of features that comes out")
    num_features: int = Field(1 << 18, ge=1, le=1 << 31, description="features that all columns share")
    alternate_sign: bool = Field(
        True, description="let half of the features count negatively, so that collisions cancel out on average"
    )


class FeatureHasher(StatelessComponent):
    """Hash all columns into one sparse column of `num_features`: (column, category) with the value ±1, and number columns with ± their value.

    A missing value contributes 0. Two features share an index with a probability of 1 / `num_features`; their values are added.

    Source: Weinberger et al., Feature Hashing for Large Scale Multitask Learning, 2009, section 2.
    """

    Config = FeatureHasherConfig

    def __init__(self, config: FeatureHasherConfig, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self.config: FeatureHasherConfig = config
        self._seeds = np.concatenate([hash_text(name) for name in inputs])

    @classmethod
    def kinds(cls, config: FeatureHasherConfig) -> frozenset[ColumnKind]:
        """Numbers, categories and indices."""
        return frozenset({ColumnKind.NUMBER, ColumnKind.CATEGORY, ColumnKind.INDEX})

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """One sparse column."""
        return {self.config.output: ColumnType(ColumnKind.SPARSE, self.config.num_features)}

    def transform(self, columns: Columns) -> dict[str, Any]:
        """One entry a row and column, those with the value 0 included.

        Raises nothing for a number that no float32 holds: it is limited to ±3.4e38.
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
        """+1 or -1 by the lowest bit, which `bucket` does not use."""
        if not self.config.alternate_sign:
            return np.ones(len(hashes), np.int8)
        return np.where(hashes & np.uint64(1), 1, -1).astype(np.int8)
