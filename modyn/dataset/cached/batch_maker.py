"""Make batches from lists of keys, in a separate process or in the process that uses the batches. Only workers import this module, because it imports
torch."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import closing
from typing import Generic, TypeVar

import numpy as np
from torch.utils.data import Dataset

from modyn.dataset.batch import Batch
from modyn.dataset.cached.sample_cache import SampleCache
from modyn.dataset.chunks import ReadOptions
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import PayloadReader
from modyn.dataset.order.batch_plan import BatchSlice, PartitionRead
from modyn.dataset.processes import ProcessLimits
from modyn.dataset.reader import BatchReader, Decoder
from modyn.errors import ModynError
from modyn.records import KeysAndWeights

Order = TypeVar("Order")
"""Type of the description of a batch that is to be made."""


class BatchMaker(Dataset[Batch | ModynError], Generic[Order]):
    """A dataset whose item `order` is the batch of this order, or the error of making this batch. The first batch opens the connections, in the
    process that makes batches.

    Args: limits: limits of the process; None in the process of the training.
    """

    def __init__(self, config: DataConfig, options: ReadOptions, limits: ProcessLimits | None) -> None:
        self._config, self._options, self._limits = config, options, limits
        self._opened: tuple[PayloadReader, Decoder] | None = None
        self._readers: set[BatchReader] = set()
        """Readers in use. Only atomic operations change the set, because another thread may call `stop`."""
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
        """Open the connections. The process that reads calls this once."""

    def stop(self) -> None:
        """Cancel the read of another thread. Any thread may call this."""
        self._is_stopped = True
        for reader in list(self._readers):
            reader.stop()

    def open(self) -> tuple[PayloadReader, Decoder]:
        """Return the payloads and the decoder. The first call opens them."""
        if self._opened is None:
            if self._limits is not None:
                self._limits.impose()
            payloads = self.connect()
            self._opened = payloads, Decoder.made_for(self._config, payloads, self._options)
        return self._opened

    def read(self, samples: KeysAndWeights, epoch: int, index: int, cache: SampleCache | None) -> Batch:
        """Read samples as batch (epoch, index). Returns them in the order of the keys."""
        # Reading in stored order is fastest. Row i is the position of the batch's sample i in stored order.
        stored = np.argsort(samples.keys, kind="stable")
        partition = KeysAndWeights(samples.keys[stored], samples.weights[stored])
        whole = BatchSlice(epoch, index, 0, len(stored), last=True)
        reads = iter([PartitionRead(0, np.argsort(stored), (whole,))])
        payloads, decoder = self.open()
        reader = BatchReader(reads, lambda _: partition, payloads, self._config, self._options, decoder, cache)
        self._readers.add(reader)
        # `stop` may have run before it could see this reader.
        if self._is_stopped:
            reader.stop()
        try:
            with closing(reader.batches(0)) as batches:
                (batch,) = batches
        finally:
            self._readers.discard(reader)
        return batch
