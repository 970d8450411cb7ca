"""Which evaluations are due when, and what a training starts from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modyn.records import EvalInterval, Interval
from modyn.supervisor.evaluation import ModelChoice, build_strategy
from modyn.supervisor.evaluation_plan import EvaluationPlan, TrainedModel
from modyn.supervisor.executor import parent_model
from modyn.supervisor.records import data_ends, model_at


def test_parent_model() -> None:
    assert parent_model([], True, None) is None
    assert parent_model([], True, 9) == 9
    assert parent_model([3, 5], True, 9) == 5
    assert parent_model([3, 5], False, 9) == 9
    assert parent_model([3, 5], False, None) is None


models_of_runs = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=6).map(
    lambda bounds: [TrainedModel(i, 100 + i, Interval(start, start + length)) for i, (start, length) in enumerate(bounds)]
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
    models = [TrainedModel(i, i, Interval(10 * i, 10 * i + 10)) for i in range(3)]
    strategy = build_strategy({"type": "SlicingEvalStrategy", "eval_every": "5s", "eval_start_from": 0, "eval_end_at": 40})
    active = EvaluationPlan("active", strategy).whole(models, None)
    assert {index: [i.anchor for i in found] for index, found in active.items()} == {0: [10, 15], 1: [20, 25], 2: [30, 35]}
    trained = EvaluationPlan("train", strategy).whole(models, None)
    assert {index: [i.anchor for i in found] for index, found in trained.items()} == {
        0: [0, 5],
        1: [10, 15],
        2: [20, 25, 30, 35],
    }
    assert EvaluationPlan("matrix", strategy).whole(models[:1], None)[0][1] == EvalInterval(5, 10, 5)


def test_late_data_does_not_make_a_newer_model_older() -> None:
    ends = data_ends([19, 9])
    assert ends == [20, 20]
    assert model_at(ends, 19) == -1
    assert model_at(ends, 20) == 1
    models = [TrainedModel(0, 1, Interval(0, 20)), TrainedModel(1, 2, Interval(5, 10))]
    plan = EvaluationPlan("active", build_strategy({"type": "StaticEvalStrategy", "intervals": [[15, 16], [20, 21]]}))
    assert plan.whole(models, None) == {1: (EvalInterval(20, 21, 20),)}
