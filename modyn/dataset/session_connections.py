"""Connections of a worker's session, which stay open between the commands of the session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from modyn.config.system import SystemConfig
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.cached.pipeline_cache import evaluation_cache
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetClients, DatasetSource, PayloadReader
from modyn.model_storage.client import ModelStorageClient
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient


class SessionConnections:
    """Connections to the services that a session calls. The connections close with the process, and connect again to a service that was unavailable.

    Thread-safe. A failed command ends its session, so that no command uses a connection that another command broke.
    """

    def __init__(self, config: SystemConfig) -> None:
        self.storage = StorageClient(config.endpoint("storage"))
        self.selector = SelectorClient(config.endpoint("selector"))
        self.models = ModelStorageClient(config.endpoint("model_storage"))
        # Guards `_opened`, so that no thread opens payloads twice, or closes payloads that another thread opens. Held while payloads are opened.
        self._opening = threading.Lock()
        self._opened: tuple[tuple[str, int, str], PayloadReader] | None = None

    @classmethod
    def of(cls, memory: dict[str, Any], config: SystemConfig) -> SessionConnections:
        """Return the connections of the session with this memory (`JobConnection.memory`). The first command of the session makes the connections.
        Args: config: configuration, equal for all commands of the session.
        """
        if "connections" not in memory:
            memory["connections"] = cls(config)
        connections: SessionConnections = memory["connections"]
        return connections

    def payloads(self, source: DatasetSource, identity: str) -> PayloadReader:
        """Return the payloads of a dataset. If the previous command read the same dataset, its payloads are used again. Raises: as
        `DatasetSource.open_payloads`.

        Args: identity: identity of the registration. A reader serves only the registration for which it was opened.
        """
        wanted = source.dataset, source.streams, identity
        with self._opening:
            if self._opened is not None and self._opened[0] != wanted:
                # Commands rarely return to an earlier dataset, so its files and streams are not kept open.
                self._opened[1].close()
                self._opened = None
            if self._opened is None:
                self._opened = wanted, source.open_payloads()
            return self._opened[1]

    def cache(self, config: SystemConfig, section: Mapping[str, Any], dataset: DataConfig) -> CacheSource | None:
        """Return the present cache of a dataset; see `evaluation_cache`. Args: config: configuration of the command, with the URL of Redis if the
        command needs one.
        """
        return evaluation_cache(config, section, dataset, partial(self.storage.dataset, dataset.dataset_id))


@dataclass(frozen=True, slots=True)
class SessionSource:
    """Connects to a dataset with the connections of the session. A pickled copy in another process connects as `source` does.

    identity: identity of the registration; empty: any.
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
        # Unpickling returns the method `source.connect`: connections do not survive in another process.
        return getattr, (self.source, "connect")
