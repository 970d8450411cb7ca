"""Queue late labels of live data until the run has received the samples of these labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from modyn.records import BoolArray, Int64Array, Interval, SampleBatch
from modyn.storage.client import LateLabelBatch
from modyn.supervisor.journal.cursor import Cursor
from modyn.supervisor.triggers.measures.label_clock import ReadSamples

_CHUNK: Final = 65_536
"""Number of samples of a stream that are read together."""


class LateLabelQueue:
    """Takes labels in the order of storage, and passes each label to the run after the run has received the sample of the label. Labels of samples
    outside the run's stream are left out and delay no other labels.
    """

    def __init__(self, interval: Interval, received: Callable[[Int64Array, int], BoolArray]) -> None:
        """Args: interval: interval of the run. received: called with the keys of deleted samples, int64 (n,), and with a position; returns which of
        these samples are before this position in the run's stream. No key is newer than the last sample of the run.
        """
        self._interval = interval
        self._received = received
        self._waiting = LateLabelBatch(0, SampleBatch.empty(), np.zeros(0, np.bool_))

    def add(self, batch: LateLabelBatch) -> None:
        """Queue the next labels of storage."""
        waiting = self._waiting
        if not len(waiting.samples):
            self._waiting = batch
        else:
            samples = SampleBatch.concatenate([waiting.samples, batch.samples])
            self._waiting = LateLabelBatch(waiting.first, samples, np.concatenate([waiting.deleted, batch.deleted]))

    def take(self, cursor: Cursor) -> tuple[SampleBatch, int] | None:
        """Return the labels whose samples the run has received, and the number of the first remaining label of storage. Return None while the first
        label waits for its sample. Args: cursor: cursor of the run.
        """
        keys, timestamps = self._waiting.samples.keys, self._waiting.samples.timestamps
        is_inside = (timestamps >= self._interval.start) & (timestamps < self._interval.end)
        is_newer = keys > (-1 if cursor.last_key is None else cursor.last_key)
        # A sample that was deleted before the run received the sample never arrives.
        waits = is_inside & is_newer & ~self._waiting.deleted
        number = int(waits.argmax()) if waits.any() else len(waits)
        if not number:
            return None
        ready, self._waiting = self._waiting.slice(0, number), self._waiting.slice(number, len(waits))
        is_received = (is_inside & ~is_newer)[:number]
        # A sample with an old key may have been deleted before or after the run received the sample. Only the stream shows which.
        if len(doubtful := np.flatnonzero(is_received & ready.deleted)):
            is_received[doubtful] = self._received(keys[doubtful], cursor.position)
        found = ready.samples
        return SampleBatch(found.keys[is_received], found.timestamps[is_received], found.labels[is_received]), ready.end


def among(keys: Int64Array, read: ReadSamples, end: int) -> BoolArray:
    """Return which of `keys`, int64 (n,), are among the samples [0, end) of a stream in the order of keys: bool (n,).

    Args: read: returns samples of the stream; called a few times for each group of neighbouring keys.
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
    """Return the position in [start, end) of the first sample whose key is at least `key`; `end` if no sample has such a key."""
    while start < end:
        middle = (start + end) // 2
        if int(read(middle, 1).keys[0]) < key:
            start = middle + 1
        else:
            end = middle
    return start
