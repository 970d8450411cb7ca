"""LabelIndexer: replaces each category by a number, in the order of first appearance."""

from __future__ import annotations

from pydantic import Field

from modyn.preprocessing.base import ComponentConfig
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Int64Array
from modyn.preprocessing.components.vocabulary_encoder import VocabularyComponent


class LabelIndexerConfig(ComponentConfig):
    """Options of LabelIndexer."""

    max_categories: int = Field(
        10_000, ge=1, le=100_000_000, description="number of categories that get an index, in order of first appearance"
    )


class LabelIndexer(VocabularyComponent):
    """Replace categories by indices from 1. 0 means missing, unknown, or over the bound of `max_categories`.

    An index never changes its meaning (`Vocabularies`). If no other component takes the indices, they become one dense feature.

    >>> import pyarrow as pa
    >>> from modyn.preprocessing import Preprocessing
    >>> section = {"columns": {"city": "category"}, "components": [{"id": "LabelIndexer"}]}
    >>> Preprocessing(section).update_and_transform({"city": pa.array(["Bern", "Rome", "Bern", None])}).to_dense().tolist()
    [[1.0], [2.0], [1.0], [0.0]]
    """

    Config = LabelIndexerConfig
    takes = frozenset({ColumnKind.CATEGORY})

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Output indices under the same names."""
        return {name: ColumnType(ColumnKind.INDEX, self.width(name)) for name in self.inputs}

    def encoded(self, name: str, columns: Columns, indices: Int64Array) -> Int64Array:
        """Return the indices themselves."""
        return indices
