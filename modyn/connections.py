"""Connections to the services of one installation, opened when they are first used."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self, cast

from modyn.config.system import SystemConfig
from modyn.evaluator.client import EvaluatorClient
from modyn.model_storage.client import ModelStorageClient
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.supervisor.client import SupervisorClient
from modyn.trainer_server.client import TrainerServerClient


class Connections:
    """Typed clients of all services. Args: wait_s: longest time that a call waits for an unavailable service."""

    def __init__(self, config: SystemConfig, wait_s: float) -> None:
        self.config = config
        self._wait_s = wait_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The services keep running."""
        for name in [name for name in vars(self) if isinstance(getattr(Connections, name, None), cached_property)]:
            cast("Any", self.__dict__.pop(name)).close()

    @cached_property
    def supervisor(self) -> SupervisorClient:
        """Typed client of the supervisor: runs, events and triggers as records."""
        return SupervisorClient(self.config.endpoint("supervisor"), self._wait_s)

    @cached_property
    def storage(self) -> StorageClient:
        """Typed client of storage: datasets and samples as records."""
        return StorageClient(self.config.endpoint("storage"), wait_s=self._wait_s)

    @cached_property
    def selector(self) -> SelectorClient:
        """Typed client of the selector: the streams of runs, and trigger sets."""
        return SelectorClient(self.config.endpoint("selector"), self._wait_s)

    @cached_property
    def model_storage(self) -> ModelStorageClient:
        """Typed client of model storage: model versions as records."""
        return ModelStorageClient(self.config.endpoint("model_storage"), self._wait_s)

    @cached_property
    def trainer_server(self) -> TrainerServerClient:
        """Typed client of the trainer server."""
        return TrainerServerClient(self.config.endpoint("trainer_server"), self._wait_s)

    @cached_property
    def evaluator(self) -> EvaluatorClient:
        """Typed client of the evaluator: evaluation results as records."""
        return EvaluatorClient(self.config.endpoint("evaluator"), self._wait_s)
