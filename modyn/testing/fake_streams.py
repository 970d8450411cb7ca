"""What a fake storage pushes: new samples, and labels that come after their samples."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from modyn.records import SampleBatch
from modyn.storage.client import LateLabelBatch, NewLabels, NewSamples
from modyn.storage.index.late_labels import check_late_labels
from modyn.testing.held_dataset import HeldDataset


class FakeNewSamples(NewSamples):
    """The pushed stream of a FakeStorage."""

    def __init__(self, arrived: threading.Condition, dataset: Callable[[], HeldDataset], first_key: int, batch_size: int) -> None:
        """Args: arrived: guards the dataset, and is notified of new samples. batch_size: most samples of a batch."""
        self._arrived, self._dataset, self._next, self._batch_size = arrived, dataset, first_key, batch_size
        self._stopped = False

    def __next__(self) -> SampleBatch:
        with self._arrived:
            while not self._stopped:
                dataset = self._dataset()
                stop = min(len(dataset.timestamps), self._next + self._batch_size)
                keys = np.asarray([key for key in range(self._next, stop) if key not in dataset.deleted], np.int64)
                self._next = max(stop, self._next)
                if len(keys):
                    return dataset.batch(keys, end_label=0)
                if stop >= len(dataset.timestamps):
                    self._arrived.wait()
        raise StopIteration

    def cancel(self) -> None:
        """End the stream, also for a thread that waits for its next batch."""
        with self._arrived:
            self._stopped = True
            self._arrived.notify_all()


class FakeNewLabels(NewLabels):
    """The pushed labels of a FakeStorage."""

    def __init__(self, arrived: threading.Condition, dataset: Callable[[], HeldDataset], first: int, batch_size: int) -> None:
        """Args: arrived: guards the dataset, and is notified of new labels. batch_size: most labels of a batch."""
        self._arrived, self._dataset, self._next, self._batch_size = arrived, dataset, first, batch_size
        self._stopped = False

    def __next__(self) -> LateLabelBatch:
        with self._arrived:
            while not self._stopped:
                dataset = self._dataset()
                check_late_labels(dataset.config.name, self._next, len(dataset.late))
                keys = np.array(list(dataset.late)[self._next : self._next + self._batch_size], np.int64)
                if len(keys):
                    found = LateLabelBatch(self._next, dataset.batch(keys))
                    self._next = found.end
                    return found
                self._arrived.wait()
        raise StopIteration

    def cancel(self) -> None:
        """End the stream, also for a thread that waits for its next batch."""
        with self._arrived:
            self._stopped = True
            self._arrived.notify_all()
