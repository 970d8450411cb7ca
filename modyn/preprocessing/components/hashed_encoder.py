"""HashedEncoder: one-hot features for the first categories, and shared features by hash for all others."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from modyn.preprocessing.base import ComponentConfig
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Int64Array, SparseColumn
from modyn.preprocessing.components.vocabulary_encoder import VocabularyComponent
from modyn.preprocessing.statistics.string_hash import bucket


class HashedEncoderConfig(ComponentConfig):
    """Options of HashedEncoder."""

    max_categories: int = Field(
        0,
        ge=0,
        le=100_000_000,
        description="number of categories of a column with their own feature, in order of first appearance",
    )
    num_buckets: int = Field(
        1024, ge=1, le=1 << 31, description="number of features of a column that all other categories share by hash"
    )


class HashedEncoder(VocabularyComponent):
    """Replace each category by a sparse feature of value 1: the category's own feature if the category is in the vocabulary, else a shared feature
    chosen by hash.

    A column has 1 + `max_categories` + `num_buckets` features: feature 0 for missing values, then the features of categories, then the shared
    features. Two categories use the same shared feature with a probability of 1 / `num_buckets`. An unknown category gets its own feature at the next
    update that contains the category, if the vocabulary is not full.

    >>> import pyarrow as pa
    >>> from modyn.preprocessing import Preprocessing
    >>> section = {"columns": {"city": "category"}, "components": [{"id": "HashedEncoder", "max_categories": 1, "num_buckets": 2}]}
    >>> Preprocessing(section).update_and_transform({"city": pa.array(["Bern", "Rome", None])}).to_dense().tolist()
    [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    """

    Config = HashedEncoderConfig
    takes = frozenset({ColumnKind.CATEGORY})

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Output sparse features under the same names."""
        return {name: ColumnType(ColumnKind.SPARSE, self.width(name) + self.config.num_buckets) for name in self.inputs}

    def encoded(self, name: str, columns: Columns, indices: Int64Array) -> SparseColumn:
        """Return one entry for each row."""
        column = columns[name]
        shared = column.per_row(bucket(column.hashes, self.config.num_buckets) + self.width(name), 0)
        return SparseColumn(np.where(indices == 0, shared, indices)[:, None])
