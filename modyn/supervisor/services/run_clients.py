"""The connections of a run to the services, and the retry policy for a service that cannot be reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from modyn.config.system import SupervisorConfig, SystemConfig
from modyn.errors import UnavailableError
from modyn.evaluator.client import EvaluatorClient
from modyn.model_storage.client import ModelStorageClient
from modyn.rpc.logs import get_logger
from modyn.rpc.retry import RetryPolicy
from modyn.selector.client import SelectorClient
from modyn.state_folders import serving_dir
from modyn.storage.client import StorageClient
from modyn.supervisor.journal.journal import RunJournal
from modyn.supervisor.journal.records import Run, RunMode
from modyn.supervisor.journal.run_events import TriggerProgress
from modyn.supervisor.served.loads import ServedLoads
from modyn.trainer_server.client import TrainerServerClient, TrainingStatus

STOPPED_WITH_SUPERVISOR: Final = "the supervisor was stopped"
"""Beginning of the error of a run that was interrupted because the supervisor ended."""

_LOG = get_logger("supervisor")


@dataclass(frozen=True, slots=True)
class RunClients:
    """One client of each service. Each run has its own clients, because closing a client ends all calls of the client."""

    storage: StorageClient
    selector: SelectorClient
    model_storage: ModelStorageClient
    trainer_server: TrainerServerClient
    evaluator: EvaluatorClient
    loads: ServedLoads = field(default_factory=ServedLoads)
    """Reports of prediction servers about all runs; not a connection."""
    serving_dir: Path | None = None
    """Folder in which prediction servers on this machine keep observations until the labels arrive; None if there is no such folder."""

    def close(self) -> None:
        """Close all clients."""
        for client in (self.storage, self.selector, self.model_storage, self.trainer_server, self.evaluator):
            client.close()


def open_clients(config: SystemConfig, loads: ServedLoads) -> RunClients:
    """Open the clients of all services that a run calls; each client connects at its first call. Args: loads: reports of prediction servers."""
    return RunClients(
        # A run reopens its stream under its own retry policy and cancellation token.
        storage=StorageClient(config.endpoint("storage"), retry_s=0.0),
        selector=SelectorClient(config.endpoint("selector")),
        model_storage=ModelStorageClient(config.endpoint("model_storage")),
        trainer_server=TrainerServerClient(config.endpoint("trainer_server")),
        evaluator=EvaluatorClient(config.endpoint("evaluator")),
        loads=loads,
        serving_dir=serving_dir(config.state_dir),
    )


def how_it_continues(config: SupervisorConfig, run: Run | None = None) -> str:
    """Return the last part of the error of an interrupted run, which says how the run is resumed. Args: run: None for any run."""
    if config.resume_on_start or (run is not None and run.mode is RunMode.PRODUCTION):
        return "the run continues by itself"
    if run is not None:
        return f"`modyn resume {run.run_id}` continues it"
    return "a production run continues by itself, another run by `modyn resume RUN`"


def stopped_with_supervisor(config: SupervisorConfig) -> str:
    """Return the error of a run that was interrupted because the supervisor ended: the reason, and how the run is resumed."""
    # Without an address, the supervisor is the embedded supervisor.
    start = "start it again" if config.address else "start it again (`modyn up`)"
    return f"{STOPPED_WITH_SUPERVISOR}; {start}: {how_it_continues(config)}"


def retry_policy(config: SupervisorConfig, run: Run | None = None) -> RetryPolicy:
    """Return the retry policy of a run for a service that cannot be reached. Args: run: None for any run."""
    # Without an address, the services are the embedded services.
    start = "start the service again" if config.address else "start the service again (`modyn up`)"
    return RetryPolicy(config.patience_s, longest_pause_s=2.0, advice=f"{start}: {how_it_continues(config, run)}")


def report_wait(journal: RunJournal, message: str) -> None:
    """Show the watchers of a run why the run waits. Args: journal: a journal without retries, because this report itself must not wait for a
    service.
    """
    _LOG.warning("waiting", run_id=journal.run_id, reason=message)
    try:
        journal.message(message)
    except UnavailableError:
        _LOG.warning("journal_unavailable", run_id=journal.run_id)


def training_progress(status: TrainingStatus) -> TriggerProgress:
    """Return the progress of a training for watchers."""
    return TriggerProgress(
        status.samples_seen,
        status.samples_total or 0,
        status.state,
        loss=status.loss,
        samples_per_s=status.samples_per_s,
        stage=status.stage,
        samples_scored=status.samples_scored or 0,
        samples_to_score=status.samples_to_score or 0,
    )
