"""What one run works with: connections to the other services, and the context that the parts of its execution share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from modyn.config.system import SystemConfig
from modyn.evaluator.client import EvaluatorClient
from modyn.model_storage.client import ModelStorageClient
from modyn.records import RunId
from modyn.rpc.retry import Retrier
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.supervisor.events import EventHub
from modyn.supervisor.run_journal import RunJournal
from modyn.trainer_server.client import TrainerServerClient


@dataclass(frozen=True, slots=True)
class RunClients:
    """One connection to each service. A run has its own, so that closing them ends every call that it waits for."""

    storage: StorageClient
    selector: SelectorClient
    model_storage: ModelStorageClient
    trainer_server: TrainerServerClient
    evaluator: EvaluatorClient

    def close(self) -> None:
        """Close all clients."""
        for client in (self.storage, self.selector, self.model_storage, self.trainer_server, self.evaluator):
            client.close()


OpenClients = Callable[[], RunClients]


def open_clients(config: SystemConfig) -> RunClients:
    """Open the clients of all services that a run calls; they connect at their first call."""
    return RunClients(
        # A run reopens its stream by itself, under its own retry policy and cancellation token.
        storage=StorageClient(config.endpoint("storage"), retry_s=0.0),
        selector=SelectorClient(config.endpoint("selector")),
        model_storage=ModelStorageClient(config.endpoint("model_storage")),
        trainer_server=TrainerServerClient(config.endpoint("trainer_server")),
        evaluator=EvaluatorClient(config.endpoint("evaluator")),
    )


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the parts of one run's execution share."""

    run_id: RunId
    clients: RunClients
    journal: RunJournal
    """Its writes go through the retrier."""
    hub: EventHub
    retrier: Retrier
    """Carries the run's retry policy and its cancellation token."""
