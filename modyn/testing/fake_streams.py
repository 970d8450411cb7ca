"""What a fake storage pushes: new samples, and labels that come after their samples."""

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
    """A stream of batches of a FakeStorage, which waits for what arrives next."""

    def __init__(self, arrived: threading.Condition, dataset: Callable[[], HeldDataset], first: int, batch_size: int) -> None:
        """Args: arrived: guards the dataset, and is notified of what is new. first: number of the first row. batch_size: most rows of a batch."""
        self._arrived, self._dataset, self._next, self._batch_size = arrived, dataset, first, batch_size
        self._stopped = False

    def __next__(self) -> T:
        with self._arrived:
            while not self._stopped:
                if (batch := self._take(self._dataset())) is not None:
                    return batch
                self._arrived.wait()
        raise StopIteration

    @abstractmethod
    def _take(self, dataset: HeldDataset) -> T | None:
        """The next batch; None: there is nothing new."""

    def cancel(self) -> None:
        """End the stream, also for a thread that waits for its next batch."""
        with self._arrived:
            self._stopped = True
            self._arrived.notify_all()


class FakeNewSamples(_Pushed[SampleBatch]):
    """The pushed stream of a FakeStorage, from a key on."""

    def _take(self, dataset: HeldDataset) -> SampleBatch | None:
        while self._next < (end := len(dataset.timestamps)):
            first, self._next = self._next, min(end, self._next + self._batch_size)
            keys = np.asarray([key for key in range(first, self._next) if key not in dataset.deleted], np.int64)
            if len(keys):
                return dataset.batch(keys, end_label=0)
        return None


class FakeNewLabels(_Pushed[LateLabelBatch]):
    """The pushed labels of a FakeStorage, from a number on."""

    def _take(self, dataset: HeldDataset) -> LateLabelBatch | None:
        check_late_labels(dataset.config.name, self._next, len(dataset.late))
        keys = np.array(list(dataset.late)[self._next : self._next + self._batch_size], np.int64)
        if not len(keys):
            return None
        found = LateLabelBatch(self._next, dataset.batch(keys), np.isin(keys, list(dataset.deleted)))
        self._next = found.end
        return found
