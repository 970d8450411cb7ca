"""Base of the components with a growing vocabulary for each column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from modyn.preprocessing.base import Component, State
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Int64Array
from modyn.preprocessing.statistics.vocabulary import Vocabularies


class VocabularyComponent(Component):
    """A component with a vocabulary for each column of categories. Columns of indices need no vocabulary, because the width of these columns is
    known.
    """

    def __init__(self, config: Any, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self._names = [name for name, found in inputs.items() if found.kind is ColumnKind.CATEGORY]
        self._vocabularies = Vocabularies(self._names, config.max_categories) if self._names else None

    def width(self, name: str) -> int:
        """Return the number of indices of a column, including the index for unknown values."""
        return self.config.max_categories + 1 if name in self._names else self.inputs[name].width

    def update(self, columns: Columns) -> None:
        """Add new categories to the vocabularies."""
        self._indices(columns, update=True)

    def transform(self, columns: Columns) -> dict[str, Any]:
        """Encode the index of each row with `encoded`."""
        return self._encoded(columns, update=False)

    def update_and_transform(self, columns: Columns) -> dict[str, Any]:
        """Update and transform with one lookup for each category of the batch."""
        return self._encoded(columns, update=True)

    def encoded(self, name: str, columns: Columns, indices: Int64Array) -> Any:
        """Return the output for the column `name`. Args: indices: indices of the column's rows, int64 (n,) in [0, width)."""
        raise NotImplementedError(f"{type(self).__name__} must define its output: override encoded()")

    def _encoded(self, columns: Columns, update: bool) -> dict[str, Any]:
        indices = {**columns, **self._indices(columns, update)}
        return {name: self.encoded(name, columns, indices[name]) for name in self.inputs}

    def _indices(self, columns: Columns, update: bool) -> dict[str, Int64Array]:
        """Return the indices of the columns of categories by name."""
        if self._vocabularies is None:
            return {}
        categories = [columns[name] for name in self._names]
        found = self._vocabularies.update(categories) if update else self._vocabularies.lookup(categories)
        return dict(zip(self._names, found, strict=True))

    def merge(self, other: Self) -> None:
        """Append the categories of `other`."""
        if self._vocabularies is not None and other._vocabularies is not None:
            self._vocabularies.merge(other._vocabularies)

    def state(self) -> State:
        """Return the vocabularies by column."""
        return self._vocabularies.state() if self._vocabularies else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the vocabularies. Raises: CorruptStateError."""
        if self._vocabularies:
            self._vocabularies.load_state(state)

    def summary(self) -> dict[str, Any]:
        """Return sizes, bounds and counters of the vocabularies."""
        return self._vocabularies.summary() if self._vocabularies else {}
