"""Turns of downsampling policies by the score of the newest model: what decides, mistakes in the file, and whole runs over services in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.downsampling_turns import ScoreThresholds
from modyn.errors import ConfigError, UnavailableError
from modyn.evaluator.client import EvaluationRequest, EvaluationResult, EvaluationStatus
from modyn.records import EvalInterval, RunId
from modyn.supervisor.journal.records import Run, RunMode, RunOptions
from modyn.supervisor.journal.run_events import StepState, TrainStep
from modyn.supervisor.journal.states import RunState
from modyn.supervisor.queue.queue import RunQueue
from modyn.supervisor.run.scored_turns import check_scored_turns, next_turn, score_of
from modyn.testing.fake_evaluator import FakeEvaluator
from modyn.testing.services import InMemoryServices, pipeline_yaml, wait_until_terminal
from modyn.testing.waiting import PATIENCE_S, eventually
from modyn.trainer_server.client import TrainingRequest

SLICES = {"type": "SlicingEvalStrategy", "eval_every": "10s", "eval_start_from": 0, "eval_end_at": 40}
SCORES = {0: 0.5, 1: 0.9, 2: 0.7, 3: 0.85}
"""Accuracies of the models, by trigger."""
DECIDED = [(0, None), (0, 0.5), (2, 0.9), (1, 0.7), (2, 0.85)]
"""Turn and score of each trigger then."""
NUM_TRIGGERS = 5


def result(value: float | None, num_samples: int, dataset: str = "test", metric: str = "Accuracy") -> EvaluationResult:
    interval = EvalInterval(0, 10, 0)
    return EvaluationResult(RunId("r-0001"), 0, 1, "matrix", dataset, interval, metric, value, "", num_samples)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=20), st.randoms())
def test_the_score_is_that_of_all_samples_together_in_any_order(counts: list[tuple[int, int]], chance: Any) -> None:
    """For accuracies, the score is the share of correct predictions over all intervals."""
    intervals = [(min(right, seen), seen) for right, seen in counts]
    results = [result(right / seen if seen else None, seen) for right, seen in intervals]
    right, seen = (sum(column) for column in zip(*intervals, strict=True)) if intervals else (0, 0)
    score = score_of(results, "Accuracy", {"test"})
    assert score == (pytest.approx(right / seen, abs=1e-12) if seen else None)
    chance.shuffle(results)
    assert score_of(results, "Accuracy", {"test"}) == score
    if (
        seen and right * 10**6 % seen == 0
    ):  # a threshold of few digits that is just reached is reached, however the samples are cut
        assert next_turn(ScoreThresholds(values=[right / seen]), score, before=0) == 1


@given(
    st.lists(st.floats(-10, 10), min_size=1, max_size=6, unique=True).map(sorted),
    st.none() | st.floats(-10, 10),
    st.integers(0, 6),
)
def test_the_turn_is_the_number_of_values_that_the_score_has_reached(
    values: list[float], score: float | None, before: int
) -> None:
    found = next_turn(ScoreThresholds(values=values), score, before)
    assert found == (before if score is None else sum(score >= value for value in values))


@pytest.mark.parametrize(
    "results",
    [
        [],
        [result(0.5, 10, metric="F1Score"), result(0.5, 10, "other", metric="F1Score")],
        [result(0.5, 10)],
        [result(None, 10), result(None, 10, "other")],
        [result(0.5, 0), result(0.5, 0, "other")],
        [result(float("nan"), 10), result(float("inf"), 10, "other")],
    ],
    ids=["nothing", "another metric", "a dataset failed", "undefined", "no samples", "not finite"],
)
def test_there_is_no_score(results: list[EvaluationResult]) -> None:
    assert score_of(results, "Accuracy", {"test", "other"}) is None


def section(thresholds: Any, *strategies: str) -> dict[str, Any]:
    named = [{"strategy": name, "ratio": 50} for name in strategies or ("Loss", "RS2", "Uncertainty")]
    return {
        "name": "CoresetStrategy",
        "maximum_keys_in_memory": 100,
        "tail_triggers": 0,
        "downsampling_list": named,
        "downsampling_thresholds": thresholds,
    }


def evaluation(*handlers: dict[str, Any]) -> dict[str, Any]:
    named = [
        {"name": "matrix", "execution_time": "after_training", "datasets": ["test"], "strategy": SLICES, **handler}
        for handler in handlers or ({},)
    ]
    return {"datasets": [{"dataset_id": "test", "metrics": [{"name": "Accuracy"}]}], "handlers": named}


@pytest.mark.parametrize(
    ("thresholds", "handlers", "mistake"),
    [
        ({}, None, "downsampling_thresholds: turns go by a score, and there is no section `evaluation`"),
        ({}, [{"execution_time": "manual"}], "handler: is required: 0 handlers have execution_time after_training: none"),
        ({}, [{}, {"name": "b"}], "handler: is required: 2 handlers have execution_time after_training: matrix, b; name one"),
        ({"handler": "matirx"}, [{}], "handler: 'matirx' is not a handler in evaluation.handlers, did you mean 'matrix'?"),
        (
            {"handler": "b"},
            [{}, {"name": "b", "execution_time": "after_pipeline"}],
            "handler: 'b' has execution_time after_pipeline, too late for the next training. Those with execution_time after_training: matrix",
        ),
        ({}, [{"models": "active"}], "handler: 'matrix' evaluates `models: active`, after a training the model before it"),
        ({"handler": "b"}, [{}, {"name": "b"}], ""),
        ({}, [{}, {"name": "b", "execution_time": "manual"}], ""),
        ({}, [{"models": "train"}], ""),
    ],
)
def test_the_handler_whose_scores_decide(thresholds: dict[str, Any], handlers: list[Any] | None, mistake: str) -> None:
    pipeline: dict[str, Any] = {"selection_strategy": section({"values": [0.6, 0.8], **thresholds})}
    if handlers is not None:
        pipeline["evaluation"] = evaluation(*handlers)
    found = [str(problem) for problem in check_scored_turns(pipeline)]
    assert len(found) == bool(mistake)
    assert all(
        text.startswith(f"selection_strategy.downsampling_thresholds{'.' * mistake.startswith('handler')}") for text in found
    )
    assert all(mistake in text for text in found)


def test_turns_by_number_need_no_evaluation() -> None:
    assert check_scored_turns({"selection_strategy": section([1, 2])}) == []
    assert check_scored_turns({"selection_strategy": "x"}) == []


@pytest.fixture
def services(tmp_path: Path) -> InMemoryServices:
    """Five triggers."""
    services = InMemoryServices(tmp_path)
    for name in ("train", "test"):
        services.storage.add_dataset(name)
        services.storage.add_samples(name, timestamps=range(10 * NUM_TRIGGERS))
    services.evaluator = FakeEvaluator(score=lambda request, _, __: (SCORES.get(request.trigger_id, 0.0), 10))
    return services


def submit(runs: RunQueue, *handlers: dict[str, Any], **options: Any) -> str:
    """Args: options: of `selection_strategy`."""
    selection = {**section({"values": [0.6, 0.8]}), **options}
    yaml = pipeline_yaml(selection_strategy=selection, evaluation=evaluation(*handlers))
    return runs.submit(yaml, "p.yaml", RunOptions(RunMode.EXPERIMENT)).run_id


def finish(runs: RunQueue, *handlers: dict[str, Any], **options: Any) -> Run:
    run = wait_until_terminal(runs, submit(runs, *handlers, **options))
    assert run.state is RunState.FINISHED, run.error
    return run


def decided(runs: RunQueue, run_id: str) -> list[tuple[int | None, float | None]]:
    return [(trigger.downsampling_turn, trigger.downsampling_score) for trigger in runs.journal.triggers(run_id)]


def requested(services: InMemoryServices) -> list[int | None]:
    return [request.downsampling_turn for request in services.trainer_server.requests]


def test_mistakes_are_named_with_their_line_at_submission(runs: RunQueue) -> None:
    yaml = pipeline_yaml(selection_strategy=section({"values": [0.6, 0.8], "handler": "matrx"}), evaluation=evaluation())
    (problem,) = runs.validate(yaml, "p.yaml")
    line = 1 + yaml.splitlines().index("    handler: matrx")
    assert str(problem).startswith("selection_strategy.downsampling_thresholds.handler: 'matrx' is not a handler")
    assert f"(line {line}" in problem.message
    with pytest.raises(ConfigError, match="did you mean 'matrix'"):
        runs.submit(yaml, "p.yaml", RunOptions(RunMode.EXPERIMENT))


def test_each_training_waits_for_the_score_of_the_model_before(runs: RunQueue, services: InMemoryServices) -> None:
    evaluated, started = threading.Event(), threading.Event()
    score = services.evaluator.score

    def held(request: EvaluationRequest, interval: EvalInterval, metric: str) -> tuple[float | None, int]:
        if request.trigger_id == 1:
            started.set()
            assert evaluated.wait(PATIENCE_S)
        return score(request, interval, metric)

    services.evaluator.score = held
    run_id = submit(runs)
    assert started.wait(PATIENCE_S)
    eventually(lambda: runs.journal.run(run_id).state is RunState.SELECTING and len(runs.journal.triggers(run_id)) == 3)
    assert requested(services) == [0, 0]
    evaluated.set()
    wait_until_terminal(runs, run_id)
    assert decided(runs, run_id) == DECIDED
    assert requested(services) == [turn for turn, _ in DECIDED]
    steps = [event.detail for event in runs.journal.events(run_id, 0)[0] if isinstance(event.detail, TrainStep)]
    begun = [step for step in steps if step.state is StepState.STARTED]
    assert [(step.downsampling_turn, step.downsampling_score) for step in begun] == DECIDED


def test_a_run_without_such_thresholds_waits_for_nothing(runs: RunQueue, services: InMemoryServices) -> None:
    evaluated = threading.Event()
    score = services.evaluator.score

    def held(request: EvaluationRequest, interval: EvalInterval, metric: str) -> tuple[float | None, int]:
        assert evaluated.wait(PATIENCE_S)
        return score(request, interval, metric)

    services.evaluator.score = held
    run_id = submit(runs, downsampling_thresholds=[1, 2])
    eventually(lambda: len(services.trainer_server.requests) == NUM_TRIGGERS)
    evaluated.set()
    wait_until_terminal(runs, run_id)
    assert decided(runs, run_id) == [(None, None)] * NUM_TRIGGERS
    assert requested(services) == [None] * NUM_TRIGGERS


def test_an_evaluation_that_fails_leaves_the_turn_as_it_is(runs: RunQueue, services: InMemoryServices) -> None:
    services.evaluator.fail = lambda request: "broken" if request.trigger_id in (0, 2) else None
    assert decided(runs, finish(runs).run_id) == [(0, None), (0, None), (2, 0.9), (2, None), (2, 0.85)]


def test_a_training_without_a_model_leaves_the_newest_model_what_it_is(runs: RunQueue, services: InMemoryServices) -> None:
    train = services.trainer_server.train

    def untrained(request: TrainingRequest) -> Any:
        return (0, "", {"nothing_trained": "diverged"}) if request.trigger_id == 2 else train(request)

    services.trainer_server.train = untrained
    assert decided(runs, finish(runs).run_id) == [(0, None), (0, 0.5), (2, 0.9), (2, 0.9), (2, 0.85)]


def test_warm_up_comes_before_and_waits_for_nothing(runs: RunQueue, services: InMemoryServices) -> None:
    run = finish(runs, warmup_triggers=2)
    assert decided(runs, run.run_id) == [(None, None), (None, None), *DECIDED[2:]]


def test_only_the_handler_that_is_named_counts(runs: RunQueue, services: InMemoryServices) -> None:
    score = services.evaluator.score
    services.evaluator.score = lambda request, *cell: score(request, *cell) if request.handler == "b" else (0.0, 1000)
    run = finish(runs, {}, {"name": "b"}, downsampling_thresholds={"values": [0.6, 0.8], "handler": "b"})
    assert decided(runs, run.run_id) == DECIDED


def test_a_resumed_run_keeps_the_turn_that_is_journalled(make_runs: Callable[..., RunQueue], services: InMemoryServices) -> None:
    """Though the scores have changed since; the triggers after it go by the new ones."""
    runs = make_runs()
    train = services.trainer_server.train
    gone = threading.Event()

    def train_third(request: TrainingRequest) -> Any:
        if request.trigger_id == 2 and not gone.is_set():
            gone.set()
            raise UnavailableError("the trainer server went away for good")
        return train(request)

    services.trainer_server.train = train_third
    run_id = submit(runs)
    assert gone.wait(PATIENCE_S)
    runs.stop(run_id)
    wait_until_terminal(runs, run_id)
    assert decided(runs, run_id) == DECIDED[:3]
    services.evaluator.delete_run(RunId(run_id), ())
    services.evaluator.score = lambda *_: (0.0, 10)
    runs.resume(run_id)
    assert wait_until_terminal(runs, run_id).state is RunState.FINISHED
    assert decided(runs, run_id) == [*DECIDED[:3], (0, 0.0), (0, 0.0)]
    assert requested(services)[-3:] == [2, 0, 0]


class Away(FakeEvaluator):
    """Cannot be reached once it is asked about trigger 1, until it is `back`."""

    def __init__(self) -> None:
        super().__init__(score=lambda request, _, __: (SCORES.get(request.trigger_id, 0.0), 10))
        self.back = threading.Event()

    def start(self, request: EvaluationRequest) -> EvaluationStatus:
        if request.trigger_id == 1 and not self.back.is_set():
            raise UnavailableError("evaluator cannot be reached at unix:x")
        return super().start(request)


def test_a_run_is_interrupted_while_the_evaluator_stays_away(
    make_runs: Callable[..., RunQueue], services: InMemoryServices
) -> None:
    services.evaluator = away = Away()
    runs = make_runs(patience_s=0.2)
    run_id = submit(runs)
    run = wait_until_terminal(runs, run_id)
    assert run.state is RunState.INTERRUPTED
    assert "the evaluator cannot be reached, and its scores decide which policy downsamples the next training; start" in run.error
    assert decided(runs, run_id) == [*DECIDED[:2], (None, None)]
    away.back.set()
    runs.resume(run_id)
    assert wait_until_terminal(runs, run_id).state is RunState.FINISHED
    assert decided(runs, run_id) == DECIDED


def test_a_run_that_waits_for_a_score_can_be_stopped(runs: RunQueue, services: InMemoryServices) -> None:
    services.evaluator = Away()
    run_id = submit(runs)
    eventually(lambda: len(runs.journal.triggers(run_id)) == 3)
    runs.stop(run_id)
    assert wait_until_terminal(runs, run_id).state is RunState.STOPPED
