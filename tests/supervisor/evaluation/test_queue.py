"""Evaluations of a run over services in memory: an evaluator that is away neither holds up nor ends a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from modyn.config.evaluation import Evaluation
from modyn.config.system import SystemConfig
from modyn.errors import CancelledError, UnavailableError
from modyn.evaluator.client import EvaluationRequest, EvaluationStatus
from modyn.records import JobState, RunId
from modyn.rpc.retry import CancellationToken, Retrier, RetryPolicy
from modyn.supervisor.evaluation.on_request import EvaluationOrder
from modyn.supervisor.evaluation.queue import EvaluationQueue, RunContext
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.journal import RunJournal
from modyn.supervisor.journal.records import EvaluationTask, Run, RunMode, RunOptions
from modyn.supervisor.journal.run_events import EvaluateStep
from modyn.supervisor.journal.states import RunState
from modyn.supervisor.queue.queue import RunQueue
from modyn.testing.fake_evaluator import FakeEvaluator
from modyn.testing.services import InMemoryServices, pipeline_yaml, wait_until_terminal
from modyn.testing.waiting import PATIENCE_S, eventually
from modyn.trainer_server.client import TrainingRequest
from tests.support.runs import messages_of

NUM_TRIGGERS = 35
"""More than may wait for a slow evaluator."""


class Elsewhere(FakeEvaluator):
    """Cannot be reached until it is `back`."""

    def __init__(self) -> None:
        super().__init__()
        self.back = threading.Event()

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        if not self.back.is_set():
            raise UnavailableError("evaluator cannot be reached at unix:x")
        return super().start(request)


@pytest.fixture
def evaluator() -> Elsewhere:
    return Elsewhere()


@pytest.fixture
def services(tmp_path: Path, evaluator: Elsewhere) -> InMemoryServices:
    services = InMemoryServices(tmp_path)
    services.evaluator = evaluator
    for name in ("train", "test"):
        services.storage.add_dataset(name)
        services.storage.add_samples(name, timestamps=range(NUM_TRIGGERS))
    return services


@pytest.fixture
def runs(services: InMemoryServices, make_config: Callable[..., SystemConfig]) -> Iterator[RunQueue]:
    """A supervisor that waits 0.2 s for a service."""
    with ExitStack() as stack:
        yield stack.enter_context(services.supervise(make_config(supervisor={"patience_s": 0.2})))


def submit(runs: RunQueue, mode: RunMode, *execution_times: str) -> Run:
    """A run with a trigger for each sample, evaluated by one thread."""
    strategy = {"type": "SlicingEvalStrategy", "eval_every": "35s", "eval_start_from": 0, "eval_end_at": 35}
    handlers = [{"name": time, "execution_time": time, "strategy": strategy, "datasets": ["test"]} for time in execution_times]
    section: dict[str, Any] = {"datasets": [{"dataset_id": "test", "metrics": [{"name": "Accuracy"}]}], "handlers": handlers}
    section["after_training_evaluation_workers"] = 1
    yaml = pipeline_yaml(trigger={"id": "DataAmountTrigger", "num_samples": 1}, evaluation=section)
    return runs.submit(yaml, "p.yaml", RunOptions(mode))


def messages(runs: RunQueue, run: Run) -> list[str]:
    return messages_of(runs.journal.events(run.run_id, 0)[0])


def test_a_production_run_continues_without_its_evaluator(
    runs: RunQueue, services: InMemoryServices, evaluator: Elsewhere
) -> None:
    run = submit(runs, RunMode.PRODUCTION, "after_training")
    eventually(lambda: len(services.trainer_server.requests) == NUM_TRIGGERS)
    eventually(lambda: runs.journal.run(run.run_id).state is RunState.WAITING_FOR_DATA)
    assert evaluator.results(run.run_id) == []
    evaluator.back.set()
    eventually(lambda: len(evaluator.results(run.run_id)) == NUM_TRIGGERS)
    runs.finish(run.run_id)
    run = wait_until_terminal(runs, run.run_id)
    assert (run.state, run.failed_evaluations, run.num_triggers) == (RunState.FINISHED, 0, NUM_TRIGGERS)
    told = messages(runs, run)
    assert sum("the evaluator stays away" in message for message in told) == 1
    assert sum("the evaluator is back" in message for message in told) == 1


@pytest.mark.parametrize("cancelled", [True, False], ids=["the run has ended", "no thread takes it"])
def test_an_evaluation_that_could_not_be_queued_is_not_waited_for(
    runs: RunQueue, services: InMemoryServices, cancelled: bool
) -> None:
    token = CancellationToken()
    context = RunContext(
        RunId("r-0001"),
        services.clients().evaluator,
        RunJournal(runs.journal, RunId("r-0001"), attempt=None),
        EventHub(),
        Retrier(RetryPolicy(0.0), token),
    )
    with closing(EvaluationQueue(context, Evaluation(), [])) as queue:
        if cancelled:
            token.cancel(CancelledError("stopped"))
        else:
            queue.close()
        with pytest.raises(CancelledError if cancelled else RuntimeError):
            queue.add([EvaluationTask("h", "test", "after_training", 0, 1, ())])
        with pytest.raises(CancelledError) if cancelled else nullcontext():
            assert queue.drain() == []


def test_an_experiment_continues_without_its_evaluator(runs: RunQueue, services: InMemoryServices, evaluator: Elsewhere) -> None:
    train, last = services.trainer_server.train, threading.Event()

    def train_the_last_when_the_evaluator_is_back(request: TrainingRequest) -> Any:
        if request.trigger_id == NUM_TRIGGERS - 1:
            last.set()
            assert evaluator.back.wait(PATIENCE_S)
        return train(request)

    services.trainer_server.train = train_the_last_when_the_evaluator_is_back
    run = submit(runs, RunMode.EXPERIMENT, "after_training", "after_pipeline")
    assert last.wait(PATIENCE_S)
    evaluator.back.set()
    run = wait_until_terminal(runs, run.run_id)
    assert (run.state, run.failed_evaluations) == (RunState.FINISHED, 0)
    assert len(evaluator.results(run.run_id)) == 2 * NUM_TRIGGERS


class OnFullDisk(FakeEvaluator):
    """Its evaluations fail until there is `room`."""

    def __init__(self) -> None:
        super().__init__()
        self.room = threading.Event()

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        if self.room.is_set():
            return super().start(request)
        return EvaluationStatus(request.evaluation_id, JobState.FAILED, error="the disk is full", error_reason="UNAVAILABLE")


def test_a_disk_that_is_full_for_a_while_costs_no_evaluation(runs: RunQueue, services: InMemoryServices) -> None:
    services.evaluator = evaluator = OnFullDisk()
    train = services.trainer_server.train

    def train_the_last_when_there_is_room(request: TrainingRequest) -> Any:
        if request.trigger_id == NUM_TRIGGERS - 1:
            eventually(lambda: runs.journal.run(request.run_id).failed_evaluations)
            evaluator.room.set()
        return train(request)

    services.trainer_server.train = train_the_last_when_there_is_room
    run = wait_until_terminal(runs, submit(runs, RunMode.EXPERIMENT, "after_training").run_id)
    assert (run.state, run.failed_evaluations) == (RunState.FINISHED, 0)
    assert len(evaluator.results(run.run_id)) == NUM_TRIGGERS


def test_a_run_is_scored_on_the_registrations_that_it_was_submitted_with(
    runs: RunQueue, services: InMemoryServices, evaluator: Elsewhere
) -> None:
    storage = services.storage.client()
    run = submit(runs, RunMode.PRODUCTION, "after_training")
    identity = storage.dataset("test").identity
    services.storage.add_dataset("test")
    evaluator.back.set()
    eventually(lambda: len(evaluator.started) == NUM_TRIGGERS)
    runs.finish(run.run_id)
    wait_until_terminal(runs, run.run_id)
    assert {asked.dataset_identity for asked in evaluator.started} == {identity}
    asked = runs.evaluate(run.run_id, EvaluationOrder(datasets=["train"]))
    eventually(lambda: runs.journal.evaluation(run.run_id, asked.number).finished_at)
    assert evaluator.started[-1].dataset_identity == storage.dataset("train").identity


def test_a_run_ends_without_its_evaluator_and_names_what_is_open(
    runs: RunQueue, services: InMemoryServices, evaluator: Elsewhere
) -> None:
    run = wait_until_terminal(runs, submit(runs, RunMode.EXPERIMENT, "after_training", "after_pipeline").run_id)
    assert (run.state, run.error, run.failed_evaluations) == (RunState.FINISHED, "", 2 * NUM_TRIGGERS)
    steps = [event.detail for event in runs.journal.events(run.run_id, 0)[0] if isinstance(event.detail, EvaluateStep)]
    errors = [step.error for step in steps if step.error]
    assert any(
        f"not made, since the evaluator stayed away: evaluator cannot be reached at unix:x; `modyn evaluate {run.run_id}`"
        in str(e)
        for e in errors
    )
    evaluator.back.set()
    request = runs.evaluate(run.run_id, EvaluationOrder())
    eventually(lambda: runs.journal.evaluation(run.run_id, request.number).finished_at)
    assert runs.journal.evaluation(run.run_id, request.number).state is JobState.FINISHED
    assert runs.journal.run(run.run_id).failed_evaluations == 0
    assert len(evaluator.results(run.run_id)) == 2 * NUM_TRIGGERS


def test_an_evaluation_that_ends_its_evaluator_each_time_fails_alone(
    runs: RunQueue, services: InMemoryServices, evaluator: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is not an outage: other evaluations continue, and the run ends with all evaluations except this one."""
    evaluator.back.set()
    start, begun = evaluator.start, list[int]()

    def start_and_die(request: EvaluationRequest) -> EvaluationStatus:
        if request.trigger_id == 1:
            begun.append(1)
            error = UnavailableError("the evaluator stopped before this evaluation ended")
            return EvaluationStatus(request.evaluation_id, JobState.STOPPED, error=error.message, error_reason=error.reason)
        return start(request)

    monkeypatch.setattr(evaluator, "start", start_and_die)
    run = wait_until_terminal(runs, submit(runs, RunMode.EXPERIMENT, "after_training").run_id)
    assert (run.state, run.failed_evaluations) == (RunState.FINISHED, 1)
    assert len(evaluator.results(run.run_id)) == NUM_TRIGGERS - 1
