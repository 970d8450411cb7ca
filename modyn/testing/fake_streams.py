"""Streams of a fake storage: new samples, and labels that arrive after the samples."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from modyn.records import SampleBatch
from modyn.rpc.retry import ResumingStream
from modyn.storage.client import LateLabelBatch
from modyn.storage.index.late_labels import check_late_labels
from modyn.testing.held_dataset import HeldDataset

T = TypeVar("T")


class _Pushed(ResumingStream[T, int]):
    """A stream of batches of a FakeStorage, which waits for new rows."""

    def __init__(self, arrived: threading.Condition, dataset: Callable[[], HeldDataset], first: int, batch_size: int) -> None:
        """Args: arrived: condition that protects the dataset, and is notified of new rows. first: number of the first row. batch_size: largest number
        of rows of a batch."""
        self._arrived, self._dataset, self._next, self._batch_size = arrived, dataset, first, batch_size
        self._stopped = False

    def __next__(self) -> T:
        with self._arrived:
            while not self._stopped:
                if (batch := self._take(self._dataset())) is not None:
                    return batch
                self._arrived.wait()  # New rows or `cancel` end this wait.
        raise StopIteration

    @abstractmethod
    def _take(self, dataset: HeldDataset) -> T | None:
        """Return the next batch; None if there are no new rows."""

    def cancel(self) -> None:
        """End the stream, and wake a thread that waits for its next batch."""
        with self._arrived:
            self._stopped = True
            self._arrived.notify_all()


class FakeNewSamples(_Pushed[SampleBatch]):
    """The stream of new samples of a FakeStorage. It begins at the key `first`."""

    def _take(self, dataset: HeldDataset) -> SampleBatch | None:
        while self._next < (end := len(dataset.timestamps)):
            first, self._next = self._next, min(end, self._next + self._batch_size)
            keys = np.asarray([key for key in range(first, self._next) if key not in dataset.deleted], np.int64)
            if len(keys):
                return dataset.batch(keys, end_label=0)
        return None


class FakeNewLabels(_Pushed[LateLabelBatch]):
    """The stream of new labels of a FakeStorage. It begins at the label with the number `first`."""

    def _take(self, dataset: HeldDataset) -> LateLabelBatch | None:
        check_late_labels(dataset.config.name, self._next, len(dataset.late))
        keys = np.array(list(dataset.late)[self._next : self._next + self._batch_size], np.int64)
        if not len(keys):
            return None
        found = LateLabelBatch(self._next, dataset.batch(keys), np.isin(keys, list(dataset.deleted)))
        self._next = found.end
        return found
