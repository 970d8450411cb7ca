"""What the components share that keep a growing vocabulary for each of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from modyn.preprocessing.base import Component, State, take
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Int64Array
from modyn.preprocessing.vocabulary import Vocabulary


class VocabularyComponent(Component):
    """A component with a vocabulary for each column of categories. Columns of indices need none: their width is known."""

    def __init__(self, config: Any, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self._vocabularies = {
            name: Vocabulary(config.max_categories) for name, found in inputs.items() if found.kind is ColumnKind.CATEGORY
        }

    def width(self, name: str) -> int:
        """How many indices a column has, that of unknown ones included."""
        return self.config.max_categories + 1 if name in self._vocabularies else self.inputs[name].width

    def update(self, columns: Columns) -> None:
        """Take in new categories."""
        for name, vocabulary in self._vocabularies.items():
            vocabulary.update(columns[name])

    def transform(self, columns: Columns) -> dict[str, Any]:
        """Give what `encoded` makes of the index of each row."""
        return {name: self.encoded(name, columns, self._indices(name, columns)) for name in self.inputs}

    def update_and_transform(self, columns: Columns) -> dict[str, Any]:
        """Both, with one look into the vocabulary for each category of the batch."""
        return {name: self.encoded(name, columns, self._indices(name, columns, update=True)) for name in self.inputs}

    def encoded(self, name: str, columns: Columns, indices: Int64Array) -> Any:
        """The output for the column `name`. Args: indices: of its rows, int64 (n,) in [0, width)."""
        raise NotImplementedError(f"{type(self).__name__} must say what comes out: override encoded()")

    def _indices(self, name: str, columns: Columns, update: bool = False) -> Int64Array:
        vocabulary = self._vocabularies.get(name)
        if vocabulary is None:
            indices: Int64Array = columns[name]
            return indices
        return vocabulary.update(columns[name]) if update else vocabulary.lookup(columns[name])

    def merge(self, other: Self) -> None:
        """Take in the categories of `other`, behind those that are here."""
        for name, vocabulary in self._vocabularies.items():
            vocabulary.merge(other._vocabularies[name])

    def state(self) -> State:
        """The vocabularies by name of their columns."""
        return {name: vocabulary.state() for name, vocabulary in self._vocabularies.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the vocabularies. Raises: CorruptStateError."""
        for name, vocabulary in self._vocabularies.items():
            vocabulary.load_state(take(state, name, dict))

    def summary(self) -> dict[str, Any]:
        """Sizes, bounds and counters of the vocabularies."""
        return {name: vocabulary.summary() for name, vocabulary in self._vocabularies.items()}
