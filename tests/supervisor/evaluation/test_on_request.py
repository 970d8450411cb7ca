"""Evaluations that were asked for can be cancelled: while they run, while they wait, and with the removal of their run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from modyn.config.system import SystemConfig
from modyn.errors import ConfigError, ConflictError, NotFoundError
from modyn.evaluator.client import EvaluationRequest, EvaluationStatus
from modyn.records import JobState
from modyn.supervisor.client import SupervisorClient
from modyn.supervisor.evaluation.on_request import AT_ONCE, EvaluationOrder, corrected_section
from modyn.supervisor.journal.records import RunMode, RunOptions
from modyn.supervisor.queue.queue import RunQueue
from modyn.testing.fake_evaluator import FakeEvaluator
from modyn.testing.services import InMemoryServices, pipeline_yaml, wait_until_terminal
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.running_supervisor import serve_supervisor
from tests.support.runs import messages_of

STRATEGY = {"type": "SlicingEvalStrategy", "eval_every": "10s", "eval_start_from": 0, "eval_end_at": 20}
EVALUATION = {
    "datasets": [{"dataset_id": "train", "metrics": [{"name": "Accuracy"}]}],
    "handlers": [{"name": "h", "execution_time": "manual", "datasets": ["train"], "strategy": STRATEGY}],
}


class NeverEnding(FakeEvaluator):
    """Its evaluations run until they are stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.watched, self.stopped = threading.Event(), threading.Event()

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        return EvaluationStatus(request.evaluation_id, JobState.RUNNING)

    def watch(self, evaluation_id: str) -> Iterator[EvaluationStatus]:
        yield EvaluationStatus(evaluation_id, JobState.RUNNING)
        self.watched.set()
        assert self.stopped.wait(PATIENCE_S)
        yield EvaluationStatus(evaluation_id, JobState.STOPPED)

    def stop(self, evaluation_id: str) -> None:
        self.stopped.set()


@pytest.fixture
def run_id(runs: RunQueue, services: InMemoryServices) -> str:
    """A run that has ended; nothing ends the evaluations that it is asked for."""
    run = runs.submit(pipeline_yaml(evaluation=EVALUATION), "p.yaml", RunOptions(RunMode.EXPERIMENT))
    wait_until_terminal(runs, run.run_id)
    services.evaluator = NeverEnding()
    return run.run_id


def is_idle(runs: RunQueue, run_id: str, number: int) -> bool:
    return not runs.journal.database.is_locked(f"evaluation/{run_id}/{number}")


def test_evaluations_that_run_are_cancelled(runs: RunQueue, services: InMemoryServices, run_id: str) -> None:
    request = runs.evaluate(run_id, EvaluationOrder())
    assert isinstance(services.evaluator, NeverEnding)
    assert services.evaluator.watched.wait(PATIENCE_S)
    cancelled = runs.cancel_evaluation(run_id, request.number)
    assert (cancelled.state, cancelled.error) == (JobState.STOPPED, "")
    assert cancelled.finished_at is not None
    eventually(lambda: is_idle(runs, run_id, request.number))
    assert services.evaluator.stopped.is_set()
    events, complete = runs.journal.events(run_id, request.after_seq, evaluation=request.number)
    assert complete
    messages = messages_of(events)  # what ran may tell of itself until it is stopped
    assert messages.count("requested evaluations 1 are cancelled") == 1
    assert runs.cancel_evaluation(run_id, request.number) == cancelled, "a second time changes nothing"
    assert runs.journal.open_evaluations() == []
    with pytest.raises(NotFoundError, match="has no requested evaluations 7"):
        runs.cancel_evaluation(run_id, 7)


def test_evaluations_that_wait_are_cancelled(runs: RunQueue, run_id: str) -> None:
    requests = [runs.evaluate(run_id, EvaluationOrder()) for _ in range(AT_ONCE + 1)]
    for request in reversed(requests):
        assert runs.cancel_evaluation(run_id, request.number).state is JobState.STOPPED
    eventually(lambda: all(is_idle(runs, run_id, request.number) for request in requests))


def test_the_end_of_evaluations_is_not_changed_by_cancelling(runs: RunQueue, services: InMemoryServices, run_id: str) -> None:
    services.evaluator = FakeEvaluator()
    request = runs.evaluate(run_id, EvaluationOrder())
    eventually(lambda: runs.journal.evaluation(run_id, request.number).finished_at)
    assert runs.cancel_evaluation(run_id, request.number).state is JobState.FINISHED


def test_evaluations_of_another_supervisor_are_refused(
    runs: RunQueue, services: InMemoryServices, system_config: SystemConfig, run_id: str
) -> None:
    request = runs.evaluate(run_id, EvaluationOrder())
    assert isinstance(services.evaluator, NeverEnding)
    assert services.evaluator.watched.wait(PATIENCE_S)
    with services.supervise(system_config) as others, pytest.raises(ConflictError, match="are made by another supervisor"):
        others.cancel_evaluation(run_id, request.number)
    runs.cancel_evaluation(run_id, request.number)


def test_the_removal_of_a_run_cancels_its_evaluations(runs: RunQueue, services: InMemoryServices, run_id: str) -> None:
    runs.evaluate(run_id, EvaluationOrder())
    assert isinstance(services.evaluator, NeverEnding)
    assert services.evaluator.watched.wait(PATIENCE_S)
    with pytest.raises(ConflictError, match="are under way"):
        runs.removal.remove_run(run_id)  # as by retention
    runs.remove(run_id)
    with pytest.raises(NotFoundError):
        runs.journal.run(run_id)


def test_evaluations_are_cancelled_over_the_wire(system_config: SystemConfig, services: InMemoryServices) -> None:
    with serve_supervisor(services, system_config) as client:
        run_id = _ended(client)
        services.evaluator = NeverEnding()
        request = client.evaluate(run_id)
        assert client.cancel_evaluation(run_id, request.number).state is JobState.STOPPED


def test_evaluations_are_cancelled_at_any_moment_of_their_start_and_end(
    runs: RunQueue, services: InMemoryServices, run_id: str
) -> None:
    services.evaluator = FakeEvaluator()
    for number in range(1, 41):
        assert runs.evaluate(run_id, EvaluationOrder()).number == number
        time.sleep(number % 10 * 0.002)
        assert runs.cancel_evaluation(run_id, number).state in (JobState.STOPPED, JobState.FINISHED)


def _ended(client: SupervisorClient) -> str:
    run_id = client.submit(pipeline_yaml(evaluation=EVALUATION), "p.yaml", RunOptions(RunMode.EXPERIMENT)).run_id
    list(client.watch(run_id))
    return run_id


def test_datasets_of_a_file_have_the_columns_of_the_run() -> None:
    schema = {"format": "json", "columns": {"age": "number"}}
    pipeline = {"data": {"dataset_id": "train"}, "preprocessing": {**schema, "components": []}}
    text = "datasets: [{dataset_id: test, batch_size: 8, metrics: [{name: Accuracy}]}]"
    section = corrected_section(pipeline, EvaluationOrder(yaml=text))
    assert section is not None
    assert [(entry["dataset_id"], entry["preprocessing"]) for entry in section["datasets"]] == [("test", schema)]
    written = text.replace("batch_size: 8", "preprocessing: {columns: {age: category}}")
    with pytest.raises(ConfigError, match=r"evaluation\.datasets\.0\.preprocessing: preprocessing is a section of its own"):
        corrected_section(pipeline, EvaluationOrder(yaml=written))
