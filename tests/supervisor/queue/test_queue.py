"""Whole runs over services in memory and a real journal: their decisions, their ends, and their resumption."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client import REGISTRY

from modyn.analysis.results import RunResults, cost, evaluations_table, training_warnings, triggers_table
from modyn.cli.follow import line_of
from modyn.config.base import Problem, Severity
from modyn.config.system import SupervisorConfig, SystemConfig
from modyn.db.engine import Database
from modyn.errors import (
    ConfigError,
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
    TrainingError,
    UnavailableError,
    UserCodeError,
)
from modyn.evaluator.client import EvaluationRequest, EvaluationStatus
from modyn.json_codec import sanitize
from modyn.proto import supervisor_pb2
from modyn.records import JobState
from modyn.rpc.wire import to_message
from modyn.supervisor.client import Run, RunMode
from modyn.supervisor.evaluation.on_request import EvaluationOrder
from modyn.supervisor.evaluation.queue import BACKLOG
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.journal import Journal, RunJournal
from modyn.supervisor.journal.records import NewRun, RequestedEvaluation, RunOptions
from modyn.supervisor.journal.run_events import StateChange, StepState, TrainStep, TriggerProgress
from modyn.supervisor.journal.states import RunState, TriggerState
from modyn.supervisor.queue.queue import RunQueue
from modyn.supervisor.services.run_clients import RunClients, retry_policy, stopped_with_supervisor
from modyn.testing.fake_evaluator import FakeEvaluator
from modyn.testing.fakes import FakeTrainerServer
from modyn.testing.services import InMemoryServices, pipeline_yaml, wait_until_terminal
from modyn.testing.waiting import PATIENCE_S, at_rest, eventually
from modyn.trainer_server.client import TrainingRequest, TrainingStatus
from tests.support.runs import EXPERIMENT, PRODUCTION, alter_training, finish, live_run, messages, messages_of, resume, stop

NEW_DATA = {"name": "NewDataStrategy", "maximum_keys_in_memory": 100}
BATCHES_OF_4 = {"use_previous_model": True, "batch_size": 4}
SLICES = {"type": "SlicingEvalStrategy", "eval_every": "10s", "eval_start_from": 0, "eval_end_at": 40}


def evaluation(*handlers: dict[str, Any]) -> dict[str, Any]:
    metrics = [{"name": "Accuracy"}]
    named = [{"strategy": SLICES, "datasets": ["test"], **handler} for handler in handlers]
    return {"datasets": [{"dataset_id": "test", "metrics": metrics}], "handlers": named}


HANDLER = {"name": "matrix", "execution_time": "after_training", "strategy": SLICES, "datasets": ["test"]}
AFTER_TRAINING = evaluation(HANDLER)


@pytest.fixture
def services(services: InMemoryServices) -> InMemoryServices:
    services.storage.add_dataset("test")
    services.storage.add_samples("test", timestamps=range(40))
    return services


@pytest.fixture
def impatient_runs(make_runs: Callable[..., RunQueue]) -> RunQueue:
    return make_runs(patience_s=0.3)


def cells(services: InMemoryServices, run: Run, handler: str) -> set[tuple[int, int]]:
    """(trigger, anchor) of what a handler has evaluated."""
    results = services.evaluator.results(run.run_id)
    return {(result.trigger_id, result.interval.anchor) for result in results if result.handler == handler}


def evaluated(runs: RunQueue, run: Run, **order: Any) -> RequestedEvaluation:
    """Ask for evaluations of a run, and wait for their end."""
    request = runs.evaluate(run.run_id, EvaluationOrder(**order))
    eventually(lambda: runs.journal.evaluation(run.run_id, request.number).finished_at)
    return runs.journal.evaluation(run.run_id, request.number)


def test_an_experiment_trains_and_evaluates_every_trigger(runs: RunQueue, services: InMemoryServices) -> None:
    run = finish(runs, pipeline_yaml(evaluation=AFTER_TRAINING))
    assert (run.run_id, run.state, run.error) == ("test-0001", RunState.FINISHED, "")
    assert (
        run.message == "5 samples wait for the next trigger, which has not fired; `modyn run --final-trigger` trains on them too"
    )
    assert (run.num_samples, run.total_samples, run.num_triggers, run.samples_trained) == (35, 35, 3, 30)
    assert run.finished_at is not None
    triggers = runs.journal.triggers(run.run_id)
    assert [(t.position, t.first_timestamp, t.last_timestamp, t.fired_at_timestamp) for t in triggers] == [
        (10, 0, 9, 9),
        (20, 10, 19, 19),
        (30, 20, 29, 29),
    ]
    assert [(t.num_keys, t.model_id, t.parent_model_id) for t in triggers] == [(10, 1, None), (10, 2, 1), (10, 3, 2)]
    assert all(
        t.state is TriggerState.TRAINED and {"select", "train", "store", "evaluate", "total"} <= set(t.seconds) for t in triggers
    )
    assert [t.weights_sha256 for t in triggers] == [m.version.weights_sha256 for m in services.model_storage.list(run.run_id)]
    assert cells(services, run, "matrix") == {(t, anchor) for t in range(3) for anchor in (0, 10, 20, 30)}
    assert [r.position for r in triggers] == [10, 20, 30]
    assert np.array_equal(services.selector.runs[run.run_id].samples.keys, np.arange(35))


def test_costs_count_work_and_samples_as_the_trainer_counted_them(runs: RunQueue, services: InMemoryServices) -> None:
    """No training and no evaluation of these fakes ever runs: they wait, then they are done."""
    downsampled = {"num_samples": 4, "seconds": {"load": 0.5, "forward": 1.0, "store": 0.25}}
    alter_training(services, lambda request, result: {**result, **downsampled})
    run = finish(runs, pipeline_yaml(evaluation=AFTER_TRAINING))
    triggers = runs.journal.triggers(run.run_id)
    assert [(t.seconds["train"], t.seconds["store"], t.seconds["evaluate"]) for t in triggers] == [(1.75, 0.25, 0.0)] * 3
    assert [t.seconds["total"] for t in triggers] == [t.seconds["select"] + 1.75 for t in triggers]
    assert (run.samples_trained, [t.num_trained for t in triggers]) == (12, [4, 4, 4])
    spent = cost(RunResults(run, triggers_table(triggers), evaluations_table([])))
    assert (spent.num_samples, spent.by_stage_s["train"]) == (12, 5.25)
    assert spent.wall_s >= 5.25


def test_training_from_scratch_or_from_a_given_model(runs: RunQueue, services: InMemoryServices) -> None:
    first = finish(runs)
    training = {"use_previous_model": False, "seed": 7, "initial_model": "pretrained", "initial_model_id": 2}
    second = finish(runs, pipeline_yaml(training=training))
    assert first.state == second.state == RunState.FINISHED
    assert [t.parent_model_id for t in runs.journal.triggers(second.run_id)] == [2, 2, 2]
    assert second.run_id == "test-0002"


def test_watchers_hear_the_stage_of_a_training(services: InMemoryServices, database: Database) -> None:
    class Staged(FakeTrainerServer):
        """Selects before it trains."""

        def watch(self, run_id: str, trigger_id: int) -> Iterator[TrainingStatus]:
            first, *others = super().watch(run_id, trigger_id)
            yield replace(first, stage="selection", samples_scored=1, samples_to_score=4)
            yield replace(first, samples_total=10)
            yield from others

    services.trainer_server = trainer = Staged(services.trainer_server.train)
    trainer.held = {("test-0001", 0)}
    heard: list[TriggerProgress] = []
    hub = EventHub()
    hub.listen(
        lambda _, progress: heard.append(progress.detail) if progress and isinstance(progress.detail, TriggerProgress) else None
    )
    runs = RunQueue(Journal(database), hub, services.clients, SupervisorConfig())
    finish(runs, pipeline_yaml(), RunOptions(RunMode.EXPERIMENT, max_triggers=1))
    runs.close()
    staged, plain, *_ = heard
    assert (staged.stage, *staged.done) == ("selection", 1, 4)
    assert (plain.stage, *plain.done) == ("", plain.samples_seen, 10)


def test_handlers(runs: RunQueue, services: InMemoryServices) -> None:
    """Data ends at 10, 20, 30; anchors are 0, 10, 20, 30. What is evaluated early and what at the end adds up."""
    handlers = [
        {"name": f"{models}-{when}", "execution_time": when, "models": models}
        for models in ("matrix", "active", "train")
        for when in ("after_training", "after_pipeline", "manual")
    ]
    run = finish(runs, pipeline_yaml(evaluation=evaluation(*handlers)))
    expected = {
        "matrix": {(t, anchor) for t in range(3) for anchor in (0, 10, 20, 30)},
        "active": {(0, 10), (1, 20), (2, 30)},
        "train": {(2, 0), (1, 10), (2, 20), (2, 30)},
    }
    for models, cells_expected in expected.items():
        assert cells(services, run, f"{models}-after_training") == cells_expected, models
        assert cells(services, run, f"{models}-after_pipeline") == cells_expected, models
        assert cells(services, run, f"{models}-manual") == set(), models
    assert evaluated(runs, run).state is JobState.FINISHED
    assert runs.journal.run(run.run_id).state is RunState.FINISHED
    for models, cells_expected in expected.items():
        assert cells(services, run, f"{models}-manual") == cells_expected, models
    asked = [(r.handler, r.trigger_id, tuple(r.intervals)) for r in services.evaluator.started]
    assert len(asked) == len(set(asked))


def test_handlers_can_be_evaluated_by_name(runs: RunQueue, services: InMemoryServices) -> None:
    run = finish(runs, pipeline_yaml(evaluation=AFTER_TRAINING))
    with pytest.raises(InvalidArgumentError, match="no evaluation handler 'matirx', did you mean 'matrix'"):
        runs.evaluate(run.run_id, EvaluationOrder(["matirx"]))
    with pytest.raises(InvalidArgumentError, match="no handler with `execution_time: manual`"):
        runs.evaluate(run.run_id, EvaluationOrder())
    assert evaluated(runs, run, handlers=["matrix"]).state is JobState.FINISHED


def test_a_run_that_never_triggers_says_so(runs: RunQueue) -> None:
    run = finish(runs, pipeline_yaml(trigger={"id": "DataAmountTrigger", "num_samples": 1000}, evaluation=AFTER_TRAINING))
    assert run.state is RunState.FINISHED
    assert "no trigger fired in 35 samples from 1970-01-01 to 1970-01-01" in run.message
    assert "DataAmountTrigger (num_samples=1000)" in run.message


@pytest.mark.parametrize(
    ("trigger", "apart_s"), [({"id": "TimeTrigger", "every": "10s"}, 10), ({"id": "DataAmountTrigger", "num_samples": 4}, 86_400)]
)
def test_a_run_whose_samples_are_all_late_says_so(
    runs: RunQueue, services: InMemoryServices, trigger: dict[str, Any], apart_s: int
) -> None:
    """One sample of the year 2100, then today's: a time trigger waits for 2100, and each model counts as one of then."""
    services.storage.add_dataset("clock")
    services.storage.add_samples("clock", timestamps=[0, 4_102_444_800, *(apart_s * n for n in (1, 2, 3))])
    yaml = pipeline_yaml(data={"dataset_id": "clock"}, trigger=trigger)
    run_id = runs.submit(yaml, "p.yaml", PRODUCTION).run_id
    eventually(lambda: "2100-01-01" in runs.journal.run(run_id).message, lambda: runs.journal.run(run_id).message)
    services.storage.add_samples("clock", timestamps=[4_102_444_805])
    eventually(lambda: runs.journal.run(run_id).message == "", lambda: runs.journal.run(run_id).message)
    first, _ = messages(runs, runs.journal.run(run_id))
    assert "all samples that arrive are older" in first
    runs.stop(run_id)
    assert wait_until_terminal(runs, run_id).state is RunState.STOPPED


def test_warnings_of_the_trigger_policy_are_added_to_those_of_the_checks(runs: RunQueue, services: InMemoryServices) -> None:
    services.storage.add_dataset("clock")
    services.storage.add_samples("clock", timestamps=[0, 4_102_444_800, *range(10, 40, 10)])
    section, trigger = evaluation({"name": "last", "execution_time": "after_pipeline"}), {"id": "TimeTrigger", "every": "10s"}
    yaml = pipeline_yaml(data={"dataset_id": "clock"}, trigger=trigger, evaluation=section)
    run = runs.submit(yaml, "p.yaml", PRODUCTION)
    assert "handler 'last' evaluates at the end" in run.message
    eventually(lambda: "samples that arrive are older" in runs.journal.run(run.run_id).message)
    assert runs.journal.run(run.run_id).message.startswith(f"{run.message}\nall samples")
    services.storage.add_samples("clock", timestamps=[4_102_444_805])
    eventually(lambda: runs.journal.run(run.run_id).message == run.message, lambda: runs.journal.run(run.run_id).message)
    assert stop(runs, run).state is RunState.STOPPED


@pytest.mark.parametrize(("mode", "total"), [(RunMode.EXPERIMENT, 32), (RunMode.PRODUCTION, None)])
def test_max_triggers_and_interval(runs: RunQueue, mode: RunMode, total: int | None) -> None:
    run = finish(runs, options=RunOptions(mode, from_timestamp=3, max_triggers=2))
    assert (run.state, run.total_samples, run.num_triggers) == (RunState.FINISHED, total, 2)
    times = [(t.position, t.first_timestamp, t.last_timestamp) for t in runs.journal.triggers(run.run_id)]
    assert times == [(10, 3, 12), (20, 13, 22)]


@pytest.mark.parametrize(("num_samples", "positions"), [(10, [10, 20, 30, 35]), (7, [7, 14, 21, 28, 35]), (100, [35])])
def test_a_final_trigger_takes_what_is_left(runs: RunQueue, num_samples: int, positions: list[int]) -> None:
    yaml = pipeline_yaml(trigger={"id": "DataAmountTrigger", "num_samples": num_samples})
    run = finish(runs, yaml, RunOptions(RunMode.EXPERIMENT, final_trigger=True))
    assert (run.state, run.message, run.samples_trained) == (RunState.FINISHED, "", 35)
    assert [t.position for t in runs.journal.triggers(run.run_id)] == positions
    limited = finish(runs, yaml, RunOptions(RunMode.EXPERIMENT, max_triggers=1, final_trigger=True))
    assert [t.position for t in runs.journal.triggers(limited.run_id)] == positions[:1]


@pytest.mark.parametrize("max_triggers", [1, 3, 5])
def test_final_steps_stay_within_the_limit_of_triggers(runs: RunQueue, max_triggers: int) -> None:
    """The end takes the waiting samples in steps of `max_samples`, up to the triggers that the run may have."""
    online = {"trigger": {"id": "DataAmountTrigger", "num_samples": 10}, "step_samples": 2, "max_samples": 3}
    yaml = pipeline_yaml(trigger={"id": "InitialTrigger", "num_samples": 10}, online=online)
    run = finish(runs, yaml, RunOptions(RunMode.EXPERIMENT, max_triggers=max_triggers, final_trigger=True))
    assert (run.state, run.message) == (RunState.FINISHED, "")
    assert [t.position for t in runs.journal.triggers(run.run_id)] == [10, 20, 30, 35, 35, 35][:max_triggers]


def test_empty_trigger_sets_train_nothing(runs: RunQueue, services: InMemoryServices, monkeypatch: pytest.MonkeyPatch) -> None:
    real = services.selector.trigger

    def without_second(run_id: Any, trigger_id: int, num_samples: int, token: Any, **options: Any) -> Any:
        info = real(run_id, trigger_id, num_samples, token, **options)
        return type(info)(run_id, 1, 0, 100, "none") if trigger_id == 1 else info

    monkeypatch.setattr(services.selector, "trigger", without_second)
    run = finish(runs, pipeline_yaml(evaluation=AFTER_TRAINING))
    triggers = runs.journal.triggers(run.run_id)
    assert [t.state for t in triggers] == [TriggerState.TRAINED, TriggerState.EMPTY, TriggerState.TRAINED]
    assert triggers[2].parent_model_id == triggers[0].model_id
    assert {t for t, _ in cells(services, run, "matrix")} == {0, 2}


def test_a_training_that_makes_no_model_leaves_the_one_before_in_use(runs: RunQueue, services: InMemoryServices) -> None:
    nothing = {"nothing_trained": "no whole batch", "preprocessing": {"rows": 9, "unusual": ["60 % of 'age' are missing"]}}
    alter_training(services, lambda request, result: {**result, **nothing} if request.trigger_id == 1 else result)
    run = finish(runs, pipeline_yaml(evaluation=AFTER_TRAINING))
    triggers = runs.journal.triggers(run.run_id)
    assert run.state is RunState.FINISHED
    assert [t.state for t in triggers] == [TriggerState.TRAINED, TriggerState.UNTRAINED, TriggerState.TRAINED]
    assert triggers[1].model_id is None
    assert triggers[1].training_result.nothing_trained == "no whole batch"
    assert triggers[2].parent_model_id == triggers[0].model_id
    assert {t for t, _ in cells(services, run, "matrix")} == {0, 2}
    assert {
        "trigger 1 trained nothing: no whole batch; the model before, if there is one, stays in use",
        "trigger 1: inputs are unusual: 60 % of 'age' are missing",
    } <= {*messages(runs, run)}


def test_late_equal_and_future_timestamps_take_the_same_decisions_in_both_modes(
    runs: RunQueue, services: InMemoryServices
) -> None:
    """What arrives in the order of time, live or replayed, gives the same triggers; what arrives late is not lost."""
    trigger = {"id": "TimeTrigger", "every": "10s"}
    times = [0, 0, 0, 5, 9, 9, 10, 10, 31, 31, 32, 2_000_000_000, 2_000_000_000]
    services.storage.add_dataset("ordered")
    yaml = pipeline_yaml(trigger=trigger, data={"dataset_id": "ordered"})
    services.storage.add_samples("ordered", timestamps=times[:4])
    live = runs.submit(yaml, "p.yaml", PRODUCTION)
    for time in times[4:]:
        services.storage.add_samples("ordered", timestamps=[time])
    eventually(lambda: runs.journal.run(live.run_id).num_samples == len(times))
    eventually(lambda: runs.journal.run(live.run_id).state is RunState.WAITING_FOR_DATA)
    assert stop(runs, live).state is RunState.STOPPED
    replayed = finish(runs, yaml)
    decisions = [
        [(t.position, t.keys_checksum, t.weights_sha256) for t in runs.journal.triggers(r.run_id)] for r in (live, replayed)
    ]
    assert [position for position, _, _ in decisions[0]] == [6, 8, 11]
    assert decisions[0] == decisions[1]

    runs.resume(live.run_id)
    services.storage.add_samples("ordered", timestamps=[1, 2_000_000_010])
    eventually(lambda: runs.journal.run(live.run_id).num_triggers == 4)
    assert runs.journal.triggers(live.run_id)[3].first_timestamp == 1
    assert runs.journal.triggers(live.run_id)[3].position == len(times) + 1
    stop(runs, live)


def test_a_failed_training_fails_the_run_which_can_be_resumed(runs: RunQueue, services: InMemoryServices) -> None:
    train, broken = services.trainer_server.train, [True]

    def sometimes(request: TrainingRequest) -> Any:
        if request.trigger_id == 1 and broken:
            raise UserCodeError("bytes_parser_function raised ValueError on sample 12, line 3")
        return train(request)

    services.trainer_server.train = sometimes
    run = finish(runs, pipeline_yaml(evaluation=AFTER_TRAINING))
    assert (run.state, run.error_reason) == (RunState.FAILED, "USER_CODE")
    assert "on sample 12, line 3" in run.error
    broken.clear()
    run = resume(runs, run)
    assert (run.state, run.error, run.num_triggers) == (RunState.FINISHED, "", 3)
    undisturbed = finish(runs, pipeline_yaml(evaluation=AFTER_TRAINING))
    assert [t.weights_sha256 for t in runs.journal.triggers(run.run_id)] == [
        t.weights_sha256 for t in runs.journal.triggers(undisturbed.run_id)
    ]
    with pytest.raises(ConflictError, match="nothing to resume"):
        runs.resume(run.run_id)


@pytest.mark.parametrize("mode", list(RunMode))
def test_a_run_reads_no_samples_of_another_dataset_of_the_same_name(
    runs: RunQueue, services: InMemoryServices, mode: RunMode
) -> None:
    """The dataset is deleted and registered again with other files while the run is down, so that its keys mean other samples."""
    train, asked = services.trainer_server.train, []

    def fails_first(request: TrainingRequest) -> tuple[int, str, Any]:
        asked.append(request.trigger_id)
        if asked == [0, 1]:
            raise TrainingError("no luck")
        return train(request)

    services.trainer_server.train = fails_first
    failed = finish(runs, pipeline_yaml(), RunOptions(mode))
    assert failed.state is RunState.FAILED
    services.storage.add_dataset("train")
    services.storage.add_samples("train", timestamps=range(35))
    resumed = resume(runs, failed)
    assert resumed.state is RunState.FAILED
    assert "dataset 'train' was deleted, and another was registered under its name" in resumed.error


@pytest.mark.parametrize("text", ["bad value \0 in a column", "cannot read /data/\udcff.png"])
def test_an_error_that_is_not_text_brings_the_run_to_rest(runs: RunQueue, services: InMemoryServices, text: str) -> None:
    def train(request: TrainingRequest) -> Any:
        raise UserCodeError(text)

    services.trainer_server.train = train
    run = finish(runs)
    assert (run.state, run.error_reason) == (RunState.FAILED, "USER_CODE")
    assert sanitize(text) in run.error
    events, complete = runs.journal.events(run.run_id, 0)
    assert complete
    assert isinstance(ended := events[-1].detail, StateChange)
    assert ended.error == run.error
    for event in events:
        to_message(event, supervisor_pb2.RunEvent)


def test_an_evaluation_error_that_is_not_text_is_shown(runs: RunQueue, services: InMemoryServices) -> None:
    services.evaluator.fail = lambda request: "cannot read /data/\udcff.png \0"
    run = finish(runs, pipeline_yaml(evaluation=AFTER_TRAINING))
    assert (run.state, run.failed_evaluations) == (RunState.FINISHED, 3)
    assert r"cannot read /data/\udcff.png" in evaluated(runs, run).error
    for event in runs.journal.events(run.run_id, 0)[0]:
        to_message(event, supervisor_pb2.RunEvent)


def test_an_end_that_cannot_be_written_is_written_plainly(runs: RunQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    real, broken = RunJournal.end, [True]

    def end(self: RunJournal, to: RunState, **detail: str) -> None:
        if broken:
            broken.clear()
            raise ValueError("no")
        real(self, to, **detail)

    monkeypatch.setattr(RunJournal, "end", end)
    run = finish(runs)
    assert (run.state, run.error_reason) == (RunState.FINISHED, "INTERNAL")
    assert "the reason could not be written (ValueError)" in run.error


def test_without_connections_a_run_fails_and_can_be_resumed(
    services: InMemoryServices, make_config: Callable[..., SystemConfig]
) -> None:
    clients: list[RunClients] = []

    def open_clients() -> RunClients:
        clients.append(services.clients())
        if len(clients) == 2:
            raise OSError(24, "Too many open files")
        return clients[-1]

    with services.supervise(make_config(), open_clients) as runs:
        run = finish(runs)
        assert run.state is RunState.FAILED
        assert "Too many open files" in run.error
        assert resume(runs, run).state is RunState.FINISHED


def test_without_a_thread_a_run_waits_for_another_or_is_interrupted(runs: RunQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def none_left(thread: threading.Thread) -> None:
        if thread.name.startswith("test-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        alone = finish(runs)
    assert (alone.state, alone.error_reason) == (RunState.INTERRUPTED, "UNAVAILABLE")
    assert (
        "cannot start a thread for run test-0001 (can't start new thread); end other processes: a production run" in alone.error
    )
    assert resume(runs, alone).state is RunState.FINISHED

    live = live_run(runs)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        waiting = runs.submit(pipeline_yaml(), "p.yaml", EXPERIMENT)
    assert runs.journal.run(waiting.run_id).state is RunState.SUBMITTED
    runs.stop(live.run_id)
    assert wait_until_terminal(runs, waiting.run_id).state is RunState.FINISHED


def held_in_training(runs: RunQueue, services: InMemoryServices) -> tuple[Run, threading.Event]:
    """A run in its first training, which ends once the event is set."""
    train, go = services.trainer_server.train, threading.Event()

    def wait_and_train(request: TrainingRequest) -> Any:
        assert go.wait(PATIENCE_S)
        return train(request)

    services.trainer_server.train = wait_and_train
    run = runs.submit(pipeline_yaml(), "p.yaml", EXPERIMENT)
    eventually(lambda: runs.journal.run(run.run_id).state is RunState.TRAINING)
    return run, go


def test_a_run_that_ends_while_it_is_stopped_is_left_alone(
    runs: RunQueue, services: InMemoryServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, go = held_in_training(runs, services)
    read = runs.journal.run

    def read_before_it_ends(run_id: str) -> Run:
        found = read(run_id)
        if not go.is_set():
            go.set()
            eventually(lambda: not runs._entries)
        return found

    monkeypatch.setattr(runs.journal, "run", read_before_it_ends)
    assert runs.stop(run.run_id).state is RunState.FINISHED


def test_a_run_whose_next_step_is_refused_because_it_stops_is_stopped(
    runs: RunQueue, services: InMemoryServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, go = held_in_training(runs, services)
    become = runs.journal.become

    def continue_as_soon_as_announced(run_id: str, to: RunState, **detail: str) -> Run:
        found = become(run_id, to, **detail)
        go.set()
        eventually(lambda: not runs._entries)
        return found

    monkeypatch.setattr(runs.journal, "become", continue_as_soon_as_announced)
    assert runs.stop(run.run_id).state is RunState.STOPPED


def test_a_stop_that_was_not_written_hides_no_later_conflict(
    runs: RunQueue, services: InMemoryServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, go = held_in_training(runs, services)

    def unreachable(run_id: str, to: RunState, **detail: str) -> Run:
        raise UnavailableError("PostgreSQL is away")

    with monkeypatch.context() as patched:
        patched.setattr(runs.journal, "become", unreachable)
        with pytest.raises(UnavailableError):
            runs.stop(run.run_id)

    def conflicting(*_: object, **__: object) -> Any:
        raise ConflictError("the trigger set of another run is there")

    monkeypatch.setattr(services.selector, "trigger", conflicting)
    go.set()
    ended = wait_until_terminal(runs, run.run_id)
    assert (ended.state, "another run is there" in ended.error) == (RunState.FAILED, True)


def test_a_run_stops_even_if_the_answer_to_that_write_got_lost(
    runs: RunQueue, services: InMemoryServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, go = held_in_training(runs, services)
    become = runs.journal.become

    def loses_its_answer(run_id: str, to: RunState, **detail: str) -> Run:
        become(run_id, to, **detail)
        raise UnavailableError("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(runs.journal, "become", loses_its_answer)
        with pytest.raises(UnavailableError):
            runs.stop(run.run_id)
    go.set()
    assert wait_until_terminal(runs, run.run_id).state is RunState.STOPPED


def test_a_failed_evaluation_is_a_status_that_can_be_made_again(runs: RunQueue, services: InMemoryServices) -> None:
    """The failed evaluation blocks neither trainings nor the handlers at the end. A later success removes it from the run."""
    broken = [True]

    def fail(request: EvaluationRequest) -> str | None:
        return (
            "metric Accuracy raised ZeroDivisionError"
            if request.trigger_id == 1 and request.handler == "matrix" and broken
            else None
        )

    services.evaluator.fail = fail
    handlers = [{"name": "matrix", "execution_time": "after_training"}, {"name": "last", "execution_time": "after_pipeline"}]
    run = finish(runs, pipeline_yaml(evaluation=evaluation(*handlers)))
    assert (run.state, run.error, run.num_triggers, run.failed_evaluations) == (RunState.FINISHED, "", 3, 1)
    assert {trigger_id for trigger_id, _ in cells(services, run, "last")} == {0, 1, 2}

    again = evaluated(runs, run)
    assert (again.state, again.error_reason) == (JobState.FAILED, "INTERNAL")
    assert "evaluation of trigger 1 by handler 'matrix' on dataset 'test' failed: metric Accuracy raised" in again.error
    run = runs.journal.run(run.run_id)
    assert (run.state, run.failed_evaluations) == (RunState.FINISHED, 1)

    broken.clear()
    assert evaluated(runs, run).state is JobState.FINISHED
    run = runs.journal.run(run.run_id)
    assert (run.state, run.failed_evaluations) == (RunState.FINISHED, 0)
    assert [r.trigger_id for r in services.evaluator.started if r.handler == "matrix"] == [0, 1, 2, 1, 1]
    assert len(services.trainer_server.requests) == 3


def test_evaluations_of_a_run_that_continues_and_of_one_that_was_stopped(runs: RunQueue, services: InMemoryServices) -> None:
    manual = evaluation({"name": "asked", "execution_time": "manual"})
    run = live_run(runs, pipeline_yaml(evaluation=manual))
    assert evaluated(runs, run).state is JobState.FINISHED
    assert runs.journal.run(run.run_id).state is RunState.WAITING_FOR_DATA
    assert cells(services, run, "asked") == {(t, anchor) for t in range(3) for anchor in (0, 10, 20, 30)}
    stop(runs, run)
    assert evaluated(runs, run).number == 2
    assert runs.journal.run(run.run_id).state is RunState.STOPPED


def test_a_corrected_section_takes_the_place_of_the_runs_own(runs: RunQueue, services: InMemoryServices) -> None:
    run = finish(runs, pipeline_yaml(evaluation=AFTER_TRAINING))
    order = {"datasets": ["train"], "metrics": ["RocAuc"], "yaml": yaml.safe_dump({**HANDLER, "name": "corrected"})}
    assert evaluated(runs, run, **order).state is JobState.FINISHED
    results = [result for result in services.evaluator.results(run.run_id) if result.handler == "corrected"]
    assert {(result.dataset, result.metric, result.trigger_id) for result in results} == {
        ("train", "RocAuc", t) for t in range(3)
    }
    with pytest.raises(ConfigError, match=r"evaluation\.handlers\.0\.execution_time"):
        runs.evaluate(run.run_id, EvaluationOrder(yaml="name: half"))
    services.evaluator.problems = [Problem("evaluation.datasets.0.metrics.0", "there is no metric 'Acuracy'")]
    with pytest.raises(ConfigError, match="no metric 'Acuracy'"):
        runs.evaluate(run.run_id, EvaluationOrder(metrics=["Acuracy"]))


def test_requested_evaluations_survive_the_supervisor(
    make_config: Callable[..., SystemConfig], services: InMemoryServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(request: EvaluationRequest) -> Any:
        raise UnavailableError("the evaluator cannot be reached")

    config = make_config(supervisor={"patience_s": PATIENCE_S})
    with services.supervise(config) as runs, monkeypatch.context() as patched:
        run = finish(runs, pipeline_yaml(evaluation=evaluation({"name": "asked", "execution_time": "manual"})))
        patched.setattr(services.evaluator, "start", unreachable)
        request = runs.evaluate(run.run_id, EvaluationOrder())
    with services.supervise(config) as runs:
        eventually(lambda: runs.journal.evaluation(run.run_id, request.number).state is JobState.FINISHED)


def test_requested_evaluations_wait_for_postgres_and_for_another_supervisor(
    runs: RunQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, advisory_lock = list[str](), Database.advisory_lock

    def third_time(database: Database, name: str, wait_s: float = 0.0) -> Any:
        asked.append(name)
        if len(asked) == 1:
            raise UnavailableError("PostgreSQL cannot be used")
        return nullcontext(False) if len(asked) == 2 else advisory_lock(database, name, wait_s)

    run = finish(runs, pipeline_yaml(evaluation=evaluation({"name": "asked", "execution_time": "manual"})))
    monkeypatch.setattr(Database, "advisory_lock", third_time)
    assert evaluated(runs, run).state is JobState.FINISHED
    assert asked == [f"evaluation/{run.run_id}/1"] * 3


def test_closing_ends_the_calls_of_requested_evaluations(
    make_config: Callable[..., SystemConfig], services: InMemoryServices
) -> None:
    class NeverEnding(FakeEvaluator):
        """Its evaluations stay queued; a watching call ends when the client is closed."""

        def __init__(self) -> None:
            super().__init__()
            self.watched, self.ended = threading.Event(), threading.Event()
            self.was_closed = False

        def start(self, request: EvaluationRequest) -> EvaluationStatus:
            return EvaluationStatus(request.evaluation_id, JobState.QUEUED)

        def watch(self, evaluation_id: str) -> Iterator[EvaluationStatus]:
            yield EvaluationStatus(evaluation_id, JobState.QUEUED)
            self.watched.set()
            self.was_closed = self.ended.wait(PATIENCE_S)
            raise UnavailableError("the channel was closed")

        def close(self) -> None:
            self.ended.set()

    with services.supervise(make_config(supervisor={"patience_s": PATIENCE_S})) as runs:
        run = finish(runs, pipeline_yaml(evaluation=evaluation({"name": "asked", "execution_time": "manual"})))
        evaluator = services.evaluator = NeverEnding()
        runs.evaluate(run.run_id, EvaluationOrder())
        assert evaluator.watched.wait(PATIENCE_S)
    assert evaluator.was_closed


def test_a_production_run_finishes_in_good_order(runs: RunQueue, services: InMemoryServices) -> None:
    """Its final evaluations are made; also if it was stopped before. What arrives later is not read."""
    section = pipeline_yaml(evaluation=evaluation({"name": "last", "execution_time": "after_pipeline"}))
    ids = [runs.submit(section, "p.yaml", PRODUCTION).run_id for _ in range(2)]
    eventually(lambda: all(runs.journal.run(run_id).state is RunState.WAITING_FOR_DATA for run_id in ids))
    runs.stop(ids[1])
    wait_until_terminal(runs, ids[1])
    for run_id in ids:
        runs.finish(run_id)
        run = wait_until_terminal(runs, run_id)
        assert (run.state, run.num_samples, run.num_triggers) == (RunState.FINISHED, 35, 3)
        assert {trigger_id for trigger_id, _ in cells(services, run, "last")} == {0, 1, 2}
        assert runs.finish(run_id).state is RunState.FINISHED


def test_an_idle_run_that_finishes_fires_its_final_trigger(runs: RunQueue) -> None:
    run_id = live_run(runs, options=RunOptions(RunMode.PRODUCTION, final_trigger=True)).run_id
    runs.finish(run_id)
    run = wait_until_terminal(runs, run_id)
    assert (run.state, run.error, run.num_triggers) == (RunState.FINISHED, "", 4)


def test_a_run_that_is_just_ending_is_resumed_to_finish(runs: RunQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, end = threading.Event(), RunJournal.end

    def end_slowly(self: RunJournal, to: RunState, **detail: str) -> None:
        end(self, to, **detail)
        assert asked.wait(PATIENCE_S)

    monkeypatch.setattr(RunJournal, "end", end_slowly)
    run_id = live_run(runs).run_id
    runs.stop(run_id)
    eventually(lambda: runs.journal.run(run_id).state is RunState.STOPPED)
    runs.finish(run_id)
    asked.set()
    assert wait_until_terminal(runs, run_id).state is RunState.FINISHED


def test_a_handler_that_only_finishing_reaches_is_warned_of(runs: RunQueue) -> None:
    section = pipeline_yaml(evaluation=evaluation({"name": "last", "execution_time": "after_pipeline"}))
    run = runs.submit(section, "p.yaml", PRODUCTION)
    assert run.message == f"handler 'last' evaluates at the end of the run, which `modyn finish {run.run_id}` brings about"
    assert runs.submit(section, "p.yaml", EXPERIMENT).message == ""


def test_what_a_check_warns_of_comes_with_the_run(runs: RunQueue, services: InMemoryServices) -> None:
    """Warnings of the file itself, of what it names, and of the run's mode."""
    services.trainer_server.problems = [Problem("training.seed", "is odd", Severity.WARNING)]
    yaml = pipeline_yaml(
        training={"use_previous_model": True, "batch_size": 50, "seed": 7},
        trigger={"id": "DataAmountTrigger", "num_samples": 60},
        evaluation=evaluation({"name": "last", "execution_time": "after_pipeline"}),
    )
    warnings = [problem for problem in runs.validate(yaml, "p.yaml") if problem.severity is Severity.WARNING]
    run = runs.submit(yaml, "p.yaml", PRODUCTION)
    dataset, file, finishing = run.message.splitlines()
    assert len(warnings) == 2
    assert file == "p.yaml:8: warning: training.seed: is odd"
    assert dataset.startswith("p.yaml:7: warning: training.batch_size: dataset 'train' holds 35 samples")
    assert finishing.startswith("handler 'last' evaluates at the end of the run")
    assert run.message in messages(runs, run), "for those that follow the run"


def test_a_service_that_comes_back_in_time_is_waited_for(runs: RunQueue, services: InMemoryServices, monkeypatch: Any) -> None:
    away = iter([True] * 3)
    real = services.selector.inform

    def inform(*arguments: Any) -> int:
        if next(away, False):
            raise UnavailableError("selector cannot be reached at unix:x")
        return real(*arguments)

    monkeypatch.setattr(services.selector, "inform", inform)
    run = finish(runs)
    assert (run.state, run.num_triggers) == (RunState.FINISHED, 3)


def test_a_run_that_an_outage_interrupts_continues_by_itself_where_all_runs_do(
    make_runs: Callable[..., RunQueue], services: InMemoryServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*arguments: Any, **options: Any) -> Any:
        raise UnavailableError("the trainer server cannot be reached")

    monkeypatch.setattr(services.trainer_server, "start", unreachable)
    runs = make_runs(patience_s=0.1, resume_on_start=True)
    assert finish(runs).state is RunState.INTERRUPTED
    eventually(lambda: REGISTRY.get_sample_value("modyn_supervisor_runs_to_resume") == 1)


@pytest.mark.parametrize("service", ["selector.inform", "selector.trigger", "trainer_server.start"])
def test_a_service_that_stays_away_interrupts_the_run(
    impatient_runs: RunQueue, services: InMemoryServices, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    runs = impatient_runs
    name, _, method = service.partition(".")

    def unreachable(*arguments: Any, **options: Any) -> Any:
        raise UnavailableError(f"{name} cannot be reached at unix:x")

    with monkeypatch.context() as patched:
        patched.setattr(getattr(services, name), method, unreachable)
        run = finish(runs, pipeline_yaml(evaluation=AFTER_TRAINING))
    assert (run.state, run.error_reason) == (RunState.INTERRUPTED, "UNAVAILABLE")
    assert f"{name} cannot be reached at unix:x" in run.error
    assert run.error.endswith(f"(`modyn up`): `modyn resume {run.run_id}` continues it")
    assert resume(runs, run).state is RunState.FINISHED


def test_a_trainer_that_was_restarted_is_asked_again(runs: RunQueue, services: InMemoryServices, monkeypatch: Any) -> None:
    forgotten = [True]
    real = services.trainer_server.watch

    def watch(run_id: str, trigger_id: int) -> Any:
        if forgotten:
            forgotten.clear()
            services.trainer_server._statuses.clear()
            raise NotFoundError("no such training")
        return real(run_id, trigger_id)

    monkeypatch.setattr(services.trainer_server, "watch", watch)
    services.trainer_server.held = {("test-0001", 1)}
    assert finish(runs).state is RunState.FINISHED
    assert forgotten == []


def test_stop_during_a_training_and_resume(runs: RunQueue, services: InMemoryServices, monkeypatch: pytest.MonkeyPatch) -> None:
    started, stopped = threading.Event(), threading.Event()
    real_watch, real_stop = services.trainer_server.watch, services.trainer_server.stop

    def watch(run_id: str, trigger_id: int) -> Any:
        started.set()
        assert stopped.wait(PATIENCE_S)
        return real_watch(run_id, trigger_id)

    def stop(run_id: str, trigger_id: int) -> None:
        real_stop(run_id, trigger_id)
        stopped.set()

    services.trainer_server.held = {("test-0001", 1)}
    with monkeypatch.context() as patched:
        patched.setattr(services.trainer_server, "watch", watch)
        patched.setattr(services.trainer_server, "stop", stop)
        run = runs.submit(pipeline_yaml(), "p.yaml", EXPERIMENT)
        assert started.wait(PATIENCE_S)
        assert runs.stop(run.run_id).state in (RunState.STOPPING, RunState.STOPPED)
        run = wait_until_terminal(runs, run.run_id)
    assert (run.state, run.error) == (RunState.STOPPED, "")
    assert runs.stop(run.run_id).state is RunState.STOPPED
    services.trainer_server.held.clear()
    run = resume(runs, run)
    assert (run.state, run.num_triggers) == (RunState.FINISHED, 3)


def test_a_second_stop_ends_a_run_whose_trainer_never_ends_the_training(
    make_config: Callable[..., SystemConfig], services: InMemoryServices
) -> None:
    class NeverEnding(FakeTrainerServer):
        """Its trainings neither end nor stop; a watching call ends when the client is closed."""

        def __init__(self) -> None:
            super().__init__()
            self.watched, self.ended = threading.Event(), threading.Event()

        def watch(self, run_id: str, trigger_id: int) -> Iterator[TrainingStatus]:
            yield self._status(run_id, trigger_id)
            self.watched.set()
            assert self.ended.wait(PATIENCE_S)
            raise UnavailableError("the channel was closed")

        def stop(self, run_id: str, trigger_id: int) -> None:
            self._status(run_id, trigger_id)

        def close(self) -> None:
            self.ended.set()

    trainer = services.trainer_server = NeverEnding()
    trainer.held = {("test-0001", 0)}
    with services.supervise(make_config(supervisor={"patience_s": PATIENCE_S})) as runs:
        run = runs.submit(pipeline_yaml(), "p.yaml", EXPERIMENT)
        assert trainer.watched.wait(PATIENCE_S)
        assert runs.stop(run.run_id).state is RunState.STOPPING
        assert not trainer.ended.is_set()
        runs.stop(run.run_id)
        assert wait_until_terminal(runs, run.run_id).state is RunState.STOPPED


def test_runs_wait_in_line(make_runs: Callable[..., RunQueue], services: InMemoryServices) -> None:
    runs = make_runs(max_runs=1)
    first = runs.submit(pipeline_yaml(), "p.yaml", PRODUCTION)
    second = runs.submit(pipeline_yaml(), "p.yaml", EXPERIMENT)
    third = runs.submit(pipeline_yaml(), "p.yaml", EXPERIMENT)
    eventually(lambda: runs.journal.run(first.run_id).state is RunState.WAITING_FOR_DATA)
    assert runs.journal.run(second.run_id).state is RunState.SUBMITTED
    assert runs.stop(third.run_id).state is RunState.STOPPED
    runs.stop(first.run_id)
    assert wait_until_terminal(runs, second.run_id).state is RunState.FINISHED
    assert runs.journal.run(third.run_id).state is RunState.STOPPED
    assert [run.run_id for run in runs.journal.runs()] == ["test-0001", "test-0002", "test-0003"]


@pytest.mark.slow
def test_a_hundred_runs_at_once(make_runs: Callable[..., RunQueue], services: InMemoryServices) -> None:
    """More runs than the pool has connections. Each holds its lock; all of them, and other calls, find a connection."""
    runs = make_runs(max_runs=100)
    submitted = [runs.submit(pipeline_yaml(), "p.yaml", PRODUCTION).run_id for _ in range(100)]

    def waiting() -> int:
        return sum(run.state is RunState.WAITING_FOR_DATA for run in runs.journal.runs())

    eventually(lambda: waiting() == 100, lambda: f"only {waiting()} of 100 runs wait for data")
    other = make_runs()
    with pytest.raises(ConflictError, match="executed by another supervisor"):
        other.stop(submitted[99])


def test_a_waiting_run_that_cannot_be_stopped_keeps_its_place(
    make_runs: Callable[..., RunQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*arguments: object) -> Any:
        raise UnavailableError("PostgreSQL cannot be used")

    runs = make_runs(max_runs=1)
    live = runs.submit(pipeline_yaml(), "p.yaml", PRODUCTION)
    waiting = runs.submit(pipeline_yaml(), "p.yaml", EXPERIMENT)
    with monkeypatch.context() as patched:
        patched.setattr(runs.journal, "become", unreachable)
        with pytest.raises(UnavailableError):
            runs.stop(waiting.run_id)
    runs.stop(live.run_id)
    assert wait_until_terminal(runs, waiting.run_id).state is RunState.FINISHED


@pytest.mark.parametrize("begins", ["before it is stopped", "after it is stopped"])
def test_a_run_whose_turn_comes_while_it_is_stopped_is_stopped(
    make_runs: Callable[..., RunQueue], services: InMemoryServices, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    runs = make_runs(max_runs=1)
    live = runs.submit(pipeline_yaml(), "p.yaml", PRODUCTION)
    waiting = runs.submit(pipeline_yaml(data={"dataset_id": "test"}), "p.yaml", PRODUCTION)
    eventually(lambda: runs.journal.run(live.run_id).state is RunState.WAITING_FOR_DATA)
    become = runs.journal.become

    def at_its_turn(run_id: str, to: RunState, **detail: str) -> Run:
        monkeypatch.setattr(runs.journal, "become", become)
        if begins == "before it is stopped":
            runs.stop(live.run_id)
            eventually(lambda: runs.journal.run(waiting.run_id).state is RunState.WAITING_FOR_DATA)
            return become(run_id, to, **detail)
        run = become(run_id, to, **detail)
        runs.stop(live.run_id)
        eventually(lambda: not runs._entries)
        return run

    monkeypatch.setattr(runs.journal, "become", at_its_turn)
    runs.stop(waiting.run_id)
    run = wait_until_terminal(runs, waiting.run_id)
    assert (run.state, run.error) == (RunState.STOPPED, "")
    eventually(lambda: not runs._entries)
    assert (waiting.run_id in services.selector.runs) == (begins == "before it is stopped")


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, "start the service again (`modyn up`): a production run continues by itself, another run by `modyn resume RUN`"),
        ({"resume_on_start": True}, "start the service again (`modyn up`): the run continues by itself"),
        ({"resume_on_start": True, "address": "supervisor:1"}, "start the service again: the run continues by itself"),
    ],
)
def test_a_service_that_stays_away_comes_with_advice_for_this_supervisor(options: dict[str, Any], advice: str) -> None:
    assert retry_policy(SupervisorConfig(**options)).advice == advice


def test_closing_interrupts_and_the_next_supervisor_resumes(
    services: InMemoryServices, make_config: Callable[..., SystemConfig]
) -> None:
    config = make_config(supervisor={"resume_on_start": True, "max_runs": 1})
    with services.supervise(config) as runs:
        live = runs.submit(pipeline_yaml(), "p.yaml", RunOptions(RunMode.PRODUCTION, max_triggers=4))
        waiting = runs.submit(pipeline_yaml(), "p.yaml", EXPERIMENT)
        eventually(lambda: runs.journal.run(live.run_id).state is RunState.WAITING_FOR_DATA)
    with services.supervise(make_config()) as runs:
        assert [run.state for run in runs.journal.runs()] == [RunState.INTERRUPTED] * 2
        advice = "start it again (`modyn up`): the run continues by itself"
        assert runs.journal.run(live.run_id).error == f"the supervisor was stopped; {advice}"
        runs.reconciler.reconcile()
        assert REGISTRY.get_sample_value("modyn_supervisor_runs_to_resume") == 1, "the production run, after its first pause"
    services.storage.add_samples("train", timestamps=range(35, 45))
    with services.supervise(config) as runs:
        assert wait_until_terminal(runs, live.run_id).state is RunState.FINISHED
        assert wait_until_terminal(runs, waiting.run_id).state is RunState.FINISHED
        assert [t.position for t in runs.journal.triggers(live.run_id)] == [10, 20, 30, 40]


def test_closing_marks_a_run_that_does_not_end_in_time(services: InMemoryServices, database: Database) -> None:
    class Deaf(FakeTrainerServer):
        """Its watching call does not end with its client."""

        def __init__(self) -> None:
            super().__init__()
            self.watched, self.let_go = threading.Event(), threading.Event()

        def watch(self, run_id: str, trigger_id: int) -> Iterator[TrainingStatus]:
            yield self._status(run_id, trigger_id)
            self.watched.set()
            assert self.let_go.wait(PATIENCE_S)
            raise UnavailableError("the channel was closed")

    trainer = services.trainer_server = Deaf()
    trainer.held = {("test-0001", 0)}
    runs = RunQueue(Journal(database), EventHub(), services.clients, SupervisorConfig())
    run_id = runs.submit(pipeline_yaml(), "p.yaml", PRODUCTION).run_id
    [thread] = [thread for thread in threading.enumerate() if thread.name == run_id]
    try:
        assert trainer.watched.wait(PATIENCE_S)
        runs.close(within_s=0.0)
        run = runs.journal.run(run_id)
    finally:
        trainer.let_go.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert (run.state, run.error) == (RunState.INTERRUPTED, stopped_with_supervisor(SupervisorConfig()))
    assert runs.journal.run(run_id) == run, "the thread writes no other end"


def test_a_run_that_was_left_after_while_it_stopped_is_stopped(make_runs: Callable[..., RunQueue]) -> None:
    journal = make_runs().journal
    run_id = journal.create(NewRun(EXPERIMENT, "test", pipeline_yaml(), "p.yaml", {}, selection_seed=1)).run_id
    for state in (RunState.STREAMING, RunState.STOPPING):
        journal.become(run_id, state)
    make_runs(resume_on_start=True)
    run = journal.run(run_id)
    assert (run.state, run.error) == (RunState.STOPPED, "")


def test_two_supervisors_do_not_drive_one_run(make_runs: Callable[..., RunQueue]) -> None:
    runs = make_runs()
    live = live_run(runs)
    other = make_runs()
    assert other.journal.run(live.run_id).state is RunState.WAITING_FOR_DATA
    for call in (other.stop, other.resume):
        with pytest.raises(ConflictError, match="executed by another supervisor"):
            call(live.run_id)
    stop(runs, live)


@pytest.mark.parametrize(
    ("options", "sections", "error", "message"),
    [
        ({}, {"data": {"dataset_id": "empty"}}, InvalidArgumentError, "'empty' holds no samples, so there is .*ingest empty"),
        ({"from_timestamp": 100}, {}, InvalidArgumentError, r"holds no samples in \[100, .*its samples lie in \[0, 34\]"),
        ({"mode": RunMode.PRODUCTION, "to_timestamp": 100}, {}, InvalidArgumentError, "no end time"),
        ({"from_timestamp": 5, "to_timestamp": 5}, {}, InvalidArgumentError, r"\[5, 5\) is empty"),
        ({"max_triggers": 0}, {}, InvalidArgumentError, "ask for 1 or more"),
        (
            {},
            {"training": {"use_previous_model": True, "initial_model": "pretrained", "initial_model_id": 77}},
            NotFoundError,
            "training.initial_model_id: there is no model 77",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_its_reason(
    runs: RunQueue,
    services: InMemoryServices,
    options: dict[str, Any],
    sections: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    services.storage.add_dataset("empty")
    with pytest.raises(error, match=message):
        runs.submit(pipeline_yaml(**sections), "p.yaml", replace(EXPERIMENT, **options))
    with pytest.raises(NotFoundError, match="there is no run 'nope-0001'"):
        runs.resume("nope-0001")
    assert runs.journal.runs() == []


def test_mistakes_of_all_services_are_listed_with_their_lines(runs: RunQueue, services: InMemoryServices) -> None:
    services.trainer_server.problems = [Problem("training.batch_size", "0 is wrong: it must be at least 1")]
    yaml = pipeline_yaml(trigger={"id": "DataAmountTriger"}, evaluation=evaluation({"name": "x", "execution_time": "later"}))
    problems = runs.validate(yaml, "p.yaml")
    assert [problem.path for problem in problems] == ["training.batch_size", "trigger.id", "evaluation.handlers.0.execution_time"]
    line = yaml[: yaml.index("batch_size")].count("\n") + 1
    assert problems[0].message.endswith(f"(line {line})")
    with pytest.raises(ConfigError, match=f"p.yaml:{line}: training.batch_size: 0 is wrong"):
        runs.submit(yaml, "p.yaml", EXPERIMENT)
    assert [problem.path for problem in runs.validate("a: [", "p.yaml")] == [""]


def test_a_mistake_that_two_checks_find_is_shown_once_by_the_one_that_knows_more(
    runs: RunQueue, services: InMemoryServices
) -> None:
    config, size = Problem("model.config", "write a mapping of the options"), Problem("training.batch_size", "is too large")
    services.trainer_server.problems = [config, size]
    yaml = pipeline_yaml(
        model={"id": "Fake", "config": [3, 32]},
        training={"use_previous_model": True, "batch_size": 2**30},
    )
    found = [(problem.path, problem.message.partition(" (line")[0]) for problem in runs.validate(yaml, "p.yaml")]
    assert found == [(problem.path, problem.message) for problem in (config, size)]


def test_the_trainer_server_checks_what_the_selection_asks_trainings_for(runs: RunQueue, services: InMemoryServices) -> None:
    gss = {"strategy": "GSS", "buffer_size": 9, "gradient_size": 16}
    section = {"name": "CoresetStrategy", "maximum_keys_in_memory": 100, "keep_scores": True, "presampling_config": gss}
    runs.validate(pipeline_yaml(selection_strategy=section), "p.yaml")
    assert services.trainer_server.scores == ("loss", "gradient_16")


def test_a_warning_of_a_service_hides_no_mistake_at_the_same_place(runs: RunQueue, services: InMemoryServices) -> None:
    services.trainer_server.problems = [Problem("model.config", "is odd", Severity.WARNING)]
    found = runs.validate(pipeline_yaml(model={"id": "Fake", "config": [3, 32]}), "p.yaml")
    assert {problem.severity for problem in found} == {Severity.ERROR, Severity.WARNING}


def test_what_a_pipeline_names_and_is_not_there_is_found_by_check(runs: RunQueue) -> None:
    section = evaluation({"execution_time": "after_training"})
    section["datasets"].append({"dataset_id": "tset"})
    yaml = pipeline_yaml(
        data={"dataset_id": "trian"}, evaluation=section, training={"use_previous_model": True, "initial_model_id": 77}
    )
    found = {problem.path: problem.message for problem in runs.validate(yaml, "p.yaml")}
    assert set(found) == {"data.dataset_id", "evaluation.datasets.1.dataset_id", "training.initial_model_id"}
    assert found["data.dataset_id"].startswith("there is no dataset 'trian', did you mean 'train'? registered: ")
    with pytest.raises(NotFoundError, match=r"data\.dataset_id: there is no dataset 'trian'"):
        runs.submit(yaml, "p.yaml", EXPERIMENT)


@pytest.mark.parametrize(
    ("sections", "bound"),
    [
        (
            {
                "training": BATCHES_OF_4,
                "selection_strategy": {"name": "NewDataStrategy", "maximum_keys_in_memory": 100, "limit": 3},
            },
            "selection_strategy.limit keeps trigger sets at 3 samples",
        ),
        (
            {"training": BATCHES_OF_4, "trigger": {"id": "DataAmountTrigger", "num_samples": 3}},
            "the trigger policy keeps trigger sets at 3 samples",
        ),
        (
            {
                "training": {"use_previous_model": True, "batch_size": 36},
                "selection_strategy": NEW_DATA,
                "trigger": {"id": "TimeTrigger", "every": "10s"},
            },
            "dataset 'train' holds 35 samples",
        ),
    ],
)
def test_a_batch_that_is_never_full_is_refused(runs: RunQueue, sections: dict[str, Any], bound: str) -> None:
    """A dataset that is too small is a warning of the check, for it may grow, and refused for a replay."""
    yaml = pipeline_yaml(**sections)
    (found,) = runs.validate(yaml, "p.yaml")
    assert (found.path, found.severity) == ("training.batch_size", "warning" if bound.startswith("dataset") else "error")
    assert found.message.startswith(f"{bound}: a batch of ")
    with pytest.raises((ConfigError, InvalidArgumentError), match=r"training\.batch_size: .* a batch of \d+ is never full"):
        runs.submit(yaml, "p.yaml", EXPERIMENT)
    whole = dict(sections)
    whole["training"] = {"use_previous_model": True, "batch_size": 36, "drop_last_batch": False}
    assert runs.validate(pipeline_yaml(**whole), "p.yaml") == []


SAMPLED = {"name": "CoresetStrategy", "maximum_keys_in_memory": 100}
SAMPLED["downsampling_config"] = {"strategy": "Loss", "ratio": 30, "sample_then_batch": True}


@pytest.mark.parametrize(
    ("sampled", "warns"),
    [
        (SAMPLED, True),
        (SAMPLED | {"tail_triggers": 0}, False),
        (SAMPLED | {"tail_triggers": 1}, True),
    ],
    ids=["all history", "new samples only", "those of one earlier trigger"],
)
def test_a_batch_is_compared_with_what_a_data_amount_trigger_selects(
    runs: RunQueue, sampled: dict[str, Any], warns: bool
) -> None:
    """A ratio of 30 % leaves 3 of 10 samples, and 6 of 20; the dataset has 35."""
    yaml = pipeline_yaml(training=BATCHES_OF_4, selection_strategy=sampled)
    (found,) = runs.validate(yaml, "p.yaml")
    assert (found.path, found.severity) == ("training.batch_size", "warning" if warns else "error")
    assert (
        "10 samples, of which 3 are left by selection_strategy: a batch of 4 is never full, and nothing is trained"
        in found.message
    )
    assert ("gives the first trigger 10" in found.message) == warns
    if not warns:
        with pytest.raises(ConfigError, match="the trigger policy keeps trigger sets at 10 samples"):
            runs.submit(yaml, "p.yaml", EXPERIMENT)
        return
    assert "the first trigger 10 samples" in runs.submit(yaml, "p.yaml", EXPERIMENT).message
    for options in (replace(EXPERIMENT, max_triggers=1), replace(EXPERIMENT, to_timestamp=19)):
        with pytest.raises(InvalidArgumentError, match=r"samples, and its largest trigger set 10, of which 3 are left"):
            runs.submit(yaml, "p.yaml", options)
    runs.submit(yaml, "p.yaml", replace(EXPERIMENT, to_timestamp=19, final_trigger=True))
    doubled = pipeline_yaml(
        training={"use_previous_model": True, "batch_size": 10}, selection_strategy=sampled | {"tail_triggers": None}
    )
    assert "dataset 'train' holds 35 samples, and its largest trigger set 30, of which 9 are left" in str(
        runs.validate(doubled, "p.yaml")[0]
    )


@pytest.mark.parametrize(
    ("selection", "refused"),
    [
        ({"presampling_config": {"strategy": "Random", "ratio": 48}}, "of which 4 are left by selection_strategy: a batch of 5"),
        ({"presampling_config": {"strategy": "Random", "ratio": 48}, "limit": 9}, "of which 4 are left"),
        ({"presampling_config": {"strategy": "Random", "ratio": 48}, "warmup_triggers": 1}, ""),
        ({"downsampling_config": {"strategy": "Loss", "ratio": 40, "sample_then_batch": True}}, "of which 4 are left"),
        ({"downsampling_config": {"strategy": "Loss", "ratio": 40}}, ""),
        ({"downsampling_config": {"strategy": "Loss", "ratio": 50, "sample_then_batch": True}}, ""),
    ],
)
def test_what_selection_leaves_of_a_trigger_is_less_than_a_batch(runs: RunQueue, selection: dict[str, Any], refused: str) -> None:
    section = {"name": "CoresetStrategy", "maximum_keys_in_memory": 100, "tail_triggers": 0, **selection}
    yaml = pipeline_yaml(training={"use_previous_model": True, "batch_size": 5}, selection_strategy=section)
    found = runs.validate(yaml, "p.yaml")
    assert [problem.severity for problem in found] == ["error"] * bool(refused)
    assert all(refused in problem.message for problem in found)


def test_a_run_of_which_no_trigger_made_a_model_fails(runs: RunQueue, services: InMemoryServices) -> None:
    alter_training(services, lambda request, result: {**result, "nothing_trained": f"no batch in {request.trigger_id}"})
    run = finish(runs)
    assert run.state is RunState.FAILED
    assert run.error == "no trigger of the run made a model; the newest, trigger 2, trained nothing: no batch in 2"


def test_what_a_training_warns_of_and_has_counted_is_journalled(runs: RunQueue, services: InMemoryServices) -> None:
    counted = {"skipped_steps": 5, "num_steps": 8, "ignored_labels": 3, "num_labels": 1200, "warnings": ["steps were skipped"]}
    alter_training(services, lambda request, result: {**result, **(counted if request.trigger_id == 1 else {"skipped_steps": 0})})
    run = finish(runs)
    events = runs.journal.events(run.run_id, 0, 1000)[0]
    assert messages_of(events) == ["trigger 1: steps were skipped"]
    trained = {
        event: event.detail.skipped_steps > 0
        for event in events
        if isinstance(event.detail, TrainStep) and event.detail.state is StepState.FINISHED
    }
    assert list(trained.values()) == [False, True, False]
    line = line_of(list(trained)[1])
    assert line is not None
    assert "5 of 8 steps skipped, 3 of 1,200 labels ignored: model" in line
    table = triggers_table(runs.journal.triggers(run.run_id))
    assert table["skipped_steps"].fillna(0).to_list() == [0, 5, 0]
    assert training_warnings(table) == [(1, "steps were skipped")]


def test_a_run_is_refused_for_what_the_machine_lacks_and_not_for_a_warning(runs: RunQueue, services: InMemoryServices) -> None:
    warning = Problem("training.batch_size", "is odd", Severity.WARNING)
    services.trainer_server.problems = [Problem("training.device", "there is none", Severity.UNAVAILABLE), warning]
    assert {problem.severity for problem in runs.validate(pipeline_yaml(), "p.yaml")} == {Severity.WARNING, Severity.UNAVAILABLE}
    with pytest.raises(ConfigError, match=r"^p.yaml:\d+: training.device: there is none$"):
        runs.submit(pipeline_yaml(), "p.yaml", EXPERIMENT)
    services.trainer_server.problems = [warning]
    assert finish(runs).state is RunState.FINISHED


def test_a_trigger_that_raises_fails_the_run(runs: RunQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    from modyn.supervisor.triggers.amount import DataAmountTrigger

    monkeypatch.setattr(DataAmountTrigger, "next_check", lambda self, batch, start: 3)
    run = finish(runs)
    assert (run.state, run.error_reason) == (RunState.FAILED, "USER_CODE")
    assert "DataAmountTrigger wants to check at position 3" in run.error

    def broken(self: object, batch: object, start: int) -> Any:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(DataAmountTrigger, "next_check", broken)
    run = finish(runs)
    assert (run.state, run.error_reason) == (RunState.FAILED, "INTERNAL")
    assert "ZeroDivisionError: oh" in run.error


def test_evaluation_overlaps_the_next_training(runs: RunQueue, services: InMemoryServices) -> None:
    train, second_training = services.trainer_server.train, threading.Event()

    def train_and_tell(request: TrainingRequest) -> Any:
        if request.trigger_id == 1:
            second_training.set()
        return train(request)

    def score(request: EvaluationRequest, interval: Any, metric: str) -> tuple[float, int]:
        assert second_training.wait(PATIENCE_S), "the next training waits for this evaluation"
        return 0.5, 1

    services.trainer_server.train, services.evaluator.score = train_and_tell, score
    assert finish(runs, pipeline_yaml(evaluation=AFTER_TRAINING)).state is RunState.FINISHED


def test_a_run_that_trains_faster_than_it_evaluates_is_held_back(runs: RunQueue, services: InMemoryServices) -> None:
    release = threading.Event()
    score = services.evaluator.score

    def slow(request: EvaluationRequest, interval: Any, metric: str) -> tuple[float | None, int]:
        assert release.wait(PATIENCE_S)
        return score(request, interval, metric)

    services.evaluator.score = slow
    section = {**AFTER_TRAINING, "after_training_evaluation_workers": 1}
    yaml = pipeline_yaml(trigger={"id": "DataAmountTrigger", "num_samples": 1}, evaluation=section)
    run = runs.submit(yaml, "p.yaml", EXPERIMENT)
    in_line = 1 + BACKLOG
    assert at_rest(lambda: len(services.trainer_server.requests), in_line + 1, rest_s=0.5) == in_line + 1
    release.set()
    assert wait_until_terminal(runs, run.run_id).num_triggers == 35


class Outage:
    """PostgreSQL for the threads that execute runs: away from their `begins_at`-th session on, until `over` is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, begins_at: int) -> None:
        self.failures = 0
        self._sessions = 0
        self._begins_at = begins_at
        self._over = False
        real = Database.session

        def session(database: Database) -> Any:
            self._check()
            return real(database)

        monkeypatch.setattr(Database, "session", session)

    def over(self) -> None:
        self._over = True

    def _check(self) -> None:
        if threading.current_thread().name.startswith("test-"):
            self._sessions += 1
            if self._sessions >= self._begins_at and not self._over:
                self.failures += 1
                raise UnavailableError("PostgreSQL cannot be used")


def test_postgres_may_go_away_for_a_while(runs: RunQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(monkeypatch, begins_at=12)
    run = runs.submit(pipeline_yaml(evaluation=AFTER_TRAINING), "p.yaml", EXPERIMENT)
    eventually(lambda: outage.failures >= 3)
    outage.over()
    run = wait_until_terminal(runs, run.run_id)
    assert (run.state, run.num_triggers) == (RunState.FINISHED, 3)


def test_a_run_without_postgres_is_interrupted_as_soon_as_that_can_be_written_down(
    impatient_runs: RunQueue, services: InMemoryServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, outage, end, ends = impatient_runs, Outage(monkeypatch, begins_at=12), RunJournal.end, [0]

    def third_time(self: RunJournal, to: RunState, **detail: str) -> None:
        ends[0] += 1
        if ends[0] == 3:
            outage.over()
        end(self, to, **detail)

    monkeypatch.setattr(RunJournal, "end", third_time)
    run = finish(runs, pipeline_yaml(evaluation=AFTER_TRAINING))
    assert (run.state, run.error_reason, ends) == (RunState.INTERRUPTED, "UNAVAILABLE", [3])
    run = resume(runs, run)
    assert (run.state, run.num_triggers, len(services.trainer_server.requests)) == (RunState.FINISHED, 3, 3)


@pytest.mark.parametrize(("of", "method"), [(Database, "advisory_lock"), (Journal, "claim")])
def test_a_run_that_cannot_be_claimed_fails_and_can_be_resumed(
    runs: RunQueue, monkeypatch: pytest.MonkeyPatch, of: type, method: str
) -> None:
    def broken(*arguments: object) -> Any:
        raise ValueError("no room for another lock")

    with monkeypatch.context() as patched:
        patched.setattr(of, method, broken)
        run = finish(runs)
    assert (run.state, run.error_reason) == (RunState.FAILED, "INTERNAL")
    assert "ValueError: no room for another lock" in run.error
    assert resume(runs, run).state is RunState.FINISHED
