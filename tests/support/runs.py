"""Helpers for tests of runs with in-memory services."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from modyn.supervisor.journal.records import Run, RunMode, RunOptions
from modyn.supervisor.journal.run_events import RunEvent, RunMessage
from modyn.supervisor.journal.states import RunState
from modyn.supervisor.queue.queue import RunQueue
from modyn.testing.services import InMemoryServices, pipeline_yaml, wait_until_terminal
from modyn.testing.waiting import eventually
from modyn.trainer_server.client import TrainingRequest

EXPERIMENT = RunOptions(RunMode.EXPERIMENT)
PRODUCTION = RunOptions(RunMode.PRODUCTION)


def finish(runs: RunQueue, yaml: str | None = None, options: RunOptions = EXPERIMENT) -> Run:
    """Submit a run and wait for its end."""
    return wait_until_terminal(runs, runs.submit(yaml or pipeline_yaml(), "p.yaml", options).run_id)


def live_run(runs: RunQueue, yaml: str | None = None, options: RunOptions = PRODUCTION) -> Run:
    """Submit a production run and wait until it has processed what its dataset holds."""
    run = runs.submit(yaml or pipeline_yaml(), "p.yaml", options)
    eventually(lambda: runs.journal.run(run.run_id).state is RunState.WAITING_FOR_DATA)
    return run


def stop(runs: RunQueue, run: Run) -> Run:
    """Stop a run and wait for its end."""
    runs.stop(run.run_id)
    return wait_until_terminal(runs, run.run_id)


def resume(runs: RunQueue, run: Run) -> Run:
    """Resume a run and wait for its end."""
    runs.resume(run.run_id)
    return wait_until_terminal(runs, run.run_id)


def messages(runs: RunQueue, run: Run) -> list[str]:
    """Return the messages of a run."""
    return messages_of(runs.journal.events(run.run_id, 0, 1000)[0])


def messages_of(events: Iterable[RunEvent]) -> list[str]:
    """Return the messages among events."""
    return [event.detail.message for event in events if isinstance(event.detail, RunMessage)]


def alter_training(services: InMemoryServices, change: Callable[[TrainingRequest, Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Change the result of each training. Args: change: gets the request and the result; may raise."""
    train = services.trainer_server.train

    def altered(request: TrainingRequest) -> tuple[int, str, Mapping[str, Any]]:
        model_id, sha256, result = train(request)
        return model_id, sha256, change(request, result)

    services.trainer_server.train = altered
