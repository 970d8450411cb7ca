"""Decide when the labels of a stream arrive, by stream time, not by the clock of a machine. A sample is selectable when its label has arrived.

Stream time is the newest timestamp so far. A label with a delay of `delay` seconds arrives when stream time reaches the sample's timestamp plus this
delay. A replay therefore decides like production, for any division into batches.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from modyn.records import Int64Array, SampleBatch, has_label

ReadSamples = Callable[[int, int], SampleBatch]
"""Returns samples of the stream from a position on, at most the requested number."""
_CHUNK: Final = 65_536
"""Number of samples of the stream that are read together after a restart."""


@dataclass(frozen=True, slots=True, eq=False)
class LateBatch(SampleBatch):
    """A batch of a stream with late labels, and the samples of this or earlier batches whose labels arrive together with this batch.

    came: samples in the order in which their labels arrive, (m,). counts: int64 (n + 1,), number of labels that arrive before each position of the
    batch. came_at: int64 (m,), stream time at which each label arrives.
    """

    came: SampleBatch
    counts: Int64Array
    came_at: Int64Array

    @property
    def labelled(self) -> SampleBatch:
        """The samples whose labels arrive with this batch."""
        return self.came

    def num_labelled(self, position: int) -> int:
        """Return the number of labels that arrive with the samples before a position of this batch."""
        return int(self.counts[position])

    def position_with(self, num_labelled: int) -> int:
        """Return the first position of this batch before which `num_labelled` labels have arrived; more than the batch's length if there is none."""
        return int(np.searchsorted(self.counts, num_labelled))

    def slice(self, start: int, stop: int) -> LateBatch:
        """Return samples [start, stop) of this batch, with the labels that arrive together with these samples, as views."""
        counts = self.counts[start : stop + 1]
        first, last = int(counts[0]), int(counts[-1])
        samples = self.keys[start:stop], self.timestamps[start:stop], self.labels[start:stop]
        return LateBatch(*samples, self.came.slice(first, last), counts - first, self.came_at[first:last])


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """Samples that wait for their labels, in the order of their timestamps, with their positions in the stream. samples: None for the samples
    [start, stop) of the stream that are newer than `came_to`; these samples are read when the first of their labels arrives.
    """

    start: int
    stop: int
    came_to: int = 0
    samples: SampleBatch | None = None
    positions: Int64Array | None = None


class LabelClock:
    """Decides which labels arrive with which samples of a stream. Samples without a label never wait here, because storage sends their labels later.

    The clock keeps waiting samples as ranges of the stream, and reads the samples again when their labels arrive. For a stream in the order of time,
    this takes the memory of about two batches.
    """

    def __init__(self, delay: int, read: ReadSamples | None = None) -> None:
        """Args: delay: seconds of stream time. read: reads the stream. None: the clock keeps waiting samples in memory."""
        self._delay = delay
        self._read = read
        self._newest: int | None = None
        self._waiting: list[tuple[int, int, _Chunk]] = []
        """A heap of (smallest timestamp, position of the first sample, samples)."""

    @property
    def first_waiting(self) -> int | None:
        """Position of the first sample that may wait for a label which arrives by stream time; None if there is no such sample."""
        return min((start for _, start, _ in self._waiting), default=None)

    def restore(self, first_waiting: int | None, position: int, newest: int | None) -> None:
        """Continue at `position` of the stream. Samples before `first_waiting` do not wait. Args: newest: stream time at this position."""
        self._newest = newest
        if first_waiting is None or newest is None:
            return
        assert self._read is not None
        came_to = newest - self._delay
        while first_waiting < position:
            samples = self._read(first_waiting, min(_CHUNK, position - first_waiting))
            self._wait(first_waiting, samples, came_to)
            first_waiting += len(samples)

    def take(self, position: int, batch: SampleBatch) -> LateBatch:
        """Return the next samples of the stream, at least one, with the labels that arrive together. Args: position: of the first sample."""
        clock = np.maximum.accumulate(batch.timestamps)
        if self._newest is not None:
            clock = np.maximum(clock, self._newest)
        self._newest = newest = int(clock[-1])
        came_to = newest - self._delay
        at, numbers = position + np.arange(len(batch)), np.arange(len(batch))
        is_due = has_label(batch.labels) & (batch.timestamps <= came_to)
        due = [*self._come(came_to), (_taken(batch, is_due), at[is_due])]
        samples, positions = SampleBatch.concatenate([part for part, _ in due]), np.concatenate([where for _, where in due])
        # Each label arrives with the first sample at which stream time reaches the time of the label, but not before the label's own sample.
        with_sample = np.searchsorted(clock, samples.timestamps + self._delay)
        with_sample = np.maximum(with_sample, positions - position)
        order = np.lexsort((positions, samples.timestamps, with_sample))
        with_sample = with_sample[order]
        counts = np.searchsorted(with_sample, np.append(numbers, len(batch)))
        self._wait(position, batch, came_to)
        columns = batch.keys, batch.timestamps, batch.labels
        return LateBatch(*columns, _taken(samples, order), counts.astype(np.int64), clock[with_sample])

    def _wait(self, position: int, batch: SampleBatch, came_to: int) -> None:
        """Store the samples of a batch whose labels arrive after this batch."""
        waits = np.flatnonzero(has_label(batch.labels) & (batch.timestamps > came_to))
        if not len(waits):
            return
        start, stop = position + int(waits[0]), position + int(waits[-1]) + 1
        if self._read is None:
            self._hold(_taken(batch, waits), position + waits)
        else:
            self._push(int(batch.timestamps[waits].min()), _Chunk(start, stop, came_to))

    def _come(self, came_to: int) -> Iterator[tuple[SampleBatch, Int64Array]]:
        """Yield the waiting samples with timestamps up to `came_to`, whose labels arrive now, and their positions."""
        while self._waiting and self._waiting[0][0] <= came_to:
            chunk = heapq.heappop(self._waiting)[2]
            if chunk.samples is None or chunk.positions is None:
                self._hold(*self._read_again(chunk))
                continue
            number = int(np.searchsorted(chunk.samples.timestamps, came_to, "right"))
            yield chunk.samples.slice(0, number), chunk.positions[:number]
            self._hold(chunk.samples.slice(number, len(chunk.samples)), chunk.positions[number:])

    def _read_again(self, chunk: _Chunk) -> tuple[SampleBatch, Int64Array]:
        assert self._read is not None
        parts, at = list[SampleBatch](), chunk.start
        while at < chunk.stop:
            parts.append(self._read(at, chunk.stop - at))
            at += len(parts[-1])
        samples = SampleBatch.concatenate(parts)
        # The labels of older samples had arrived before the chunk was stored.
        waits = np.flatnonzero(has_label(samples.labels) & (samples.timestamps > chunk.came_to))
        return _taken(samples, waits), chunk.start + waits

    def _hold(self, samples: SampleBatch, positions: Int64Array) -> None:
        """Keep samples in memory until their labels arrive."""
        if len(samples):
            order = np.argsort(samples.timestamps, kind="stable")
            samples, positions = _taken(samples, order), positions[order]
            start, stop = int(positions.min()), int(positions.max()) + 1
            self._push(int(samples.timestamps[0]), _Chunk(start, stop, samples=samples, positions=positions))

    def _push(self, oldest: int, chunk: _Chunk) -> None:
        heapq.heappush(self._waiting, (oldest, chunk.start, chunk))


def _taken(samples: SampleBatch, which: npt.NDArray[Any]) -> SampleBatch:
    return SampleBatch(samples.keys[which], samples.timestamps[which], samples.labels[which])
