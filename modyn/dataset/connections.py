"""The connections by which one process reads a trigger set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from modyn.config.system import ROW_GROUP_CACHE_BYTES, Endpoint, SystemConfig
from modyn.selector.client import SelectorClient

if TYPE_CHECKING:
    from modyn.storage.payloads import LocalPayloads, PayloadClient


PayloadReader: TypeAlias = "LocalPayloads | PayloadClient"
"""Reads payloads by key: the files themselves, or over Flight."""


@dataclass(frozen=True, slots=True)
class DatasetClients:
    """Open connections of one process, for one dataset."""

    selector: SelectorClient
    payloads: PayloadReader

    def close(self) -> None:
        """Close the connections."""
        self.selector.close()
        self.payloads.close()


@dataclass(frozen=True, slots=True)
class PayloadSource:
    """Where the payloads of one dataset are. Picklable; opened in the process that reads, since connections do not survive a fork.

    short_cut: "auto" reads the files themselves where storage proves that this process can, "on" requires that, "off" takes Flight.
    streams: as for `PayloadClient`. row_group_cache_bytes: decoded row groups kept by the short cut.
    """

    dataset: str
    storage: Endpoint
    flights: tuple[Endpoint, ...]
    short_cut: Literal["auto", "on", "off"] = "auto"
    streams: int = 1
    row_group_cache_bytes: int = ROW_GROUP_CACHE_BYTES

    @staticmethod
    def of(config: SystemConfig, dataset: str, streams: int = 1) -> PayloadSource:
        """Source of one dataset, with endpoints and limits from the system file. streams: as for `PayloadClient`."""
        flights = tuple(config.flight_endpoints)
        storage = config.storage
        return PayloadSource(
            dataset, config.endpoint("storage"), flights, storage.short_cut, streams, storage.row_group_cache_bytes
        )

    def open(self) -> PayloadReader:
        """Connect. Raises: ConfigError: the short cut is required and not proven. NotFoundError: there is no such dataset."""
        # Imported here: services that only name a source start without what reads it.
        from modyn.storage.payloads import open_payloads

        # One thread for each batch that is gathered: several batches are gathered at once where more threads are wanted.
        return open_payloads(
            self.storage,
            self.flights,
            self.dataset,
            self.short_cut,
            streams=self.streams,
            row_group_cache_bytes=self.row_group_cache_bytes,
        )


@dataclass(frozen=True, slots=True)
class DatasetConnector:
    """Opens the connections to the services when it is called, in the process that uses them. Picklable."""

    selector: Endpoint
    payloads: PayloadSource

    @staticmethod
    def of(config: SystemConfig, dataset: str, streams: int = 1) -> DatasetConnector:
        """Connector for one dataset, with endpoints and limits from the system file. streams: as for `PayloadClient`."""
        return DatasetConnector(config.endpoint("selector"), PayloadSource.of(config, dataset, streams))

    def __call__(self) -> DatasetClients:
        return DatasetClients(SelectorClient(self.selector), self.payloads.open())
