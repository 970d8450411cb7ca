"""The connections with which one process reads a trigger set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from modyn.config.system import SystemConfig
from modyn.dataset.cached.cache_source import CacheSource
from modyn.records import KeysAndWeights, RunId
from modyn.selector.client import SelectorClient

if TYPE_CHECKING:
    from modyn.dataset.cached.sample_cache import SampleCache
    from modyn.storage.payloads import LocalPayloads, PayloadClient


PayloadReader: TypeAlias = "LocalPayloads | PayloadClient"
"""Reads payloads by key, from files or over Flight."""


class PayloadSource(Protocol):
    """Names the source of payloads. Picklable, so that each process can open the source for itself."""

    def open_payloads(self) -> PayloadReader:
        """Connect to the source of the payloads."""


class KeySource(Protocol):
    """Source of the keys of a trigger set: the selector, or a file with some of the keys."""

    def keys(self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "") -> KeysAndWeights:
        """Return keys and weights of a partition; see `SelectorClient.keys`."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class DatasetClients:
    """Open connections of one process for one dataset. are_kept: whether the connections to selector and payloads stay open after `close`."""

    selector: KeySource
    payloads: PayloadReader
    cache: SampleCache | None = None
    are_kept: bool = False

    def with_keys(self, keys: KeySource) -> DatasetClients:
        """Return the connections with another source of keys. The connection to the selector is closed, unless it is kept."""
        if not self.are_kept:
            self.selector.close()
        return replace(self, selector=keys)

    def close(self) -> None:
        """Close the connections that are not kept."""
        if not self.are_kept:
            self.selector.close()
            self.payloads.close()
        if self.cache is not None:
            self.cache.close()


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """One dataset of one installation. Picklable. The process that reads opens the connections, because connections do not survive a fork.

    streams: see `PayloadClient`. cache: cache of the dataset's samples, or None.
    """

    config: SystemConfig
    dataset: str
    streams: int = 1
    cache: CacheSource | None = None

    def __reduce__(self) -> tuple[type[DatasetSource], tuple[SystemConfig, str, int, CacheSource | None]]:
        return DatasetSource, (self.config.without_databases(), self.dataset, self.streams, self.cache)

    def open_payloads(self) -> PayloadReader:
        """Connect to the source of the payloads. Raises: ConfigError: the short cut is required and not proven. NotFoundError: the dataset does not
        exist.
        """
        # Imported here, so that services that only name a source start without the packages that read it.
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
        """Connect to the selector, to the source of the payloads, and to the cache. Raises as `open_payloads` and `CacheSource.open`."""
        cache = None if self.cache is None else self.cache.open()
        return DatasetClients(SelectorClient(self.config.endpoint("selector")), self.open_payloads(), cache)
