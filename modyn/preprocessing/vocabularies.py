"""What the components share that keep a growing vocabulary for each of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from modyn.preprocessing.base import Component, State
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType, Int64Array
from modyn.preprocessing.vocabulary import Vocabularies


class VocabularyComponent(Component):
    """A component with a vocabulary for each column of categories. Columns of indices need none: their width is known."""

    def __init__(self, config: Any, inputs: Mapping[str, ColumnType]) -> None:
        super().__init__(config, inputs)
        self._names = [name for name, found in inputs.items() if found.kind is ColumnKind.CATEGORY]
        self._vocabularies = Vocabularies(self._names, config.max_categories) if self._names else None

    def width(self, name: str) -> int:
        """How many indices a column has, that of unknown ones included."""
        return self.config.max_categories + 1 if name in self._names else self.inputs[name].width

    def update(self, columns: Columns) -> None:
        """Take in new categories."""
        self._indices(columns, update=True)

    def transform(self, columns: Columns) -> dict[str, Any]:
        """Give what `encoded` makes of the index of each row."""
        return self._encoded(columns, update=False)

    def update_and_transform(self, columns: Columns) -> dict[str, Any]:
        """Both, with one look into the vocabularies for each category of the batch."""
        return self._encoded(columns, update=True)

    def encoded(self, name: str, columns: Columns, indices: Int64Array) -> Any:
        """The output for the column `name`. Args: indices: of its rows, int64 (n,) in [0, width)."""
        raise NotImplementedError(f"{type(self).__name__} must say what comes out: override encoded()")

    def _encoded(self, columns: Columns, update: bool) -> dict[str, Any]:
        indices = {**columns, **self._indices(columns, update)}
        return {name: self.encoded(name, columns, indices[name]) for name in self.inputs}

    def _indices(self, columns: Columns, update: bool) -> dict[str, Int64Array]:
        """By name of the columns of categories."""
        if self._vocabularies is None:
            return {}
        categories = [columns[name] for name in self._names]
        found = self._vocabularies.update(categories) if update else self._vocabularies.lookup(categories)
        return dict(zip(self._names, found, strict=True))

    def merge(self, other: Self) -> None:
        """Take in the categories of `other`, behind those that are here."""
        if self._vocabularies is not None and other._vocabularies is not None:
            self._vocabularies.merge(other._vocabularies)

    def state(self) -> State:
        """The vocabularies by name of their columns."""
        return self._vocabularies.state() if self._vocabularies else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the vocabularies. Raises: CorruptStateError."""
        if self._vocabularies:
            self._vocabularies.load_state(state)

    def summary(self) -> dict[str, Any]:
        """Sizes, bounds and counters of the vocabularies."""
        return self._vocabularies.summary() if self._vocabularies else {}
