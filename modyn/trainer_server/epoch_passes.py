"""Passes over the same samples, each an epoch of one dataset: one loader serves all of them. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from modyn.dataset.batch import Batch
from modyn.dataset.loader import BatchLoader
from modyn.dataset.order.plan import BatchPosition
from modyn.dataset.trigger_set import TriggerSetDataset


class EpochPasses:
    """Serves the epochs of a dataset in order, one a pass; some may be left out. Starts to load with the first, and then ahead of use."""

    def __init__(self, dataset: TriggerSetDataset, num_workers: int, *, pin_memory: bool) -> None:
        """Args: pin_memory: batches are in page-locked memory."""
        self.num_batches = dataset.num_batches
        """Batches of a pass, empty ones included."""
        self._dataset = dataset
        self._loader = BatchLoader(dataset, num_workers, pin_memory=pin_memory)
        self._batches: Iterator[Batch] | None = None
        self._ahead: list[Batch] = []
        """The first batch of a later epoch, which the pass before has read to find its own end."""

    def close(self) -> None:
        """End the threads and processes that load."""
        self._loader.close()

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch; one whose samples were all deleted does not come. Args: first: batch to begin with, in the first pass."""
        if self._batches is None:
            self._dataset.seek(BatchPosition(epoch, first))
            self._batches = iter(self._loader)
        ahead, self._ahead = self._ahead, []
        for batch in chain(ahead, self._batches):
            if batch.epoch > epoch:
                self._ahead = [batch]
                return
            if batch.epoch == epoch:
                yield batch
                if batch.index == self.num_batches - 1:
                    return
