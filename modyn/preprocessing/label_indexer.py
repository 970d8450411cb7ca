"""LabelIndexer: a number for each category, in the order in which they came."""

from __future__ import annotations

from pydantic import Field

from modyn.preprocessing.base import ComponentConfig
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Int64Array
from modyn.preprocessing.vocabularies import VocabularyComponent


class LabelIndexerConfig(ComponentConfig):
    """Options of LabelIndexer."""

    max_categories: int = Field(
        10_000, ge=1, le=100_000_000, description="categories that get an index, the first ones that come"
    )


class LabelIndexer(VocabularyComponent):
    """Replace categories by indices from 1; 0 is missing, unknown, or over the bound of `max_categories`.

    An index never changes its meaning (`Vocabularies`). What no other component takes becomes one dense feature.
    """

    Config = LabelIndexerConfig

    @classmethod
    def kinds(cls, config: LabelIndexerConfig) -> frozenset[ColumnKind]:
        """Categories."""
        return frozenset({ColumnKind.CATEGORY})

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Indices under the same names."""
        return {name: ColumnType(ColumnKind.INDEX, self.width(name)) for name in self.inputs}

    def encoded(self, name: str, columns: Columns, indices: Int64Array) -> Int64Array:
        """The indices themselves."""
        return indices
