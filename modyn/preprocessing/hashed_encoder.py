"""HashedEncoder: one-hot features of the first categories, shared features by hash of all others."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from modyn.preprocessing.base import ComponentConfig
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Int64Array, SparseColumn
from modyn.preprocessing.string_hash import bucket
from modyn.preprocessing.vocabularies import VocabularyComponent


class HashedEncoderConfig(ComponentConfig):
    """Options of HashedEncoder."""

    max_categories: int = Field(
        0, ge=0, le=100_000_000, description="categories of a column that get a feature of their own, the first ones that come"
    )
    num_buckets: int = Field(
        1024, ge=1, le=1 << 31, description="features of a column that all other categories share, by their hash"
    )


class HashedEncoder(VocabularyComponent):
    """Replace each category by a sparse feature that is 1: its own if it is in the vocabulary, else the one of its hash.

    A column has 1 + `max_categories` + `num_buckets` features: 0 for missing, then those of categories, then the shared ones. Two categories share
    one of them with a probability of 1 / `num_buckets`. A category that was unknown gets a feature of its own when an update brings it.
    """

    Config = HashedEncoderConfig

    @classmethod
    def kinds(cls, config: HashedEncoderConfig) -> frozenset[ColumnKind]:
        """Categories."""
        return frozenset({ColumnKind.CATEGORY})

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Sparse features under the same names."""
        return {name: ColumnType(ColumnKind.SPARSE, self.width(name) + self.config.num_buckets) for name in self.inputs}

    def encoded(self, name: str, columns: Columns, indices: Int64Array) -> SparseColumn:
        """One entry a row."""
        column = columns[name]
        shared = column.per_row(bucket(column.hashes, self.config.num_buckets) + self.width(name), 0)
        return SparseColumn(np.where(indices == 0, shared, indices)[:, None])
