"""List the existing samples of a source, from storage and the selector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from modyn._core import KeySet
from modyn.errors import InvalidArgumentError
from modyn.evaluator.records import AtPositions, InIntervals, OfKeys, SampleSource
from modyn.records import Int64Array, Interval, RunId, SampleBatch, StreamWindow
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient


@dataclass(frozen=True, slots=True)
class SampleLister:
    """Lists the samples of a source, each sample once, without deleted samples. The deleted keys of a run's dataset are read once."""

    dataset: str
    identity: str
    """Identity of the expected registration of the dataset; NotFoundError if the dataset has another identity. Empty accepts any identity."""
    storage: StorageClient
    selector: SelectorClient | None
    """Client of the selector. Without a client (None), requests for positions are refused."""
    at_most: int
    """Number of samples in a batch."""
    registered: dict[RunId, tuple[str, str]] = field(default_factory=dict)
    """Cached results of `SelectorClient.dataset` by run. A result never changes, because ids of runs are not reused."""
    _deleted: dict[RunId, KeySet] = field(default_factory=dict, init=False)

    def count(self, source: SampleSource) -> int:
        """Return the approximate number of samples. The number includes deleted samples of keys and positions, and samples of a window whose
        timestamps are outside the window's times.
        """
        match source:
            case InIntervals(intervals):
                counted = (self.storage.count_samples(self.dataset, i, identity=self.identity) for i in union(intervals))
                return sum(counted)
            case OfKeys(keys):
                return len(np.unique(keys))
            case AtPositions(_, windows):
                return sum(positions.end - positions.start for positions in _positions(windows))

    def batches(self, source: SampleSource) -> Iterator[SampleBatch]:
        """Yield the samples in batches. Raises: NotFoundError: the dataset, the run or a key does not exist. InvalidArgumentError: the run uses
        another dataset."""
        match source:
            case InIntervals(intervals):
                for interval in union(intervals):
                    yield from self.storage.samples_in_interval(self.dataset, interval, self.at_most, identity=self.identity)
            case OfKeys(keys):
                yield from self._of_keys(np.unique(keys))
            case AtPositions(run_id, windows):
                yield from self._at_positions(run_id, windows)

    def _of_keys(self, keys: Int64Array) -> Iterator[SampleBatch]:
        left = keys[~self.storage.deleted_keys(self.dataset, self.identity).contains(keys)]
        for first in range(0, len(left), self.at_most):
            yield self.storage.samples_by_key(self.dataset, left[first : first + self.at_most], self.identity)

    def _at_positions(self, run_id: RunId, windows: Sequence[StreamWindow]) -> Iterator[SampleBatch]:
        for positions, batch in self.at_positions(run_id, windows):
            wanted = np.zeros(len(batch), np.bool_)
            for window in windows:
                wanted |= is_inside(window, positions, batch.timestamps)
            yield SampleBatch(batch.keys[wanted], batch.timestamps[wanted], batch.labels[wanted])

    def at_positions(self, run_id: RunId, windows: Sequence[StreamWindow]) -> Iterator[tuple[Int64Array, SampleBatch]]:
        """Yield the existing samples of the windows in batches, each sample once and in stream order, with their positions, int64 (n,). The times of
        the windows are ignored. The positions of all windows must refer to one stream: all samples, or the labelled samples. Raises: see `batches`.
        """
        if self.selector is None:
            raise InvalidArgumentError(
                "positions of a run's stream need a selector, which is missing here; give keys or intervals"
            )
        if run_id not in self._deleted:
            self._deleted[run_id] = self._deleted_of(self.selector, run_id)
        deleted = self._deleted[run_id]
        # The unpacking fails if the windows differ in `labelled`.
        (labelled,) = {window.labelled for window in windows} or {False}
        for positions in _positions(windows):
            position = positions.start
            while position < positions.end:
                batch = self.selector.samples(run_id, position, min(self.at_most, positions.end - position), labelled=labelled)
                if not len(batch):
                    raise InvalidArgumentError(
                        f"run {run_id} has {position} samples, but positions up to {positions.end} were requested"
                    )
                left = np.flatnonzero(~deleted.contains(batch.keys))
                yield position + left, SampleBatch(batch.keys[left], batch.timestamps[left], batch.labels[left])
                # The next read begins after all samples of this batch, deleted ones included.
                position += len(batch)

    def _deleted_of(self, selector: SelectorClient, run_id: RunId) -> KeySet:
        """Return the deleted keys of the dataset of the run."""
        if run_id not in self.registered:
            self.registered[run_id] = selector.dataset(run_id)
        dataset, identity = self.registered[run_id]
        if dataset != self.dataset or (self.identity and identity not in ("", self.identity)):
            raise InvalidArgumentError(
                f"the positions belong to run {run_id}, which uses dataset '{dataset}' as it was registered then, not dataset '{self.dataset}' as it "
                "is now; name the dataset of the run"
            )
        return self.storage.deleted_keys(self.dataset, self.identity)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Join intervals that overlap or touch, drop empty intervals, and return the remaining intervals in order.

    >>> union([Interval(5, 9), Interval(0, 3), Interval(3, 6), Interval(7, 7)])
    [Interval(start=0, end=9)]
    """
    merged: list[Interval] = []
    for interval in sorted((i for i in intervals if i.start < i.end), key=lambda i: (i.start, i.end)):
        if merged and interval.start <= merged[-1].end:
            merged[-1] = Interval(merged[-1].start, max(merged[-1].end, interval.end))
        else:
            merged.append(interval)
    return merged


def _positions(windows: Iterable[StreamWindow]) -> list[Interval]:
    """Return disjoint ranges of positions that cover all windows."""
    return union(Interval(window.start, window.stop) for window in windows)


def is_inside(window: StreamWindow, positions: Int64Array, timestamps: Int64Array) -> NDArray[np.bool_]:
    """Return for each sample whether the sample is in the window, bool (n,). Args: positions, timestamps: int64 (n,)."""
    times = window.times
    inside = (positions >= window.start) & (positions < window.stop)
    inside &= (timestamps >= times.start) & (timestamps < times.end)
    return inside
