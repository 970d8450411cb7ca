"""Labels of live data that storage brings after their samples, until the run has received these samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from modyn.records import BoolArray, Int64Array, Interval, SampleBatch
from modyn.storage.client import LateLabelBatch
from modyn.supervisor.cursor import Cursor
from modyn.supervisor.triggers.label_clock import ReadSamples

_CHUNK: Final = 65_536
"""Samples of a stream that are read together."""


class LateLabelQueue:
    """Takes labels in the order of storage, and gives them to the run once it has received their samples; those of samples that are not in its
    stream are left out, and hold up no other."""

    def __init__(self, interval: Interval, received: Callable[[Int64Array, int], BoolArray]) -> None:
        """Args: interval: that of the run. received: which of the deleted samples with these keys, int64 (n,), none newer than the last sample of the
        run, are among the first samples of its stream, whose number is the second argument."""
        self._interval = interval
        self._received = received
        self._waiting = LateLabelBatch(0, SampleBatch.empty(), np.zeros(0, np.bool_))

    def add(self, batch: LateLabelBatch) -> None:
        """Take the labels after those that were taken before."""
        waiting = self._waiting
        if not len(waiting.samples):
            self._waiting = batch
        else:
            samples = SampleBatch.concatenate([waiting.samples, batch.samples])
            self._waiting = LateLabelBatch(waiting.first, samples, np.concatenate([waiting.deleted, batch.deleted]))

    def take(self, cursor: Cursor) -> tuple[SampleBatch, int] | None:
        """The labels whose samples the run has received, and the number of the first label of storage that is left; None: the first one that waits
        waits for its sample. Args: cursor: where the run stands."""
        keys, timestamps = self._waiting.samples.keys, self._waiting.samples.timestamps
        is_inside = (timestamps >= self._interval.start) & (timestamps < self._interval.end)
        is_newer = keys > (-1 if cursor.last_key is None else cursor.last_key)
        # A sample that was deleted before the run has received it does not come any more.
        waits = is_inside & is_newer & ~self._waiting.deleted
        number = int(waits.argmax()) if waits.any() else len(waits)
        if not number:
            return None
        ready, self._waiting = self._waiting.slice(0, number), self._waiting.slice(number, len(waits))
        is_received = (is_inside & ~is_newer)[:number]
        if len(doubtful := np.flatnonzero(is_received & ready.deleted)):
            is_received[doubtful] = self._received(keys[doubtful], cursor.position)
        found = ready.samples
        return SampleBatch(found.keys[is_received], found.timestamps[is_received], found.labels[is_received]), ready.end


def among(keys: Int64Array, read: ReadSamples, end: int) -> BoolArray:
    """Which of `keys`, int64 (n,), are among the samples [0, end) of a stream that is in the order of keys.

    Args: read: returns samples of the stream. Time: a few looks for each group of keys that lie near each other.
    """
    order = np.argsort(keys)
    wanted, found = keys[order], np.zeros(len(keys), np.bool_)
    number = position = 0
    while number < len(wanted):
        position = _first_from(int(wanted[number]), read, position, end)
        if position == end:
            break
        chunk = read(position, min(_CHUNK, end - position)).keys
        after = int(np.searchsorted(wanted, chunk[-1], "right"))
        found[order[number:after]] = np.isin(wanted[number:after], chunk)
        number, position = after, position + len(chunk)
    return found


def _first_from(key: int, read: ReadSamples, start: int, end: int) -> int:
    """The position in [start, end) of the first sample whose key is at least `key`; `end`: there is none."""
    while start < end:
        middle = (start + end) // 2
        if int(read(middle, 1).keys[0]) < key:
            start = middle + 1
        else:
            end = middle
    return start
