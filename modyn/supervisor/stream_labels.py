"""Tells the selector of the samples of a run, and of their labels as they come."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from modyn.records import RunId, SampleBatch, has_label
from modyn.supervisor.cursor import Cursor
from modyn.supervisor.label_clock import LabelClock, LateBatch

if TYPE_CHECKING:
    from modyn.selector.client import SelectorClient


class StreamLabels:
    """Where each label comes with its sample, which is so until a delay or a sample without one says otherwise, batches pass as they are.

    Which labels come with which samples is a function of the samples, so a run that is resumed tells the selector the same again.
    """

    def __init__(self, run_id: RunId, delay: int, selector: SelectorClient, cursor: Cursor) -> None:
        """Args: delay: seconds of stream time that labels come late. cursor: where the run stands."""
        self._run_id, self._selector = run_id, selector
        self._clock = LabelClock(delay, partial(selector.samples, run_id))
        self._is_late = delay > 0 or cursor.num_waiting > 0
        self._has_begun = False
        """Whether the selector knows that labels come late."""
        self._restored_from: Cursor | None = cursor

    def num_held(self, cursor: Cursor) -> int:
        """Labels that the selector holds and the cursor does not count. Args: cursor: where the run stands, which has received all that is held."""
        if not cursor.num_waiting:
            return 0
        return self._selector.inform_labels(self._run_id, cursor.num_labelled, SampleBatch.empty()) - cursor.num_labelled

    def come(self, cursor: Cursor, labelled: SampleBatch) -> LateBatch:
        """Bring labels that come between two samples to the selector; return them with no samples. Args: cursor: where the run stands."""
        assert cursor.max_timestamp is not None, "labels come after their samples"
        self._selector.inform_labels(self._run_id, cursor.num_labelled, labelled)
        none, number = SampleBatch.empty(), len(labelled)
        came_at = np.full(number, cursor.max_timestamp)
        return LateBatch(none.keys, none.timestamps, labelled.labels[:0], labelled, np.array([number]), came_at)

    @property
    def first_waiting(self) -> int | None:
        """See `LabelClock.first_waiting`."""
        return self._clock.first_waiting

    def inform(self, cursor: Cursor, batch: SampleBatch) -> SampleBatch:
        """Bring the next samples to the selector, with the labels that come with them; return them with these. Args: cursor: where the run stands."""
        if not self._is_late and has_label(batch.labels).all():
            self._selector.inform(self._run_id, cursor.position, batch)
            return batch
        if self._restored_from is not None:
            self._clock.restore(self._restored_from.first_waiting, cursor.position, cursor.max_timestamp)
            self._restored_from = None
        if not self._has_begun:
            # Before the samples: rows of a table are copied from those with labels alone.
            self._selector.inform_labels(self._run_id, cursor.num_labelled, SampleBatch.empty())
        self._is_late = self._has_begun = True
        self._selector.inform(self._run_id, cursor.position, batch)
        late = self._clock.take(cursor.position, batch)
        self._selector.inform_labels(self._run_id, cursor.num_labelled, late.came)
        return late
