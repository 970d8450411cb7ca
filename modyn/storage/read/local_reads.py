"""The short cut: a reader on the machine of storage looks samples up and reads them itself, without a service in between.

It is taken by proof only, see `modyn.storage.read.locality`. What storage publishes is looked at again for each request, so a reader sees
deletions and new samples as those do who ask the service. Storage need not run while others read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np

from modyn.config.system import ROW_GROUP_CACHE_BYTES, Endpoint
from modyn.errors import ConfigError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.records import Int64Array
from modyn.rpc.logs import get_logger
from modyn.storage.client import StorageClient
from modyn.storage.flight.client import OnMissing, PayloadClient
from modyn.storage.formats import REGISTRY
from modyn.storage.read.payload_reader import Located, locate
from modyn.storage.read.published import PublishedIndex
from modyn.storage.read.record_readers import RecordReaders
from modyn.storage.read.snapshot import DatasetSnapshot

__all__ = ["LocalPayloads", "Located", "ShortCut", "open_payloads", "preload_file_formats"]

ShortCut = Literal["auto", "on", "off"]


class LocalPayloads:
    """Payloads of one dataset by key, read here. May be used by several threads at once, not across a fork."""

    def __init__(
        self, storage: Endpoint, dataset: str, num_threads: int = 1, row_group_cache_bytes: int = ROW_GROUP_CACHE_BYTES
    ) -> None:
        """Asks storage once. Raises ConfigError that says why the short cut cannot be taken, NotFoundError if there is no such dataset,
        UnavailableError if storage cannot be reached."""
        self._storage = storage
        self._dataset = dataset
        self._sources = RecordReaders(num_threads, row_group_cache_bytes)
        self._renewing = threading.Lock()
        self._published = self._prove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._sources.close()

    def locate(self, dataset: str, keys: Int64Array, on_missing: OnMissing = "raise") -> Located:
        """Where the samples of `keys` are, in the order asked, duplicates included; `Located.take` reads them. Missing keys as for
        `PayloadClient.fetch`."""
        self._check(dataset)
        return locate(self.view, np.ascontiguousarray(keys, np.int64), on_missing)

    def view(self) -> DatasetSnapshot:
        """The dataset as it is now. Raises NotFoundError if it was deleted."""
        published = self._published
        try:
            return published.view()
        except NotFoundError:
            return self._renewed(published).view()

    def _renewed(self, old: PublishedIndex) -> PublishedIndex:
        """The dataset's folder is gone: with the dataset, or because storage was moved. Only storage knows."""
        with self._renewing:
            if self._published is old:
                fresh = self._prove()
                fresh.view().refuse_other(old.folder.name)
                self._published = fresh
            return self._published

    def _prove(self) -> PublishedIndex:
        with StorageClient(self._storage) as client:
            offer = client.offer_short_cut(self._dataset)
        if (reason := offer.why_not()) is not None:
            raise ConfigError(f"samples of dataset '{self._dataset}' cannot be read without the payload server: {reason}")
        published = PublishedIndex(Path(os.fsdecode(offer.folder)), self._sources)
        published.view()
        return published

    def _check(self, dataset: str) -> None:
        if dataset != self._dataset:
            raise InvalidArgumentError(
                f"these are the payloads of dataset '{self._dataset}', not of '{dataset}'; open others for it"
            )


def open_payloads(
    storage: Endpoint,
    flights: Sequence[Endpoint],
    dataset: str,
    short_cut: ShortCut = "auto",
    num_threads: int = 1,
    streams: int = 1,
    row_group_cache_bytes: int = ROW_GROUP_CACHE_BYTES,
) -> LocalPayloads | PayloadClient:
    """A reader of the dataset's payloads: by the short cut if it is proven that this process sees what storage sees, else over Flight.

    "on": ConfigError that says why the short cut cannot be taken, in place of Flight. "off": storage is not asked.
    num_threads, row_group_cache_bytes: as for `RecordReaders`, by the short cut. streams: exchanges at once for one fetch over Flight.
    """
    logger = get_logger("storage")
    if short_cut == "off":
        return PayloadClient(flights, streams)
    try:
        payloads = LocalPayloads(storage, dataset, num_threads, row_group_cache_bytes)
    except (ConfigError, UnavailableError) as error:
        # Any other would be the same over Flight: there is no such dataset, its index is damaged, the token is wrong.
        if short_cut == "on":
            raise type(error)(
                f"{error.message}. storage.short_cut is on: run the workers on storage's machine, as its user and with its mounts, or set it to auto"
            ) from error
        logger.info("payloads_over_flight", dataset=dataset, why=error.message)
        return PayloadClient(flights, streams)
    logger.info("payloads_by_short_cut", dataset=dataset)
    return payloads


def preload_file_formats() -> str:
    """Import what reading payloads needs later on, the file formats, for processes that are forked from this one. Returns as `Registry.preload`."""
    return REGISTRY.preload()
