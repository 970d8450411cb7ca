"""Inform the selector of a run's samples, and of the labels of these samples when the labels arrive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from modyn.errors import UnavailableError
from modyn.records import BoolArray, Int64Array, SampleBatch, all_labelled
from modyn.supervisor.journal.cursor import Cursor
from modyn.supervisor.journal.records import RunMode
from modyn.supervisor.run.late_labels import among
from modyn.supervisor.triggers.measures.label_clock import LabelClock, LateBatch

if TYPE_CHECKING:
    from modyn.rpc.retry import Retrier
    from modyn.storage.client import NewLabels, StorageClient
    from modyn.supervisor.run.stream import StreamSource
    from modyn.supervisor.services.run_selector import RunSelector


class StreamLabels:
    """Adds to each batch of samples the labels that arrive with the batch. Without a delay, batches are unchanged until the first sample without a
    label.

    The samples alone decide which labels arrive with a batch, so that a resumed run informs the selector in the same way.
    """

    def __init__(self, delay: int, selector: RunSelector, cursor: Cursor) -> None:
        """Args: delay: seconds of stream time by which labels arrive late. cursor: cursor of the run."""
        self._selector = selector
        self._clock = LabelClock(delay, selector.samples)
        self._is_late = delay > 0 or cursor.num_waiting > 0 or cursor.next_label > 0
        self._has_begun = False
        """Whether the selector was informed that labels arrive late."""
        self._restored_from: Cursor | None = cursor
        """Cursor from which the label clock is restored before the first batch with late labels; None afterwards."""

    def first(self, mode: RunMode, dataset: str, cursor: Cursor, storage: StorageClient) -> int | None:
        """Return the number of the next late label of storage; None if storage sends no late labels. Args: cursor: cursor of the run."""
        sends_labels = mode is RunMode.PRODUCTION and storage.dataset(dataset).config.holds_records
        return cursor.next_label if sends_labels else None

    def held(
        self, cursor: Cursor, storage: StorageClient, source: StreamSource, retrier: Retrier
    ) -> tuple[SampleBatch, int] | None:
        """Return the labels that the selector has but the cursor does not count, and the number of storage's next label; None without such labels.

        An earlier attempt of the run has sent these labels to the selector, and policies may have used the labels.

        Args: cursor: cursor of the run, after all samples that the selector has received.
        """
        if not cursor.num_waiting or source.first_label is None:
            return None
        end = self._selector.inform_labels(cursor.num_labelled, SampleBatch.empty())
        parts, number = list[SampleBatch](), cursor.num_labelled
        while number < end:
            parts.append(self._selector.samples(number, end - number, labelled=True))
            number += len(parts[-1])
        if not parts:
            return None
        return SampleBatch.concatenate(parts), retrier.call(_number_after, int(parts[-1].keys[-1]), storage, source)

    def received(self, keys: Int64Array, position: int) -> BoolArray:
        """Return which of the samples with these keys, int64 (n,), are among the first `position` samples of a live stream: bool (n,)."""
        return among(keys, self._selector.samples, position)

    def come(self, cursor: Cursor, labelled: SampleBatch) -> LateBatch:
        """Inform the selector of labels that arrive between two samples. Return these labels without samples. Args: cursor: cursor of the run."""
        assert cursor.max_timestamp is not None, "labels come after their samples"
        self._selector.inform_labels(cursor.num_labelled, labelled)
        none, number = SampleBatch.empty(), len(labelled)
        came_at = np.full(number, cursor.max_timestamp)
        return LateBatch(none.keys, none.timestamps, labelled.labels[:0], labelled, np.array([number]), came_at)

    @property
    def first_waiting(self) -> int | None:
        """See `LabelClock.first_waiting`."""
        before = self._restored_from
        return self._clock.first_waiting if before is None else before.first_waiting

    def inform(self, cursor: Cursor, batch: SampleBatch) -> SampleBatch:
        """Inform the selector of the next samples and of the labels that arrive with these samples; return both. Args: cursor: cursor of the run."""
        if not self._is_late and all_labelled(batch.labels):
            self._selector.inform(cursor.position, batch)
            return batch
        if self._restored_from is not None:
            self._clock.restore(self._restored_from.first_waiting, cursor.position, cursor.max_timestamp)
            self._restored_from = None
        if not self._has_begun:
            # This empty call tells the selector, before the samples, that labels arrive late. The selector then copies only samples with labels.
            self._selector.inform_labels(cursor.num_labelled, SampleBatch.empty())
        self._is_late = self._has_begun = True
        self._selector.inform(cursor.position, batch)
        late = self._clock.take(cursor.position, batch)
        self._selector.inform_labels(cursor.num_labelled, late.came)
        return late


def _number_after(key: int, storage: StorageClient, source: StreamSource) -> int:
    """Return the number of the label of storage after the label of sample `key`."""
    with _cancelled_at_end(
        storage.new_labels(source.dataset, source.first_label or 0, source.batch_size, source.identity)
    ) as stream:
        for batch in stream:
            if len(found := np.flatnonzero(batch.samples.keys == key)):
                return batch.first + int(found[0]) + 1
    raise UnavailableError(f"storage ended the labels of dataset '{source.dataset}'; `modyn resume` continues when it is back")


@contextmanager
def _cancelled_at_end(stream: NewLabels) -> Iterator[NewLabels]:
    try:
        yield stream
    finally:
        stream.cancel()
