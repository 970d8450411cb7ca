"""A vocabulary that grows with the stream up to a bound, and counts what it does not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, Final

import numpy as np

from modyn.errors import CorruptStateError
from modyn.preprocessing.base import State, take
from modyn.preprocessing.columns import Categories, Int64Array

LONGEST: Final = 256
"""Characters of the longest text that a vocabulary takes in, so that its memory is bounded; longer ones count as over the bound."""
_COUNTERS: Final = ("num_rows", "num_missing", "num_unseen", "num_over_bound")


class Vocabulary:
    """Indices from 1 of at most `max_categories` strings, in the order in which they came first; 0 is everything else.

    The index of a string never changes. A string that comes when the vocabulary is full has the index 0 for ever. Two vocabularies merge as if the
    strings of the second one had come after those of the first.
    """

    def __init__(self, max_categories: int) -> None:
        self.max_categories = max_categories
        self.num_rows = 0
        """Values that updates brought, missing ones included."""
        self.num_missing = 0
        self.num_unseen = 0
        """Values that no update before had brought, or that were over the bound."""
        self.num_over_bound = 0
        """Values that came when the vocabulary was full, or were too long for it."""
        self._indices = dict[str, int]()

    def __len__(self) -> int:
        return len(self._indices)

    def find(self, texts: Sequence[str]) -> Int64Array:
        """Indices of strings, int64 (m,), 0 for those that it does not hold."""
        return np.fromiter(map(self._indices.get, texts, repeat(0)), np.int64, len(texts))

    def lookup(self, column: Categories) -> Int64Array:
        """Indices of rows, int64 (n,), 0 where missing."""
        return column.per_row(self.find(column.texts), 0)

    def update(self, column: Categories) -> Int64Array:
        """Take in the strings of a batch. Returns: the indices that `lookup` gives now."""
        found, codes = self.find(column.texts), column.codes
        self.num_rows += len(codes)
        self.num_missing += int((codes < 0).sum())
        unseen = np.flatnonzero(found == 0)
        if len(unseen):
            counts = column.counts()
            self.num_unseen += int(counts[unseen].sum())
            found[unseen] = self._add([column.texts[place] for place in unseen])
            self.num_over_bound += int(counts[found == 0].sum())
        return column.per_row(found, 0)

    def _add(self, texts: Sequence[str]) -> list[int]:
        """Take in distinct strings that it does not hold, as far as there is room. Returns: their indices."""
        added = []
        for text in texts:
            index = len(self._indices) + 1
            if index > self.max_categories or len(text) > LONGEST:
                index = 0
            else:
                self._indices[text] = index
            added.append(index)
        return added

    def merge(self, other: Vocabulary) -> None:
        """Take in the strings of `other` that are new, and add its counters.

        The rows of strings of `other` for which there is no more room are not known one by one; they are not added to `num_over_bound`.
        """
        self._add([text for text in other._indices if text not in self._indices])
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def state(self) -> State:
        """Strings in the order of their indices, and counters."""
        return {"categories": list(self._indices), **{name: getattr(self, name) for name in _COUNTERS}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace what was seen. Raises: CorruptStateError."""
        categories = take(state, "categories", list)
        if len(set(categories)) < len(categories) or len(categories) > self.max_categories:
            raise CorruptStateError(
                f"a vocabulary in the state of preprocessing has {len(categories)} categories, some twice or more than the bound of "
                f"{self.max_categories}; restore a state of this pipeline"
            )
        self._indices = {text: index for index, text in enumerate(categories, 1)}
        for name in _COUNTERS:
            setattr(self, name, take(state, name, int))

    def summary(self) -> dict[str, Any]:
        """Size, bound and counters; `unseen_share`: of rows with a value, how many no update before had brought."""
        there = max(self.num_rows - self.num_missing, 1)
        return {
            "categories": len(self),
            "max_categories": self.max_categories,
            "rows": self.num_rows,
            "missing": self.num_missing,
            "over_bound": self.num_over_bound,
            "over_bound_share": self.num_over_bound / there,
            "unseen_share": self.num_unseen / there,
        }
