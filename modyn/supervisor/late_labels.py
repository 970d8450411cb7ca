"""Labels of live data that storage brings after their samples, until the run has received these samples."""

from __future__ import annotations

from modyn.records import Interval, SampleBatch
from modyn.storage.client import LateLabelBatch
from modyn.supervisor.cursor import Cursor


class LateLabelQueue:
    """Takes labels in the order of storage, and gives them to the run once it has received their samples; those of samples that are not in its
    stream are left out."""

    def __init__(self, interval: Interval, exactly: int = 0) -> None:
        """Args: interval: that of the run. exactly: labels that the selector holds and the cursor does not count: an attempt before has decided with
        these, so they are given first, by themselves."""
        self._interval = interval
        self._exactly = exactly
        self._waiting = LateLabelBatch(0, SampleBatch.empty())

    def add(self, batch: LateLabelBatch) -> None:
        """Take the labels after those that were taken before."""
        waiting = self._waiting
        if not len(waiting.samples):
            self._waiting = batch
        else:
            self._waiting = LateLabelBatch(waiting.first, SampleBatch.concatenate([waiting.samples, batch.samples]))

    def take(self, cursor: Cursor) -> tuple[SampleBatch, int] | None:
        """The labels whose samples the run has received, at least one, and the number of the first label of storage that is left; None: there are
        none. Args: cursor: where the run stands."""
        waiting, last_key = self._waiting, -1 if cursor.last_key is None else cursor.last_key
        is_ahead = waiting.samples.keys > last_key
        number = int(is_ahead.argmax()) if is_ahead.any() else len(is_ahead)
        if not number:
            return None
        ready = waiting.samples.slice(0, number)
        inside = (ready.timestamps >= self._interval.start) & (ready.timestamps < self._interval.end)
        if self._exactly:
            if int(inside.sum()) < self._exactly:
                return None
            number = int(inside.nonzero()[0][self._exactly - 1]) + 1
            ready, inside, self._exactly = ready.slice(0, number), inside[:number], 0
        self._waiting = LateLabelBatch(waiting.first + number, waiting.samples.slice(number, len(waiting.samples)))
        found = SampleBatch(ready.keys[inside], ready.timestamps[inside], ready.labels[inside])
        return found, waiting.first + number
