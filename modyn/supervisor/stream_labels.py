"""Tells the selector of the samples of a run, and of their labels as they come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from modyn.errors import UnavailableError
from modyn.records import BoolArray, Int64Array, RunId, SampleBatch, has_label
from modyn.supervisor.cursor import Cursor
from modyn.supervisor.late_labels import among
from modyn.supervisor.records import RunMode
from modyn.supervisor.triggers.label_clock import LabelClock, LateBatch

if TYPE_CHECKING:
    from modyn.rpc.retry import Retrier
    from modyn.selector.client import SelectorClient
    from modyn.storage.client import NewLabels, StorageClient
    from modyn.supervisor.stream import StreamSource


class StreamLabels:
    """Where each label comes with its sample, which is so until a delay or a sample without one says otherwise, batches pass as they are.

    Which labels come with which samples is a function of the samples, so a run that is resumed tells the selector the same again.
    """

    def __init__(self, run_id: RunId, delay: int, selector: SelectorClient, cursor: Cursor) -> None:
        """Args: delay: seconds of stream time that labels come late. cursor: where the run stands."""
        self._run_id, self._selector = run_id, selector
        self._clock = LabelClock(delay, partial(selector.samples, run_id))
        self._is_late = delay > 0 or cursor.num_waiting > 0 or cursor.next_label > 0
        self._has_begun = False
        """Whether the selector knows that labels come late."""
        self._restored_from: Cursor | None = cursor

    def first(self, mode: RunMode, dataset: str, cursor: Cursor, storage: StorageClient) -> int | None:
        """Return the number of the next label that storage brings after its sample; None: it brings none. Args: cursor: where the run stands."""
        brings = mode is RunMode.PRODUCTION and storage.dataset(dataset).config.holds_records
        return cursor.next_label if brings else None

    def held(
        self, cursor: Cursor, storage: StorageClient, source: StreamSource, retrier: Retrier
    ) -> tuple[SampleBatch, int] | None:
        """The labels that an attempt before has brought to the selector and may have decided with, but that the cursor does not count, and the number
        of the first label of storage after them; None: there are none.

        Args: cursor: where the run stands, which has received all samples that the selector holds.
        """
        if not cursor.num_waiting or source.first_label is None:
            return None
        end = self._selector.inform_labels(self._run_id, cursor.num_labelled, SampleBatch.empty())
        parts, number = list[SampleBatch](), cursor.num_labelled
        while number < end:
            parts.append(self._selector.samples(self._run_id, number, end - number, labelled=True))
            number += len(parts[-1])
        if not parts:
            return None
        return SampleBatch.concatenate(parts), retrier.call(_number_after, int(parts[-1].keys[-1]), storage, source)

    def received(self, keys: Int64Array, position: int) -> BoolArray:
        """Which of the samples with these keys, int64 (n,), are among the first `position` of a live stream."""
        return among(keys, partial(self._selector.samples, self._run_id), position)

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
        before = self._restored_from
        return self._clock.first_waiting if before is None else before.first_waiting

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


def _number_after(key: int, storage: StorageClient, source: StreamSource) -> int:
    """The number of the label of storage that follows the one of sample `key`."""
    with _until_left(storage.new_labels(source.dataset, source.first_label or 0, source.batch_size, source.identity)) as stream:
        for batch in stream:
            if len(found := np.flatnonzero(batch.samples.keys == key)):
                return batch.first + int(found[0]) + 1
    raise UnavailableError(f"storage ended the labels of dataset '{source.dataset}'; `modyn resume` goes on when it is back")


@contextmanager
def _until_left(stream: NewLabels) -> Iterator[NewLabels]:
    try:
        yield stream
    finally:
        stream.cancel()
