"""Counts of the most frequent values of a stream in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from modyn.errors import CorruptStateError
from modyn.preprocessing.base import State, take

V = TypeVar("V", str, float)


class FrequentItems(Generic[V]):
    """At most `capacity` values with their counts.

    **Error.** Counts are exact while the stream has at most `capacity` distinct values. After that, a count is too low by at most `error`, which is
    at most n / (capacity + 1) after n values. The most frequent value is therefore found if its count leads by more than `error`. The same batches in
    the same order give the same counts. The bound holds for any batches and merges.

    Source: Misra and Gries, Finding Repeated Elements, 1982; merging as in Agarwal et al., Mergeable Summaries, 2012, section 2.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.error = 0
        """Largest amount by which a count may be too low."""
        self._counts: dict[V, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def update(self, values: Iterable[V], counts: Iterable[int]) -> None:
        """Add distinct values with their counts."""
        for value, count in zip(values, counts, strict=True):
            self._counts[value] = self._counts.get(value, 0) + count
        if len(self._counts) > self.capacity:
            cut = sorted(self._counts.values(), reverse=True)[self.capacity]
            self._counts = {value: count - cut for value, count in self._counts.items() if count > cut}
            self.error += cut

    def merge(self, other: FrequentItems[V]) -> None:
        """Add the values that `other` has seen."""
        self.update(other._counts.keys(), other._counts.values())
        self.error += other.error

    def most_frequent(self) -> V | None:
        """Return the value with the largest count; in a tie, the smallest value. None if there is no value, or if no value is more frequent than
        `error`.
        """
        if not self._counts:
            return None
        largest = max(self._counts.values())
        smallest: V = min(value for value, count in self._counts.items() if count == largest)
        return smallest

    def state(self) -> State:
        """Return error, values as a list of strings or an array of float64, and counts in the same order."""
        values: Any = list(self._counts)
        if values and not isinstance(values[0], str):
            values = np.array(values, np.float64)
        return {"error": self.error, "values": values, "counts": np.array(list(self._counts.values()), np.int64)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the counts. Raises: CorruptStateError."""
        values, counts = take(state, "values", (list, np.ndarray)), take(state, "counts", np.ndarray)
        if len(values) != len(counts):
            raise CorruptStateError(
                "frequent values in the state of preprocessing have no counts; restore a state of this pipeline"
            )
        self.error = take(state, "error", int)
        self._counts = dict(zip(values.tolist() if isinstance(values, np.ndarray) else values, counts.tolist(), strict=True))
