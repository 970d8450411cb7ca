"""What a fake storage pushes: new samples, and labels that come after their samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from modyn.records import SampleBatch
from modyn.storage.client import LateLabelBatch, NewLabels, NewSamples

if TYPE_CHECKING:
    from modyn.testing.fake_storage import FakeStorage


class FakeNewSamples(NewSamples):
    """The pushed stream of a FakeStorage."""

    def __init__(self, storage: FakeStorage, name: str, first_key: int, batch_size: int) -> None:
        """Args: name: of the dataset. batch_size: most samples of a batch."""
        self._storage, self._name, self._next, self._batch_size = storage, name, first_key, batch_size
        self._stopped = False

    def __next__(self) -> SampleBatch:
        with self._storage.arrived:
            while not self._stopped:
                dataset = self._storage.find(self._name)
                stop = min(len(dataset.timestamps), self._next + self._batch_size)
                keys = np.asarray([key for key in range(self._next, stop) if key not in dataset.deleted], np.int64)
                self._next = max(stop, self._next)
                if len(keys):
                    return dataset.batch(keys, end_label=0)
                if stop >= len(dataset.timestamps):
                    self._storage.arrived.wait()
        raise StopIteration

    def cancel(self) -> None:
        """End the stream, also for a thread that waits for its next batch."""
        with self._storage.arrived:
            self._stopped = True
            self._storage.arrived.notify_all()


class FakeNewLabels(NewLabels):
    """The pushed labels of a FakeStorage."""

    def __init__(self, storage: FakeStorage, name: str, first: int, batch_size: int) -> None:
        """Args: name: of the dataset. batch_size: most labels of a batch."""
        self._storage, self._name, self._next, self._batch_size = storage, name, first, batch_size
        self._stopped = False

    def __next__(self) -> LateLabelBatch:
        with self._storage.arrived:
            while not self._stopped:
                dataset = self._storage.find(self._name)
                keys = np.array(list(dataset.late)[self._next : self._next + self._batch_size], np.int64)
                if len(keys):
                    found = LateLabelBatch(self._next, dataset.batch(keys))
                    self._next = found.end
                    return found
                self._storage.arrived.wait()
        raise StopIteration

    def cancel(self) -> None:
        """End the stream, also for a thread that waits for its next batch."""
        with self._storage.arrived:
            self._stopped = True
            self._storage.arrived.notify_all()
