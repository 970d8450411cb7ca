"""The connections that one process reads a trigger set by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from modyn.config.system import ROW_GROUP_CACHE_BYTES, Endpoint, SystemConfig
from modyn.records import KeysAndWeights, RunId
from modyn.selector.client import SelectorClient

if TYPE_CHECKING:
    from modyn.storage.flight.client import PayloadClient
    from modyn.storage.read.local_reads import LocalPayloads


PayloadReader: TypeAlias = "LocalPayloads | PayloadClient"
"""Reads payloads by key: the files themselves, or over Flight."""


class Keys(Protocol):
    """The part of a SelectorClient that is used here."""

    def keys(self, run_id: RunId, trigger_id: int, partition: int, *, keys_checksum: str) -> KeysAndWeights: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DatasetClients:
    """Open connections of one process."""

    selector: Keys
    payloads: PayloadReader

    def close(self) -> None:
        self.selector.close()
        self.payloads.close()


@dataclass(frozen=True, slots=True)
class PayloadSource:
    """Where the payloads of one dataset are, and by which way they come: by the short cut where it is proven. `streams`: exchanges with the
    payload servers at once, for one fetch. Picklable; opened in the process that reads, since connections do not survive a fork."""

    dataset: str
    storage: Endpoint
    flights: tuple[Endpoint, ...]
    short_cut: Literal["auto", "on", "off"] = "auto"
    streams: int = 1
    row_group_cache_bytes: int = ROW_GROUP_CACHE_BYTES

    @staticmethod
    def of(config: SystemConfig, dataset: str, streams: int = 1) -> PayloadSource:
        flights = tuple(config.endpoints("flight"))
        storage = config.storage
        return PayloadSource(
            dataset, config.endpoint("storage"), flights, storage.short_cut, streams, storage.row_group_cache_bytes
        )

    def open(self) -> PayloadReader:
        # Here, since services that only name a source start without what reads it.
        from modyn.storage.read.local_reads import open_payloads

        # One thread a gather: whoever wants more gathers several batches at once.
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
    """Connects to the real services; called in the process that uses the connections."""

    selector: Endpoint
    payloads: PayloadSource

    @staticmethod
    def of(config: SystemConfig, dataset: str, streams: int = 1) -> DatasetConnector:
        return DatasetConnector(config.endpoint("selector"), PayloadSource.of(config, dataset, streams))

    def __call__(self) -> DatasetClients:
        return DatasetClients(SelectorClient(self.selector), self.payloads.open())
