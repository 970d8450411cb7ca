"""Make batches of keys that are named batch by batch, in a process of its own or in that which uses them. In workers only: imports torch."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import closing
from typing import Generic, TypeVar

import numpy as np
from torch.utils.data import Dataset

from modyn.dataset.batch import Batch
from modyn.dataset.chunks import ReadOptions
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import PayloadReader
from modyn.dataset.order.plan import BatchSlice, PartitionRead
from modyn.dataset.processes import ProcessLimits
from modyn.dataset.reader import BatchReader, Decoder
from modyn.dataset.sample_cache import SampleCache
from modyn.errors import ModynError
from modyn.records import KeysAndWeights

Order = TypeVar("Order")
"""Names a batch."""


class BatchMaker(Dataset[Batch | ModynError], Generic[Order]):
    """Opens what it reads from with the first batch, in the process that makes it. An item is the batch of an order, or the error that it met.

    Args: limits: of the process; None: it is that of the training.
    """

    def __init__(self, config: DataConfig, options: ReadOptions, limits: ProcessLimits | None) -> None:
        self._config, self._options, self._limits = config, options, limits
        self._opened: tuple[PayloadReader, Decoder] | None = None
        self._readers: set[BatchReader] = set()
        """Those that read now. Single operations: `stop` may be called by another thread."""
        self._is_stopped = False

    def __getitem__(self, order: Order) -> Batch | ModynError:
        try:
            return self.make(order)
        except ModynError as error:
            return error

    @abstractmethod
    def make(self, order: Order) -> Batch:
        """Make the batch of an order. Raises ModynError."""

    @abstractmethod
    def connect(self) -> PayloadReader:
        """Open what is read from. Called once, by the process that reads."""

    def stop(self) -> None:
        """End, from any thread, what another one reads."""
        self._is_stopped = True
        for reader in list(self._readers):
            reader.stop()

    def open(self) -> tuple[PayloadReader, Decoder]:
        """What is read from, and what decodes."""
        if self._opened is None:
            if self._limits is not None:
                self._limits.impose()
            payloads = self.connect()
            self._opened = payloads, Decoder.made_for(self._config, payloads, self._options)
        return self._opened

    def read(self, samples: KeysAndWeights, epoch: int, index: int, cache: SampleCache | None) -> Batch:
        """Read samples, in any order, as batch (epoch, index). Returns them in that order."""
        # In stored order, which is how samples are read fastest; the rows say at which place of the batch each is.
        stored = np.argsort(samples.keys, kind="stable")
        partition = KeysAndWeights(samples.keys[stored], samples.weights[stored])
        whole = BatchSlice(epoch, index, 0, len(stored), last=True)
        reads = iter([PartitionRead(0, np.argsort(stored), (whole,))])
        payloads, decoder = self.open()
        reader = BatchReader(reads, lambda _: partition, payloads, self._config, self._options, decoder, cache)
        self._readers.add(reader)
        if self._is_stopped:
            reader.stop()
        try:
            with closing(reader.batches(0)) as batches:
                (batch,) = batches
        finally:
            self._readers.discard(reader)
        return batch
