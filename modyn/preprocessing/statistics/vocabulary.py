"""Vocabularies that grow with the stream up to a bound, and count values that do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from modyn.errors import CorruptStateError
from modyn.preprocessing.base import State, take
from modyn.preprocessing.columns import Int64Array
from modyn.preprocessing.statistics.categories import Categories, JoinedCategories
from modyn.preprocessing.statistics.hash_index import HashIndex
from modyn.preprocessing.statistics.string_hash import UInt64Array, combine, hash_strings, hash_text

LONGEST: Final = 256
"""Largest number of bytes of a string in a vocabulary, which bounds the memory of the vocabulary. Longer strings count as over the bound."""
_COUNTERS: Final = ("num_rows", "num_missing", "num_unseen", "num_over_bound")


class Vocabularies:
    """Indices from 1 for at most `max_categories` strings of each of k columns, in the order of first appearance; 0 means any other string.

    The index of a string never changes. A string that first appears when the vocabulary is full always has the index 0. Vocabularies merge as if the
    strings of the second vocabulary had followed the strings of the first vocabulary. Strings are found by a 64-bit hash, for all columns at once:
    two strings of a column collide with a probability below 2^-56.

    Counters by column: values of all updates (`num_rows`), missing values, values that were new in their update or over the bound (`num_unseen`),
    and values that arrived when the vocabulary was full or that were too long for the vocabulary (`num_over_bound`).
    """

    def __init__(self, names: Sequence[str], max_categories: int) -> None:
        """Args: names: names of the columns, at least one."""
        self.names = list(names)
        self.max_categories = max_categories
        self._seeds: UInt64Array = np.concatenate([hash_text(name) for name in names])
        self._forget()

    def _forget(self) -> None:
        self._index = HashIndex()
        self._texts: list[list[str]] = [[] for _ in self.names]
        """Strings by column, in the order of their indices."""
        self._counters = {name: np.zeros(len(self.names), np.int64) for name in _COUNTERS}

    def lookup(self, columns: Sequence[Categories]) -> Int64Array:
        """Return the indices of rows by column, int64 (k, n), 0 if missing or unknown."""
        joined = JoinedCategories(columns)
        return joined.per_row(self._index.find(self._keys(joined.hashes, joined.columns)))

    def update(self, columns: Sequence[Categories]) -> Int64Array:
        """Add the strings of a batch. Returns: the indices, like `lookup`."""
        joined = JoinedCategories(columns)
        keys = self._keys(joined.hashes, joined.columns)
        found = self._index.find(keys)
        unseen = np.flatnonzero(found == 0)
        self._counters["num_rows"] += joined.codes.shape[1]
        self._counters["num_missing"] += (joined.codes < 0).sum(axis=1)
        if len(unseen):
            counts, of_unseen = joined.counts()[unseen], joined.columns[unseen]
            found[unseen] = self._take_in(joined.texts_at(unseen), keys[unseen], of_unseen)
            for name, counted in (("num_unseen", counts), ("num_over_bound", np.where(found[unseen] == 0, counts, 0))):
                np.add.at(self._counters[name], of_unseen, counted)
        return joined.per_row(found)

    def counters(self) -> dict[str, Int64Array]:
        """Return the counters by name, one number for each column."""
        return {name: counts.copy() for name, counts in self._counters.items()}

    def _keys(self, hashes: UInt64Array, columns: Int64Array) -> UInt64Array:
        """Hash (column, string). Args: hashes: hashes of m strings, uint64 (m,). columns: index of each string's column, int64 (m,)."""
        return combine(self._seeds[columns], hashes)

    def _take_in(self, texts: Sequence[str], keys: UInt64Array, columns: Int64Array) -> Int64Array:
        """Add unknown strings until the vocabulary is full.

        Args: texts, keys, columns: u strings, grouped by ascending column. Returns: indices of these strings, int64 (u,), 0 for strings over the
        bound.
        """
        room = np.array([self.max_categories - len(of_column) for of_column in self._texts])
        fits = np.flatnonzero((room[columns] > 0) & np.array([len(text.encode()) <= LONGEST for text in texts], np.bool_))
        indices = np.zeros(len(texts), np.int64)
        if not len(fits):
            return indices
        of_fits = columns[fits]
        rank = np.arange(len(fits)) - np.searchsorted(of_fits, of_fits) + 1  # 1 for the first string of its column
        taken = rank <= room[of_fits]
        places = fits[taken]
        indices[places] = rank[taken] + self.max_categories - room[columns[places]]
        self._index.add(keys[places], indices[places])
        for place, column in zip(places.tolist(), columns[places].tolist(), strict=True):
            self._texts[column].append(texts[place])
        return indices

    def merge(self, other: Vocabularies) -> None:
        """Add the new strings and the counters of `other`.

        The number of rows with strings that do not fit is unknown, so these rows are not added to `num_over_bound`.
        """
        self._take_in_all(other._texts)
        for name, counted in other._counters.items():
            self._counters[name] += counted

    def _take_in_all(self, texts: Sequence[Sequence[str]]) -> None:
        """Add strings to each column. Args: texts: strings by column."""
        columns = np.repeat(np.arange(len(self.names)), [len(of_column) for of_column in texts])
        strings = [text for of_column in texts for text in of_column]
        keys = self._keys(hash_strings(pa.array(strings, pa.string())), columns)
        unseen = np.flatnonzero(self._index.find(keys) == 0)
        if len(unseen):
            self._take_in([strings[at] for at in unseen.tolist()], keys[unseen], columns[unseen])

    def state(self) -> State:
        """Return the strings in the order of their indices, and the counters, by column."""
        return {
            name: {"categories": list(texts), **{counter: int(counts[at]) for counter, counts in self._counters.items()}}
            for at, (name, texts) in enumerate(zip(self.names, self._texts, strict=True))
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace strings and counters. Raises: CorruptStateError."""
        columns = [take(state, name, dict) for name in self.names]
        texts = [take(column, "categories", list) for column in columns]
        for name, categories in zip(self.names, texts, strict=True):
            if len(set(categories)) < len(categories) or len(categories) > self.max_categories:
                raise CorruptStateError(
                    f"the vocabulary of '{name}' in the state of preprocessing has {len(categories)} categories, some twice or more than the "
                    f"bound of {self.max_categories}; restore a state of this pipeline"
                )
        counters = {name: np.array([take(column, name, int) for column in columns], np.int64) for name in _COUNTERS}
        self._forget()
        self._take_in_all(texts)
        self._counters = counters

    def summary(self) -> dict[str, Any]:
        """Return size, bound and counters by column. `unseen_share`: share of rows with a value that was new in its update."""
        found = {}
        for at, name in enumerate(self.names):
            counted = {counter: int(counts[at]) for counter, counts in self._counters.items()}
            there = max(counted["num_rows"] - counted["num_missing"], 1)
            found[name] = {
                "categories": len(self._texts[at]),
                "max_categories": self.max_categories,
                "rows": counted["num_rows"],
                "missing": counted["num_missing"],
                "over_bound": counted["num_over_bound"],
                "over_bound_share": counted["num_over_bound"] / there,
                "unseen_share": counted["num_unseen"] / there,
            }
        return found
