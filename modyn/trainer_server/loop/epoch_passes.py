"""Passes over the same samples. Each pass is an epoch of one dataset, and one loader serves all passes. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from modyn.dataset.batch import Batch
from modyn.dataset.loader import BatchLoader
from modyn.dataset.order.batch_plan import BatchPosition
from modyn.dataset.trigger_set import TriggerSetDataset


class EpochPasses:
    """Serves the epochs of a dataset in order, one epoch in each pass. Epochs may be skipped. The first pass starts the prefetching loader."""

    def __init__(self, dataset: TriggerSetDataset, num_workers: int, *, pin_memory: bool) -> None:
        """Args: pin_memory: put batches into page-locked memory."""
        self.num_batches = dataset.num_batches
        """Number of batches in a pass, including empty batches."""
        self._dataset = dataset
        self._loader = BatchLoader(dataset, num_workers, pin_memory=pin_memory)
        self._batches: Iterator[Batch] | None = None
        self._ahead: list[Batch] = []
        """The first batch of a later epoch, read by the previous pass to detect its own end."""

    def close(self) -> None:
        """End the threads and processes of the loader."""
        self._loader.close()

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, without empty batches. Args: first: number of the first batch; only the first pass uses it."""
        if self._batches is None:
            self._dataset.seek(BatchPosition(epoch, first))
            self._batches = iter(self._loader)
        ahead, self._ahead = self._ahead, []
        for batch in chain(ahead, self._batches):
            if batch.epoch > epoch:
                # This batch is the first batch of a later epoch, and is kept for the next call.
                self._ahead = [batch]
                return
            if batch.epoch == epoch:
                yield batch
                if batch.index == self.num_batches - 1:
                    return
