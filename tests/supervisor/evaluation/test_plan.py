"""Due evaluations at each time, and the parent model of each training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.analysis.results import Kind, composite_model, triggers_table
from modyn.config.evaluation import ModelChoice
from modyn.records import MAX_TIMESTAMP, EvalInterval, Interval
from modyn.supervisor.evaluation import build_strategy, load_evaluation
from modyn.supervisor.evaluation.base import EvaluationStrategy, TrainedModel
from modyn.supervisor.evaluation.between_two_triggers import BetweenTwoTriggersConfig, BetweenTwoTriggersEvalStrategy
from modyn.supervisor.evaluation.offset import OffsetEvalStrategy
from modyn.supervisor.evaluation.plan import Cells, EvaluationPlan, parent_model, requested_tasks, tasks_of_run, trained_models
from modyn.supervisor.journal.records import TriggerRecord, model_at
from modyn.supervisor.journal.states import TriggerState

Rows = dict[int, tuple[EvalInterval, ...]]
"""Cells by the trigger of their model."""


def test_parent_model() -> None:
    assert parent_model(None, True, None) is None
    assert parent_model(None, True, 9) == 9
    assert parent_model(5, True, 9) == 5
    assert parent_model(5, False, 9) == 9
    assert parent_model(5, False, None) is None


def models_of(*intervals: tuple[int, int]) -> list[TrainedModel]:
    """Models of these times, [start, end), with the data ends that a run journals."""
    ends = accumulate((end for _, end in intervals), max)
    return [TrainedModel(i, 100 + i, Interval(*times), end) for i, (times, end) in enumerate(zip(intervals, ends, strict=True))]


def rows(cells: Cells) -> Rows:
    return {model.trigger_id: intervals for model, intervals in cells}


def followed(choice: ModelChoice, strategy: EvaluationStrategy, models: Sequence[TrainedModel], end: int | None) -> list[Rows]:
    """Return the evaluations that are due after each training, and at the end."""
    plan, found = EvaluationPlan(choice, strategy), []
    for model in models:
        plan.add(model)
        found.append(rows(plan.due_now()))
    return [*found, rows(plan.due_at_end(end))]


def whole(choice: ModelChoice, strategy: EvaluationStrategy, models: Sequence[TrainedModel], end: int | None) -> Rows:
    plan = EvaluationPlan(choice, strategy)
    for model in models:
        plan.add(model)
    return rows(plan.due_at_end(end))


class Definition:
    """The plan by its definition: at each time from all intervals of the run so far."""

    def __init__(self, choice: ModelChoice, strategy: EvaluationStrategy) -> None:
        self.choice, self.strategy = choice, strategy

    def intervals(self, models: Sequence[TrainedModel], stream_end: int | None) -> list[EvalInterval]:
        found = list(self.strategy.intervals())
        times = [model.training_interval for model in models]
        ends = list(accumulate((interval.end for interval in times), max))
        if isinstance(self.strategy, OffsetEvalStrategy):
            for data, anchor in zip(times, ends, strict=True):
                around = {"-5s": Interval(data.start - 5, data.start), "0s": data, "inf": Interval(data.end, MAX_TIMESTAMP)}
                chosen = [around[offset] for offset in self.strategy.config.offsets]
                found += [EvalInterval(interval.start, interval.end, anchor) for interval in chosen]
        if isinstance(self.strategy, BetweenTwoTriggersEvalStrategy):
            if stream_end is not None:
                ends.append(max(ends[-1], stream_end))
            start = times[0].start
            for end in ends:
                if start < end:
                    found.append(EvalInterval(start, end, anchor=start))
                    start = end
        return list(dict.fromkeys(found))

    def after_training(self, models: Sequence[TrainedModel]) -> Rows:
        newest, ends = len(models) - 1, [model.data_end for model in models]
        intervals = self.intervals(models, None)
        if self.choice == "matrix":
            return {newest: tuple(intervals)}
        if not newest:
            return {}
        certain = tuple(i for i in intervals if ends[newest - 1] <= i.anchor < ends[newest])
        return {newest if self.choice == "train" else newest - 1: certain}

    def whole(self, models: Sequence[TrainedModel], stream_end: int | None) -> Rows:
        cells: dict[int, list[EvalInterval]] = {}
        ends = [model.data_end for model in models]
        for interval in self.intervals(models, stream_end):
            chosen = [model_at(ends, interval.anchor, following=self.choice == "train")]
            for index in range(len(models)) if self.choice == "matrix" else chosen:
                cells.setdefault(index, []).append(interval)
        return {index: tuple(found) for index, found in sorted(cells.items()) if index >= 0}

    def followed(self, models: Sequence[TrainedModel], stream_end: int | None) -> list[Rows]:
        early = [self.after_training(models[:count]) for count in range(1, len(models) + 1)]
        asked = {(index, interval) for found in early for index, intervals in found.items() for interval in intervals}
        rest = {
            index: tuple(i for i in found if (index, i) not in asked) for index, found in self.whole(models, stream_end).items()
        }
        return [{index: intervals for index, intervals in found.items() if intervals} for found in (*early, rest)]


models_of_runs = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=6).map(
    lambda bounds: models_of(*((start, start + length) for start, length in bounds))
)
CHOICES: tuple[ModelChoice, ...] = ("matrix", "active", "train")
choices = st.sampled_from(CHOICES)
strategies = st.sampled_from(
    [
        {"type": "SlicingEvalStrategy", "eval_every": "7s", "eval_start_from": 0, "eval_end_at": 70},
        {"type": "BetweenTwoTriggersEvalStrategy"},
        {"type": "StaticEvalStrategy", "intervals": [[0, 10], [5, 60]]},
        {"type": "OffsetEvalStrategy", "offsets": ["-5s", "0s", "inf"]},
    ]
)


@given(models_of_runs, strategies, choices, st.integers(0, 30))
def test_a_plan_that_follows_the_run_is_the_one_by_definition(
    models: list[TrainedModel], section: dict[str, object], choice: ModelChoice, more: int
) -> None:
    """This includes late data, with which a model's samples are older than the samples of the previous model."""
    strategy = build_strategy(section)
    stream_end = max(model.training_interval.end for model in models) + more
    found = followed(choice, strategy, models, stream_end)
    assert found == Definition(choice, strategy).followed(models, stream_end)
    complete = whole(choice, strategy, models, stream_end)
    assert complete == Definition(choice, strategy).whole(models, stream_end)
    each = [(index, interval) for due in found for index, intervals in due.items() for interval in intervals]
    assert len(set(each)) == len(each), "each cell once"
    assert set(each) == {(index, interval) for index, intervals in complete.items() for interval in intervals}


class WatchedInterval(EvalInterval):
    """Counts how often it and its like are looked at."""

    looks = 0

    def __getattribute__(self, name: str) -> object:
        WatchedInterval.looks += name == "anchor"
        return super().__getattribute__(name)


class CountingStrategy(EvaluationStrategy):
    """Two intervals for each model and one at the end; counts how often it is asked."""

    Config = BetweenTwoTriggersConfig
    asked = 0

    def after_training(self, models: Sequence[TrainedModel]) -> Iterator[EvalInterval]:
        self.asked += 1
        for start in (models[-1].training_interval.start, models[-1].training_interval.end):
            yield WatchedInterval(start, start + 1, models[-1].data_end)

    def at_end(self, models: Sequence[TrainedModel], stream_end: int) -> Iterator[EvalInterval]:
        self.asked += 1
        yield WatchedInterval(stream_end - 1, stream_end, stream_end)


@pytest.mark.parametrize("choice", CHOICES)
def test_each_interval_is_made_once_and_looked_at_a_few_times(choice: ModelChoice) -> None:
    """The looks at an interval do not grow with the number of models. By the definition above, each later model looks at it."""
    strategy, num_models = CountingStrategy(None), 3000
    models = models_of(*((10 * number, 10 * number + 10) for number in range(num_models)))
    plan, num_cells, before = EvaluationPlan(choice, strategy), 0, WatchedInterval.looks
    for model in models:
        plan.add(model)
        num_cells += sum(len(intervals) for _, intervals in plan.due_now())
    num_cells += sum(len(intervals) for _, intervals in plan.due_at_end(10 * num_models))
    num_intervals = 2 * num_models + 1
    assert num_cells == num_intervals * (num_models if choice == "matrix" else 1)
    assert strategy.asked == num_models + 1
    assert WatchedInterval.looks - before <= 8 * num_intervals


def test_fixed_intervals_are_one_object_for_all_models() -> None:
    section = {"type": "SlicingEvalStrategy", "eval_every": "1s", "eval_start_from": 0, "eval_end_at": 1000}
    models = models_of(*((number, number + 1) for number in range(50)))
    early = followed("matrix", build_strategy(section), models, 50)
    assert len({id(intervals) for due in early for intervals in due.values()}) == 1
    assert len({id(intervals) for intervals in whole("matrix", build_strategy(section), models, 50).values()}) == 1


def test_a_strategy_may_have_fixed_intervals_and_some_of_the_run() -> None:
    class Mixed(BetweenTwoTriggersEvalStrategy):
        """Also the first second."""

        def intervals(self) -> Iterator[EvalInterval]:
            yield EvalInterval(0, 1, 0)

    strategy = Mixed(BetweenTwoTriggersConfig())
    models = models_of((5, 10), (10, 20))
    fixed, first, second, last = EvalInterval(0, 1, 0), EvalInterval(5, 10, 5), EvalInterval(10, 20, 10), EvalInterval(20, 21, 20)
    assert followed("matrix", strategy, models, 21) == [
        {0: (fixed, first)},
        {1: (fixed, first, second)},
        {0: (second, last), 1: (last,)},
    ]
    assert followed("active", strategy, models, 21) == [{}, {0: (second,)}, {1: (last,)}]


def test_what_a_run_evaluates_and_what_is_requested() -> None:
    handler = {"models": "active", "datasets": ["a", "b"], "strategy": {"type": "BetweenTwoTriggersEvalStrategy"}}
    handlers = [
        {**handler, "name": "early", "execution_time": "after_training"},
        {**handler, "name": "late", "execution_time": "after_pipeline", "datasets": ["a"]},
        {**handler, "name": "asked", "execution_time": "manual", "datasets": ["b"]},
    ]
    section = load_evaluation({"datasets": [{"dataset_id": "a"}, {"dataset_id": "b"}], "handlers": handlers})
    models = models_of((0, 10), (10, 20), (20, 30))
    of_run = [(task.handler, task.dataset, task.when, task.trigger_id) for task in tasks_of_run(section, models, 31)]
    assert of_run == [
        *(("early", dataset, when, when - 1) for when in (1, 2) for dataset in "ab"),
        *(("early", dataset, "end", 2) for dataset in "ab"),
        *(("late", "a", "end", trigger_id) for trigger_id in (0, 1, 2)),
    ]
    assert not list(tasks_of_run(section, [], 31)), "without a model"
    for names, expected in (([], {"asked"}), (["early", "late"], {"early", "late"})):
        tasks = list(requested_tasks(section, names, models, 31, "request 1"))
        assert {task.handler for task in tasks} == expected
        assert {task.trigger_id for task in tasks} == {0, 1, 2}


def test_active_is_the_newest_from_before_the_anchor_and_trained_the_next() -> None:
    models = models_of((0, 10), (10, 20), (20, 30))
    strategy = build_strategy({"type": "SlicingEvalStrategy", "eval_every": "5s", "eval_start_from": 0, "eval_end_at": 40})
    active = whole("active", strategy, models, None)
    assert {index: [i.anchor for i in found] for index, found in active.items()} == {0: [10, 15], 1: [20, 25], 2: [30, 35]}
    trained = whole("train", strategy, models, None)
    assert {index: [i.anchor for i in found] for index, found in trained.items()} == {
        1: [10, 15],
        2: [0, 5, 20, 25, 30, 35],
    }, "where none is active, the most recent model counts as trained"
    assert whole("matrix", strategy, models[:1], None)[0][1] == EvalInterval(5, 10, 5)


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.booleans()), min_size=1, max_size=6),
    st.lists(st.integers(-2, 33), min_size=1, max_size=6, unique=True),
)
def test_plan_and_composite_models_choose_as_the_paper_defines(samples: list[tuple[list[int], bool]], anchors: list[int]) -> None:
    """Against the definition, sample by sample; late samples, and triggers that trained nothing, among them."""
    triggers, seen = list[TriggerRecord](), list[int]()
    seen_by: dict[int, list[int]] = {}
    for number, (times, has_model) in enumerate(samples):
        seen += times
        state = TriggerState.TRAINED if has_model else TriggerState.EMPTY
        model = number if has_model else None
        record = TriggerRecord(number, len(seen), min(times), max(times), max(seen), state, 0.0, model_id=model)
        triggers.append(record)
        if has_model:
            seen_by[number] = list(seen)

    def brute_force(anchor: int, choice: str) -> int | None:
        active = max((number for number, times in seen_by.items() if all(time < anchor for time in times)), default=None)
        if choice == "active":
            return active
        return max(seen_by, default=None) if active is None else min((n for n in seen_by if n > active), default=active)

    intervals = [[anchor, anchor + 1] for anchor in sorted(anchors)]
    strategy = build_strategy({"type": "StaticEvalStrategy", "intervals": intervals})
    models = trained_models(triggers)
    choices: tuple[tuple[ModelChoice, Kind], ...] = (("active", "active"), ("train", "trained"))
    for choice, kind in choices:
        expected = {anchor: found for anchor in anchors if (found := brute_force(anchor, choice)) is not None}
        planned = whole(choice, strategy, models, 40)
        assert {i.anchor: trigger_id for trigger_id, intervals in planned.items() for i in intervals} == expected
        composite = composite_model(triggers_table(triggers), anchors, kind)
        assert {anchor: found for anchor, found in zip(anchors, composite, strict=True) if found is not None} == expected


def test_late_data_does_not_make_a_newer_model_older() -> None:
    models = models_of((0, 20), (5, 10))
    strategy = build_strategy({"type": "StaticEvalStrategy", "intervals": [[15, 16], [20, 21]]})
    assert whole("active", strategy, models, None) == {1: (EvalInterval(20, 21, 20),)}
