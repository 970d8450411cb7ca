"""OneHotEncoder: one feature for each category, of a vocabulary that grows up to a bound."""

from __future__ import annotations

from pydantic import Field

from modyn.preprocessing.base import ComponentConfig
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Int64Array, SparseColumn
from modyn.preprocessing.vocabularies import VocabularyComponent


class OneHotEncoderConfig(ComponentConfig):
    """Options of OneHotEncoder."""

    max_categories: int = Field(
        10_000, ge=1, le=100_000_000, description="categories of a column that get a feature, the first ones that come"
    )


class OneHotEncoder(VocabularyComponent):
    """Replace each category, or index of a LabelIndexer or Bucketizer, by a sparse feature that is 1.

    A feature never changes its meaning (`Vocabularies`). A column has `max_categories` + 1 features from the start, so that a model fits for ever;
    feature 0 is 1 for missing, unknown, and over the bound.
    """

    Config = OneHotEncoderConfig

    @classmethod
    def kinds(cls, config: OneHotEncoderConfig) -> frozenset[ColumnKind]:
        """Categories and indices."""
        return frozenset({ColumnKind.CATEGORY, ColumnKind.INDEX})

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Sparse features under the same names."""
        return {name: ColumnType(ColumnKind.SPARSE, self.width(name)) for name in self.inputs}

    def encoded(self, name: str, columns: Columns, indices: Int64Array) -> SparseColumn:
        """One entry a row."""
        return SparseColumn(indices[:, None])
