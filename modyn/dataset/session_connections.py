"""The connections of a worker's session, kept between its commands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from modyn.config.system import SystemConfig
from modyn.dataset.cache_source import CacheSource
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetClients, DatasetSource, PayloadReader
from modyn.dataset.pipeline_cache import evaluation_cache
from modyn.model_storage.client import ModelStorageClient
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient


class SessionConnections:
    """Connections to the services that a session asks. They end with its process, and find a service again that was away meanwhile.

    For any thread. A command that fails ends its session, so that none finds what another one broke.
    """

    def __init__(self, config: SystemConfig) -> None:
        self.storage = StorageClient(config.endpoint("storage"))
        self.selector = SelectorClient(config.endpoint("selector"))
        self.models = ModelStorageClient(config.endpoint("model_storage"))
        self._opening = threading.Lock()
        self._opened: tuple[tuple[str, int, str], PayloadReader] | None = None

    @classmethod
    def of(cls, memory: dict[str, Any], config: SystemConfig) -> SessionConnections:
        """Those of the session with this memory (`JobConnection.memory`), made by its first command. Args: config: the same for all."""
        if "connections" not in memory:
            memory["connections"] = cls(config)
        connections: SessionConnections = memory["connections"]
        return connections

    def payloads(self, source: DatasetSource, identity: str) -> PayloadReader:
        """The payloads of a dataset, as the command before left them if it read the same. Raises: as `DatasetSource.open_payloads`.

        Args: identity: of the registration that is meant; a reader knows but one.
        """
        wanted = source.dataset, source.streams, identity
        with self._opening:
            if self._opened is not None and self._opened[0] != wanted:
                self._opened[1].close()
                self._opened = None
            if self._opened is None:
                self._opened = wanted, source.open_payloads()
            return self._opened[1]

    def cache(self, config: SystemConfig, section: Mapping[str, Any], dataset: DataConfig) -> CacheSource | None:
        """The cache of a dataset, as it is now: see `evaluation_cache`. Args: config: of the command, with the URL of Redis where it needs one."""
        return evaluation_cache(config, section, dataset, partial(self.storage.dataset, dataset.dataset_id))


@dataclass(frozen=True, slots=True)
class SessionSource:
    """Connects to a dataset by what the session keeps, and in another process, to which it can be sent, as `source` does.

    identity: of the registration that is meant; empty: whichever it is.
    """

    connections: SessionConnections
    source: DatasetSource
    identity: str = ""

    def __call__(self) -> DatasetClients:
        """Connect. Raises as `DatasetSource.connect`."""
        cache = None if self.source.cache is None else self.source.cache.open()
        payloads = self.connections.payloads(self.source, self.identity)
        return DatasetClients(self.connections.selector, payloads, cache, are_kept=True)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[DatasetSource, str]]:
        return getattr, (self.source, "connect")
