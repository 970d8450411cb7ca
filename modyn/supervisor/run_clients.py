"""The connections of a run to the services, and how long it waits for one that cannot be reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modyn.config.system import SupervisorConfig, SystemConfig
from modyn.errors import UnavailableError
from modyn.evaluator.client import EvaluatorClient
from modyn.model_storage.client import ModelStorageClient
from modyn.rpc.logs import get_logger
from modyn.rpc.retry import RetryPolicy
from modyn.selector.client import SelectorClient
from modyn.state_folders import serving_dir
from modyn.storage.client import StorageClient
from modyn.supervisor.auto_resume import goes_on
from modyn.supervisor.cursor import Cursor
from modyn.supervisor.journal import RunJournal
from modyn.supervisor.records import Run
from modyn.supervisor.served_loads import ServedLoads
from modyn.trainer_server.client import TrainerServerClient, TrainingStatus

_LOG = get_logger("supervisor")


@dataclass(frozen=True, slots=True)
class RunClients:
    """One connection to each service. A run has its own, so that closing them ends every call that it waits for."""

    storage: StorageClient
    selector: SelectorClient
    model_storage: ModelStorageClient
    trainer_server: TrainerServerClient
    evaluator: EvaluatorClient
    loads: ServedLoads = field(default_factory=ServedLoads)
    """What servers of predictions report, of all runs: no connection of its own."""
    serving_dir: Path | None = None
    """Where servers of predictions on this machine keep what waits for its label; None: nowhere."""

    def close(self) -> None:
        """Close all clients."""
        for client in (self.storage, self.selector, self.model_storage, self.trainer_server, self.evaluator):
            client.close()


def open_clients(config: SystemConfig, loads: ServedLoads) -> RunClients:
    """Open the clients of all services that a run calls; they connect at their first call. Args: loads: of the supervisor."""
    return RunClients(
        # A run reopens its stream by itself, under its own retry policy and cancellation token.
        storage=StorageClient(config.endpoint("storage"), retry_s=0.0),
        selector=SelectorClient(config.endpoint("selector")),
        model_storage=ModelStorageClient(config.endpoint("model_storage")),
        trainer_server=TrainerServerClient(config.endpoint("trainer_server")),
        evaluator=EvaluatorClient(config.endpoint("evaluator")),
        loads=loads,
        serving_dir=serving_dir(config.state_dir),
    )


def retry_policy(config: SupervisorConfig, run: Run | None = None) -> RetryPolicy:
    """How long a run waits for a service that cannot be reached. Args: run: None: any."""
    # Without an address the services are the embedded ones.
    start = "start the service again" if config.address else "start the service again (`modyn up`)"
    return RetryPolicy(config.patience_s, longest_pause_s=2.0, advice=f"{start}: {goes_on(config, run)}")


def report_wait(journal: RunJournal, message: str) -> None:
    """Show the watchers of a run why it waits. Args: journal: not retried, since this reports that the retries begin."""
    _LOG.warning("waiting", run_id=journal.run_id, reason=message)
    try:
        journal.message(message)
    except UnavailableError:
        _LOG.warning("journal_unavailable", run_id=journal.run_id)


def stream_progress(cursor: Cursor, total: int | None) -> dict[str, Any]:
    """What watchers are shown of a run on its way through its stream, as `EventKind.STREAM_PROGRESS` documents."""
    return {"num_samples": cursor.position, "total_samples": total or 0, "timestamp": cursor.max_timestamp}


def training_progress(status: TrainingStatus) -> dict[str, Any]:
    """What watchers are shown of a training on its way, as `EventKind.TRAINING_PROGRESS` documents."""
    return {
        "state": str(status.state),
        "samples_seen": status.samples_seen,
        "samples_total": status.samples_total or 0,
        "batches_seen": status.batches_seen,
        "loss": status.loss,
        "samples_per_s": status.samples_per_s,
        **({"stage": status.stage} if status.stage else {}),
        **(
            {"samples_scored": status.samples_scored, "samples_to_score": status.samples_to_score}
            if status.samples_to_score
            else {}
        ),
    }
