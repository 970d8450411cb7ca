"""The connections by which one process reads a trigger set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from modyn.config.system import SystemConfig
from modyn.dataset.cache_source import CacheSource
from modyn.records import KeysAndWeights, RunId
from modyn.selector.client import SelectorClient

if TYPE_CHECKING:
    from modyn.dataset.sample_cache import SampleCache
    from modyn.storage.payloads import LocalPayloads, PayloadClient


PayloadReader: TypeAlias = "LocalPayloads | PayloadClient"
"""Reads payloads by key: the files themselves, or over Flight."""


class PayloadSource(Protocol):
    """What payloads are read from, once it is opened. Picklable: each process opens it for itself."""

    def open_payloads(self) -> PayloadReader:
        """Connect to what has the payloads."""


class KeySource(Protocol):
    """What has the keys of a trigger set: the selector, or a file of some of them."""

    def keys(self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "") -> KeysAndWeights:
        """Keys and weights of a partition, as `SelectorClient.keys`."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class DatasetClients:
    """Open connections of one process, for one dataset. are_kept: selector and payloads outlive this use of them."""

    selector: KeySource
    payloads: PayloadReader
    cache: SampleCache | None = None
    are_kept: bool = False

    def with_keys(self, keys: KeySource) -> DatasetClients:
        """The same, with keys from there. The connection to the selector is closed, unless it is kept."""
        if not self.are_kept:
            self.selector.close()
        return replace(self, selector=keys)

    def close(self) -> None:
        """Close the connections, but for those that are kept."""
        if not self.are_kept:
            self.selector.close()
            self.payloads.close()
        if self.cache is not None:
            self.cache.close()


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """One dataset of one installation. Picklable; opened in the process that reads, since connections do not survive a fork.

    streams: as for `PayloadClient`. cache: of the dataset's samples; None: there is none.
    """

    config: SystemConfig
    dataset: str
    streams: int = 1
    cache: CacheSource | None = None

    def __reduce__(self) -> tuple[type[DatasetSource], tuple[SystemConfig, str, int, CacheSource | None]]:
        return DatasetSource, (self.config.without_databases(), self.dataset, self.streams, self.cache)

    def open_payloads(self) -> PayloadReader:
        """Connect to what has the payloads. Raises: ConfigError: the short cut is required and not proven. NotFoundError: there is no such
        dataset."""
        # Imported here: services that only name a source start without what reads it.
        from modyn.storage.payloads import open_payloads

        storage = self.config.storage
        return open_payloads(
            self.config.endpoint("storage"),
            self.config.flight_endpoints,
            self.dataset,
            storage.short_cut,
            streams=self.streams,
            row_group_cache_bytes=storage.row_group_cache_bytes,
        )

    def connect(self) -> DatasetClients:
        """Connect to the selector, to what has the payloads, and to the cache. Raises as `open_payloads` and `CacheSource.open`."""
        cache = None if self.cache is None else self.cache.open()
        return DatasetClients(SelectorClient(self.config.endpoint("selector")), self.open_payloads(), cache)
