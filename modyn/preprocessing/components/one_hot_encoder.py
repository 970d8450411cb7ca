"""OneHotEncoder: one feature for each category of a bounded, growing vocabulary."""

from __future__ import annotations

from pydantic import Field

from modyn.preprocessing.base import ComponentConfig
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Int64Array, SparseColumn
from modyn.preprocessing.components.vocabulary_encoder import VocabularyComponent


class OneHotEncoderConfig(ComponentConfig):
    """Options of OneHotEncoder."""

    max_categories: int = Field(
        10_000,
        ge=1,
        le=100_000_000,
        description="number of categories of a column with a feature, in order of first appearance",
    )


class OneHotEncoder(VocabularyComponent):
    """Replace each category, or index of a LabelIndexer or Bucketizer, by a sparse feature of value 1.

    A feature never changes its meaning (`Vocabularies`). A column always has `max_categories` + 1 features, so that the input size of a model never
    changes. Feature 0 is 1 for values that are missing, unknown or over the bound.

    >>> import pyarrow as pa
    >>> from modyn.preprocessing import Preprocessing
    >>> section = {"columns": {"city": "category"}, "components": [{"id": "OneHotEncoder", "max_categories": 2}]}
    >>> Preprocessing(section).update_and_transform({"city": pa.array(["Bern", "Rome", None])}).to_dense().tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """

    Config = OneHotEncoderConfig
    takes = frozenset({ColumnKind.CATEGORY, ColumnKind.INDEX})

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Output sparse features under the same names."""
        return {name: ColumnType(ColumnKind.SPARSE, self.width(name)) for name in self.inputs}

    def encoded(self, name: str, columns: Columns, indices: Int64Array) -> SparseColumn:
        """Return one entry for each row."""
        return SparseColumn(indices[:, None])
