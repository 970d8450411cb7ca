"""TokenCounts: counts the words of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from modyn.preprocessing.base import Component, ComponentConfig, State, take
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Int64Array, SparseColumn
from modyn.preprocessing.statistics.categories import Categories
from modyn.preprocessing.statistics.string_hash import bucket
from modyn.preprocessing.statistics.vocabulary import Vocabularies

_BETWEEN: Final = r"[^\p{L}\p{N}_]+"
_BETWEEN_ASCII: Final = "[^A-Za-z0-9_]+"
"""The same pattern for ASCII texts. This pattern compiles in 0.01 ms per batch instead of 1.8 ms. For a single row, the compilation takes most of the
time."""


class TokenCountsConfig(ComponentConfig):
    """Options of TokenCounts."""

    method: Literal["hashed", "vocabulary"] = Field(
        "hashed", description="features by the hash of a token, or by a vocabulary of the first tokens"
    )
    num_features: int = Field(
        1 << 18,
        ge=1,
        le=1 << 31,
        description="number of features of a column; with `vocabulary` there is one more, for unknown tokens",
    )
    lowercase: bool = Field(True, description="count tokens without regard to upper and lower case")
    binary: bool = Field(False, description="count each distinct token of a text once")


class TokenCounts(Component):
    """Replace each text by the counts of its tokens as sparse features in ascending order. A token is a sequence of letters, digits and _, as long as
    possible.

    Counts are exact. With `hashed`, two tokens share a feature with a probability of 1 / `num_features`. With `vocabulary`, a feature never changes
    its meaning, and feature 0 counts tokens that are unknown or over the bound. A missing text has no tokens.

    >>> import pyarrow as pa
    >>> from modyn.preprocessing import Preprocessing
    >>> section = {"columns": {"note": "text"}, "components": [{"id": "TokenCounts", "method": "vocabulary", "num_features": 3}]}
    >>> Preprocessing(section).update_and_transform({"note": pa.array(["to be or not to be", "to"])}).to_dense().tolist()
    [[1.0, 2.0, 2.0, 1.0], [0.0, 1.0, 0.0, 0.0]]
    """

    Config = TokenCountsConfig
    takes = frozenset({ColumnKind.TEXT})

    def __init__(self, config: TokenCountsConfig, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self.config: TokenCountsConfig = config
        self._vocabularies = {name: Vocabularies([name], config.num_features) for name in inputs if config.method == "vocabulary"}

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Output sparse features under the same names."""
        return dict.fromkeys(self.inputs, ColumnType(ColumnKind.SPARSE, self._width))

    @property
    def _width(self) -> int:
        return self.config.num_features + (self.config.method == "vocabulary")

    def update(self, columns: Columns) -> None:
        """Add new tokens to the vocabularies."""
        for name, vocabulary in self._vocabularies.items():
            vocabulary.update([self._tokens(columns[name])[0]])

    def transform(self, columns: Columns) -> dict[str, Any]:
        """Count the tokens."""
        return {name: self._counted(name, columns[name], update=False) for name in self.inputs}

    def update_and_transform(self, columns: Columns) -> dict[str, Any]:
        """Update and transform with one pass over the texts."""
        return {name: self._counted(name, columns[name], update=True) for name in self.inputs}

    def _tokens(self, texts: pa.StringArray) -> tuple[Categories, Int64Array]:
        """Return the tokens of all texts one after the other, and the row of each token, int64 (m,)."""
        lowered = (pc.utf8_lower(texts) if self.config.lowercase else texts).fill_null("")
        between = _BETWEEN_ASCII if pc.all(pc.string_is_ascii(lowered)).as_py() else _BETWEEN
        spaced = pc.utf8_trim(pc.replace_substring_regex(lowered, between, " "), " ")
        lists = pc.split_pattern(spaced, " ")
        tokens, rows = lists.flatten(), pc.list_parent_indices(lists)
        there = pc.not_equal(tokens, "")
        return Categories.of(tokens.filter(there)), rows.filter(there).to_numpy().astype(np.int64)

    def _counted(self, name: str, texts: pa.StringArray, update: bool) -> SparseColumn:
        tokens, rows = self._tokens(texts)
        if name in self._vocabularies:
            vocabulary = self._vocabularies[name]
            (indices,) = vocabulary.update([tokens]) if update else vocabulary.lookup([tokens])
        else:
            indices = tokens.per_row(bucket(tokens.hashes, self._width), 0)
        order = np.lexsort((indices, rows))
        rows, indices = rows[order], indices[order]
        first = np.ones(len(rows), bool)
        first[1:] = (rows[1:] != rows[:-1]) | (indices[1:] != indices[:-1])
        starts = np.flatnonzero(first)
        counts = np.diff(np.append(starts, len(rows)))
        values = np.minimum(counts, 1) if self.config.binary else counts
        indptr = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.bincount(rows[starts], minlength=len(texts)), out=indptr[1:])
        return SparseColumn(indices[starts], values.astype(np.float32), indptr)

    def merge(self, other: Self) -> None:
        """Append the tokens of `other`."""
        for name, vocabulary in self._vocabularies.items():
            vocabulary.merge(other._vocabularies[name])

    def state(self) -> State:
        """Return the vocabularies by column; empty for `hashed`."""
        return {name: vocabulary.state()[name] for name, vocabulary in self._vocabularies.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the vocabularies. Raises: CorruptStateError."""
        for name, vocabulary in self._vocabularies.items():
            vocabulary.load_state({name: take(state, name, dict)})

    def summary(self) -> dict[str, Any]:
        """Return sizes, bounds and counters of the vocabularies. The counters count tokens instead of rows."""
        return {name: vocabulary.summary()[name] for name, vocabulary in self._vocabularies.items()}
