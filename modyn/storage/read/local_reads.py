"""Local reads, the short cut past the payload server: a reader on storage's machine looks samples up and reads them by itself.

Only where locality is proven, see `modyn.storage.read.locality`. The publication is looked at again for each request, so a local reader sees
deletions and new samples as the service's clients do. Storage need not run meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from modyn.config.system import ROW_GROUP_CACHE_BYTES
from modyn.errors import ConfigError, InvalidArgumentError, NotFoundError
from modyn.records import Int64Array
from modyn.storage.model.samples import OnMissing
from modyn.storage.read.locality import ShortCutOffer
from modyn.storage.read.payload_reader import LocatedSamples, locate
from modyn.storage.read.record_readers import RecordReaders
from modyn.storage.read.snapshot import DatasetSnapshot, PublishedDataset


class LocalPayloads:
    """Payloads of one dataset by key, read in this process. May be used by several threads at once, not across a fork."""

    def __init__(
        self,
        dataset: str,
        ask: Callable[[str], ShortCutOffer],
        num_threads: int = 1,
        row_group_cache_bytes: int = ROW_GROUP_CACHE_BYTES,
    ) -> None:
        """Open `dataset`, whose offer `ask` gets from storage: now, and again if storage moves the dataset.

        Raises: ConfigError: why it cannot be read here. NotFoundError: there is no such dataset. What `ask` raises.
        """
        self._dataset = dataset
        self._ask = ask
        self._readers = RecordReaders(num_threads, row_group_cache_bytes)
        self._renewing = threading.Lock()
        """One thread asks storage again, the others wait for its answer."""
        self._published = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the threads and files that reading uses."""
        self._readers.close()

    def locate(self, dataset: str, keys: Int64Array, on_missing: OnMissing = "raise") -> LocatedSamples:
        """Where the samples of `keys` are, in the order asked, duplicates included; `LocatedSamples.take` reads them. Missing keys as for
        `PayloadClient.fetch`."""
        if dataset != self._dataset:
            raise InvalidArgumentError(
                f"these are the payloads of dataset '{self._dataset}', not of '{dataset}'; open others for it"
            )
        return locate(self.snapshot, np.ascontiguousarray(keys, np.int64), on_missing)

    def snapshot(self) -> DatasetSnapshot:
        """The dataset as it is now. Raises NotFoundError if it was deleted."""
        published = self._published
        try:
            return published.snapshot()
        except NotFoundError:
            # The folder is gone: the dataset was deleted, or storage was moved. Only storage knows which.
            return self._open_again(published).snapshot()

    def _open_again(self, old: PublishedDataset) -> PublishedDataset:
        with self._renewing:
            if self._published is old:
                fresh = self._open()
                fresh.snapshot().refuse_other(old.folder.name)
                self._published = fresh
            return self._published

    def _open(self) -> PublishedDataset:
        offer = self._ask(self._dataset)
        if (reason := offer.why_not()) is not None:
            raise ConfigError(f"samples of dataset '{self._dataset}' cannot be read without the payload server: {reason}")
        published = PublishedDataset(Path(os.fsdecode(offer.folder)), self._readers)
        published.snapshot()
        return published
