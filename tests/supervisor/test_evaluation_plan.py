"""Which evaluations are due when, and what a training starts from."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from modyn.analysis.results import Kind, composite_model, triggers_table
from modyn.records import EvalInterval, Interval
from modyn.supervisor.evaluation import ModelChoice, build_strategy
from modyn.supervisor.evaluation_plan import EvaluationPlan, TrainedModel, trained_models
from modyn.supervisor.executor import parent_model
from modyn.supervisor.records import TriggerRecord
from modyn.supervisor.states import TriggerState


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


models_of_runs = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=6).map(
    lambda bounds: models_of(*((start, start + length) for start, length in bounds))
)
strategies = st.sampled_from(
    [
        {"type": "SlicingEvalStrategy", "eval_every": "7s", "eval_start_from": 0, "eval_end_at": 70},
        {"type": "BetweenTwoTriggersEvalStrategy"},
        {"type": "StaticEvalStrategy", "intervals": [[0, 10], [5, 60]]},
        {"type": "OffsetEvalStrategy", "offsets": ["-5s", "0s", "inf"]},
    ]
)


@given(models_of_runs, strategies, st.sampled_from(["matrix", "active", "train"]), st.integers(0, 30))
def test_what_is_due_early_and_at_the_end_is_the_whole_each_cell_once(
    models: list[TrainedModel], strategy: dict[str, object], choice: ModelChoice, more: int
) -> None:
    """Also with late data, where a model's samples are older than those of the one before."""
    plan = EvaluationPlan(choice, build_strategy(strategy))
    stream_end = max(model.training_interval.end for model in models) + more
    early = [
        (index, interval)
        for count in range(1, len(models) + 1)
        for index, found in plan.after_training(models[:count]).items()
        for interval in found
    ]
    late = [(index, interval) for index, found in plan.rest(models, stream_end).items() for interval in found]
    whole = [(index, interval) for index, found in plan.whole(models, stream_end).items() for interval in found]
    assert sorted(early + late, key=repr) == sorted(whole, key=repr)
    assert len(set(whole)) == len(whole)


def test_active_is_the_newest_from_before_the_anchor_and_trained_the_next() -> None:
    models = models_of((0, 10), (10, 20), (20, 30))
    strategy = build_strategy({"type": "SlicingEvalStrategy", "eval_every": "5s", "eval_start_from": 0, "eval_end_at": 40})
    active = EvaluationPlan("active", strategy).whole(models, None)
    assert {index: [i.anchor for i in found] for index, found in active.items()} == {0: [10, 15], 1: [20, 25], 2: [30, 35]}
    trained = EvaluationPlan("train", strategy).whole(models, None)
    assert {index: [i.anchor for i in found] for index, found in trained.items()} == {
        1: [10, 15],
        2: [0, 5, 20, 25, 30, 35],
    }, "where none is active, the most recent model counts as trained"
    assert EvaluationPlan("matrix", strategy).whole(models[:1], None)[0][1] == EvalInterval(5, 10, 5)


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
        planned = EvaluationPlan(choice, strategy).whole(models, 40)
        assert {i.anchor: models[index].trigger_id for index, cells in planned.items() for i in cells} == expected
        composite = composite_model(triggers_table(triggers), anchors, kind)
        assert {anchor: found for anchor, found in zip(anchors, composite, strict=True) if found is not None} == expected


def test_late_data_does_not_make_a_newer_model_older() -> None:
    models = models_of((0, 20), (5, 10))
    plan = EvaluationPlan("active", build_strategy({"type": "StaticEvalStrategy", "intervals": [[15, 16], [20, 21]]}))
    assert plan.whole(models, None) == {1: (EvalInterval(20, 21, 20),)}
