"""The performance trigger: golden decisions by hand-computed series, and against brute force that knows the whole stream."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.config.base import Severity
from modyn.errors import ConfigError, DataError
from modyn.evaluator.client import Rows, Score
from modyn.evaluator.trigger_section import check_trigger as check_of_evaluator
from modyn.records import SampleBatch
from modyn.supervisor.evidence import EvidenceKind
from modyn.supervisor.triggers import TRIGGERS, build_trigger, check_trigger_section
from modyn.supervisor.triggers.base import CheckRecord
from modyn.supervisor.triggers.measures.questions import OutcomeQuestion, ScoreQuestion
from modyn.testing.checks import check_trigger, decide, example_streams
from modyn.testing.fake_evidence import FakeEvidence
from tests.support.trigger_sections import streams_of_each
from tests.support.triggers import checks, fired

DATASET = {"dataset_id": "d", "metrics": [{"name": "Accuracy"}, {"name": "F1Score", "label": "F1"}]}
STATIC = {"id": "StaticPerformanceThresholdCriterion", "metric": "Accuracy", "metric_threshold": 0.75}
QUANTILE = {"id": "DynamicQuantilePerformanceThresholdCriterion", "metric": "F1", "window_size": 4, "quantile": 0.25}
ROLLING = {"id": "DynamicRollingAveragePerformanceThresholdCriterion", "metric": "Accuracy", "window_size": 3, "deviation": 0.2}
COUNT = {"id": "StaticNumberMisclassificationCriterion", "avoidable_misclassification_threshold": 3}
FORECASTS: dict[str, Any] = {
    "mode": "hindsight",
    "forecasting_method": "rolling_average",
    "data_density_window_size": 5,
    "performance_triggers_window_size": 5,
}


def performance(*criteria: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """A section that checks every 10 samples, with criteria named a, b and so on; by default that accuracy is at least 0.75."""
    named = dict(zip("abcdef", criteria or [STATIC], strict=False))
    defaults = {"evaluation_interval_data_points": 10, "evaluation": {"dataset": DATASET}, "decision_criteria": named}
    return {"id": "PerformanceTrigger", **defaults, **options}


def stream(*wrong: int, every: int = 1) -> SampleBatch:
    """Ten samples for each number, which is that of the last ones with label 0, where FakeEvidence errs."""
    labels = np.concatenate([np.arange(10) < 10 - count for count in wrong]).astype(np.int64)
    return SampleBatch(np.arange(len(labels)), np.arange(len(labels)) * every, labels)


class Recorded(FakeEvidence):
    """Keeps the keys of the samples that a model was evaluated on, by call; a check that `decide` asks for again counts once."""

    def __init__(self, samples: SampleBatch, **options: Any) -> None:
        super().__init__(samples, **options)
        self.evaluated: list[tuple[int, list[int]]] = []

    def outcomes(self, question: OutcomeQuestion) -> Rows | None:
        rows = super().outcomes(question)
        call = (question.model_id, [] if rows is None else rows.keys.tolist())
        if call not in self.evaluated:
            self.evaluated.append(call)
        return rows


def series(records: Sequence[CheckRecord], name: str) -> list[float]:
    """The numbers of a series, in order."""
    return [round(record.numbers[name], 6) for record in records if name in record.numbers]


WARM_UP = {"warmup_intervals": 5, "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 15}}
ESTIMATED = [STATIC | {"metric": metric} for metric in ("EstimatedAccuracyATC", "EstimatedAccuracyDoC")]
CONFIGS: dict[str, dict[str, Any]] = {
    "static": performance(),
    "dynamic": performance(QUANTILE, ROLLING, ROLLING | {"absolute": True, "metric": "F1"}),
    "misclassifications": performance(COUNT, COUNT | {"expected_accuracy": 0.9, "allow_reduction": True}),
    "lookahead": performance(COUNT, mode="lookahead", forecasting_method="rolling_average", evaluation_interval_data_points=7),
    "late labels": performance(QUANTILE, COUNT, label_delay="3d"),
    "no labels": performance(*ESTIMATED, calibration_samples=13),
    "both, late": performance(
        STATIC, *ESTIMATED, label_delay="1d", evaluation_interval_data_points=None, evaluation_interval="2d"
    ),
    "warm-up": performance(QUANTILE, COUNT, **WARM_UP),
    "hysteresis": performance(QUANTILE, COUNT, consecutive_checks=2, min_samples_between_triggers=35),
}


@pytest.mark.parametrize(("name", "titles"), streams_of_each(CONFIGS, 150))
def test_same_decisions_for_any_batching_and_after_any_restart(name: str, titles: list[str]) -> None:
    options = {key: value for key, value in CONFIGS[name].items() if key != "id"}
    streams = example_streams(150)
    for title in titles:
        samples = streams[title]
        source = FakeEvidence(samples, is_error=lambda model_id, found: (found.labels + model_id) % 3 == 0)
        check_trigger(TRIGGERS.get("PerformanceTrigger"), options, streams={title: samples}, source=source)


def test_waits_for_the_first_model_and_fires_below_the_threshold() -> None:
    samples = stream(9, 2, 5, 2, 6, 1)
    records = checks(performance(STATIC | {"metric_threshold": 0.5}), samples)
    assert records[0].numbers == {"first_trigger": 1}
    assert series(records, "Accuracy") == [0.8, 0.5, 0.8, 0.4, 0.9]
    assert fired(records) == [10, 50], "0.5 is not below 0.5"
    assert records[2].numbers == {
        "Accuracy": 0.5, "F1": 0.5, "evaluated_samples": 10, "Accuracy.a.threshold": 0.5, "Accuracy.a.unusual": 0,
        "unusual": 0,
    }  # fmt: skip


def test_each_sample_is_evaluated_once_by_the_newest_model() -> None:
    samples = stream(0, 0, 9, 0, 0)
    source = Recorded(samples)
    assert fired(checks(performance(STATIC, COUNT, QUANTILE), samples, source)) == [10, 30]
    assert [model for model, _ in source.evaluated] == [1, 1, 2, 2]
    assert [key for _, keys in source.evaluated for key in keys] == list(range(10, 50)), "one pass for all criteria"


def test_checks_can_be_explained() -> None:
    samples = stream(0, 5)
    record = checks(performance(STATIC, COUNT | {"expected_accuracy": 0.9}), samples)[1]
    values = [one for one in record.evidence if one.kind is EvidenceKind.VALUE]
    shown = {one.name: (one.value, one.threshold, one.unusual) for one in values}
    assert shown == {
        "Accuracy.a": (0.5, 0.75, True),
        "F1": (0.5, None, None),
        "b": (pytest.approx(4), 3, True),
    }


def test_any_criterion_fires() -> None:
    samples = stream(0, 0, 2, 0, 4)
    strict = STATIC | {"metric_threshold": 0.9}
    assert fired(checks(performance(STATIC, strict), samples)) == [10, 30, 50]


def test_dynamic_criteria_judge_low_scores() -> None:
    samples = stream(0, 1, 2, 1, 3, 0, 5)
    records = checks(performance(QUANTILE), samples)
    assert series(records, "F1") == [0.9, 0.8, 0.9, 0.7, 1.0, 0.5]
    assert series(records, "F1.a.threshold") == [0.9, 0.825, 0.85, 0.775, 0.775]
    assert fired(records) == [10, 30, 50, 70]
    records = checks(performance(ROLLING), samples)
    assert series(records, "Accuracy.a.threshold") == pytest.approx([0.72, 0.68, 0.8 * 2.6 / 3, 0.64, 0.8 * 2.6 / 3], abs=1e-5)
    assert fired(records) == [10, 70]


def test_avoidable_misclassifications_are_not_rounded() -> None:
    samples = stream(*[1] * 15)
    count = COUNT | {"expected_accuracy": 0.92, "avoidable_misclassification_threshold": 1.1}
    records = checks(performance(count), samples)
    assert series(records, "a") == [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 0.2, 0.4]
    assert fired(records) == [10, 70, 130]


def test_a_better_check_reduces_them_only_where_allowed() -> None:
    samples = stream(0, 3, 0, 3, 0, 2)
    count = COUNT | {"expected_accuracy": 0.9, "avoidable_misclassification_threshold": 4.5}
    assert series(checks(performance(count), samples), "a") == [2, 2, 4, 4, 5]
    assert series(checks(performance(count | {"allow_reduction": True}), samples), "a") == [2, 1, 3, 2, 3]


@pytest.mark.parametrize("mode", ["hindsight", "lookahead"])
def test_a_long_good_time_hides_no_later_errors(mode: str) -> None:
    samples = stream(0, 0, 0, 0, 0, 4, 4)
    count = COUNT | {"expected_accuracy": 0.9, "avoidable_misclassification_threshold": 4, "allow_reduction": True}
    records = checks(performance(count, mode=mode), samples)
    assert series(records, "a.so_far" if mode == "lookahead" else "a")[:5] == [0, 0, 0, 0, 3]
    assert min(series(records, "a")) == 0
    assert fired(records) == ([10, 70] if mode == "hindsight" else [10, 60, 70])


def test_the_expected_accuracy_is_forecast_from_those_right_after_triggers() -> None:
    samples = stream(0, 1, 4, 2, 5, 6, 3)
    count = COUNT | {"avoidable_misclassification_threshold": 2}
    records = checks(performance(count, forecasting_method="rolling_average"), samples)
    # Right after triggers 0.9, 0.8 and 0.4; those at 30 and 50 follow from 0.6 and 0.5.
    assert fired(records) == [10, 30, 50, 60]
    assert series(records, "a.expected_accuracy") == [0.9, 0.9, 0.85, 0.85, 0.7, 0.7]
    assert series(records, "a") == [0, 3, 0.5, 4, 3, 0]
    ridge = checks(performance(count), samples)
    assert fired(ridge) == [10, 30, 50]
    # 0.9, 0.8: the line through their mean with slope -0.05 / (0.5 + 1), one and a half steps on.
    assert series(ridge, "a.expected_accuracy")[2:4] == [0.8, 0.8]
    few = checks(performance(count, forecasting_method="rolling_average", performance_triggers_window_size=1), samples)
    assert series(few, "a.expected_accuracy")[:4] == [0.9, 0.9, 0.8, 0.8]


def test_lookahead_adds_what_the_next_check_is_forecast_to_bring() -> None:
    samples = stream(0, 1, 1, 1, 1, 1)
    count = COUNT | {"expected_accuracy": 1.0, "avoidable_misclassification_threshold": 3.5}
    hindsight, lookahead = (checks(performance(count, mode=mode), samples) for mode in ("hindsight", "lookahead"))
    assert series(hindsight, "a") == [1, 2, 3, 4, 1]
    assert fired(hindsight) == [10, 50]
    assert series(lookahead, "a") == [2, 3, 4, 2, 3]
    assert series(lookahead, "a.so_far") == [1, 2, 3, 1, 2]
    assert fired(lookahead) == [10, 40]


def test_lookahead_forecasts_samples_from_as_many_checks_as_it_says() -> None:
    """Days of 10, 20 and 40 samples, at each of which one in ten is avoidable."""
    counts = [10, 10, 20, 40]
    labels = np.concatenate([np.arange(count) % 10 > 0 for count in counts]).astype(np.int64)
    samples = SampleBatch(np.arange(81), np.append(np.repeat(range(4), counts), 4) * 86_400, np.append(labels, 1))
    options: dict[str, Any] = {"evaluation_interval_data_points": None, "evaluation_interval": "1d", "mode": "lookahead"}
    count = COUNT | {"expected_accuracy": 1.0, "avoidable_misclassification_threshold": 99}
    for window, ahead in ((1, [10, 20, 40]), (2, [10, 15, 30]), (20, [10, 15, 70 / 3])):
        averaged = performance(count, **options, data_density_window_size=window, forecasting_method="rolling_average")
        records = checks(averaged, samples)
        assert series(records, "a") == pytest.approx([1 + ahead[0] / 10, 3 + ahead[1] / 10, 7 + ahead[2] / 10], abs=1e-5)


def test_criteria_calibrate_during_warm_up() -> None:
    samples = stream(0, 1, 2, 1, 3, 5)
    records = checks(
        performance(QUANTILE, warmup_intervals=4, warmup_policy={"id": "DataAmountTrigger", "num_samples": 15}), samples
    )
    assert fired(records)[:2] == [15, 30], "the warm-up policy alone"
    at_50 = next(record for record in records if record.position == 50)
    known = [record.numbers["F1"] for record in records if "F1" in record.numbers and record.position < 50]
    assert at_50.numbers["F1.a.threshold"] == np.quantile(known, 0.25)
    at_20 = next(record for record in records if record.position == 20)
    assert at_20.numbers["evaluated_samples"] == 5, "not those that the model was trained on"


class Undefined(FakeEvidence):
    """Scores are not defined for half of the checks."""

    def scores(self, question: ScoreQuestion) -> Sequence[Score]:
        found = super().scores(question)
        if question.windows[-1].stop not in (20, 30):
            return found
        return [replace(score, value=None, note="undefined: all 10 samples are of class 1") for score in found]


def test_an_undefined_score_votes_no_and_is_not_remembered() -> None:
    samples = stream(0, 9, 9, 1, 2, 1)
    records = checks(performance(STATIC | {"metric_threshold": 0.1}, QUANTILE, COUNT), samples, Undefined(samples))
    assert [record.numbers for record in records[1:3]] == [
        {"evaluated_samples": 10, "c": 0, "c.threshold": 3, "c.unusual": 0, "unusual": 0}
    ] * 2
    assert series(records, "F1.b.threshold") == [0.9, 0.825]


class Diverged(FakeEvidence):
    """The model of the second trigger gives NaN for two samples, and this score."""

    keys = (23, 24)
    score: Mapping[str, Any]

    def _rows(self, model_id: int, samples: SampleBatch) -> Rows | None:
        rows = super()._rows(model_id, samples)
        if rows is not None and model_id == 2:
            rows.outputs[np.isin(rows.keys, self.keys), 2] = np.nan
        return rows

    def scores(self, question: ScoreQuestion) -> Sequence[Score]:
        found = super().scores(question)
        return [replace(score, **self.score) for score in found] if question.model_id == 2 else found


NOT_NUMBERS = {
    "value": None,
    "note": "undefined: 2 scores are not a number; 1 of 11 samples were not evaluated: deleted meanwhile",
}


@pytest.mark.parametrize(
    ("criterion", "score", "words"),
    [
        (
            STATIC,
            NOT_NUMBERS,
            "Accuracy of model 2 on 10 samples, of positions 20 to 29 of the stream, is undefined: 2 scores are not a number",
        ),
        (STATIC, NOT_NUMBERS, "the model has diverged: lower its learning rate"),
        (
            STATIC,
            {"value": float("nan")},
            "is nan, which is not finite; correct the metric: where it is undefined, its value is None",
        ),
        (STATIC, {"value": float("-inf")}, "is -inf, which is not finite"),
        (ESTIMATED[0], {}, "what model 2 says of 2 of 10 samples, of positions 20 to 29 of the stream, is not finite"),
        (ESTIMATED[1], {}, "the model has diverged: lower its learning rate"),
    ],
)
def test_what_is_not_finite_is_an_error_and_no_undefined_score(
    criterion: dict[str, Any], score: dict[str, Any], words: str
) -> None:
    samples = stream(0, 9, 0, 0)
    source = Diverged(samples)
    source.score = score
    with pytest.raises(DataError, match=re.escape(words)):
        checks(performance(criterion), samples, source)


def test_estimates_are_not_calibrated_on_what_is_not_finite() -> None:
    samples = stream(0, 9, 0, 0)
    source = Diverged(samples, held_out=lambda model_id: range(7) if model_id == 2 else ())
    source.keys = (3, 4)
    with pytest.raises(DataError, match="what model 2 says of 2 of 7 samples that its training has held out is not finite"):
        checks(performance(*ESTIMATED), samples, source)


def test_without_labelled_samples_nothing_is_asked() -> None:
    samples = stream(0, 9, 9)
    stands_still = SampleBatch(samples.keys, np.minimum(samples.timestamps, 9), samples.labels)
    source = Recorded(stands_still)
    records = checks(performance(label_delay="5s"), stands_still, source)
    assert fired(records) == [10], "with the labels of the first five"
    assert series(records, "evaluated_samples") == [0, 0]
    assert source.evaluated == []


def test_without_a_label_nothing_is_trained() -> None:
    samples = stream(0, 9, 9)
    assert fired(checks(performance(label_delay="1d"), samples)) == []


_TIMES = st.lists(st.integers(-5, 60), min_size=1, max_size=60)


@settings(max_examples=3 * settings().max_examples)
@given(st.data(), _TIMES, st.booleans(), st.integers(1, 9), st.integers(0, 30), st.lists(st.integers(0, 60), max_size=4))
def test_late_labels_against_brute_force(
    data: st.DataObject, times: list[int], ordered: bool, every: int, delay: int, edges: list[int]
) -> None:
    labels = data.draw(st.lists(st.integers(0, 1), min_size=len(times), max_size=len(times)))
    column = np.array(sorted(times) if ordered else times, np.int64)
    samples = SampleBatch(np.arange(len(times)), column, np.array(labels, np.int64))
    section = performance(STATIC | {"metric_threshold": 0.5}, evaluation_interval_data_points=every, label_delay=delay)
    bounds = [0, *sorted(min(edge, len(times)) for edge in edges), len(times)]
    batches = [samples.slice(start, stop) for start, stop in pairwise(bounds)]
    source = Recorded(samples)
    made: dict[int, list[int]] = {}
    records = _decide_once(section, batches, source, made)
    expected_fired, expected = _brute_force(column, np.array(labels), every, delay)
    assert fired(records) == expected_fired
    assert made == expected


def _decide_once(
    section: Mapping[str, Any], batches: Sequence[SampleBatch], source: Recorded, made: dict[int, list[int]]
) -> list[CheckRecord]:
    """All checks; fills in the keys that each evaluated, by position."""
    trigger = build_trigger(section)
    ask = trigger.check

    def check(context: Any) -> Any:
        source.evaluated.clear()
        answer = ask(context)
        if source.evaluated and source.evaluated[0][1]:
            made[context.position] = sorted(source.evaluated[0][1])
        return answer

    trigger.check = check  # type: ignore[method-assign]
    return decide(trigger, batches, source=source)


def _brute_force(times: Any, labels: Any, every: int, delay: int) -> tuple[list[int], dict[int, list[int]]]:
    """Where it fires and what each check evaluates, sample by sample: those whose label has newly come, and first came after the model. Without a
    model it fires at the first check with a label."""
    fires, evaluated, known, model = list[int](), dict[int, list[int]](), set[int](), None
    for position in range(every, len(times) + 1, every):
        newest = times[:position].max()
        come = {i for i in range(position) if times[i] <= newest - delay} - known
        known |= come
        due: list[int] = sorted(come) if model is not None else []
        if due:
            evaluated[position] = due
        if (model is None and known) or (due and labels[due].mean() < 0.5):
            fires.append(position)
            model = position
    return fires, evaluated


@pytest.mark.parametrize(("metric", "expected"), [("EstimatedAccuracyATC", [0.9, 0.4]), ("EstimatedAccuracyDoC", [0.9, 0.75])])
def test_accuracy_is_estimated_without_labels(metric: str, expected: list[float]) -> None:
    samples = stream(2, 1, 6)
    source = Recorded(samples)
    records = checks(performance(STATIC | {"metric": metric, "metric_threshold": 0.8}), samples, source)
    # Calibrated on the first ten that the model was not trained on: 0.9 right, of confidence 0.9, and an error of 0.6.
    assert series(records, "calibration.accuracy") == [0.9, 0.9]
    assert series(records, "calibration.mean_confidence") == [0.87, 0.87]
    assert series(records, "calibration.confidence_threshold") == [0.9, 0.9]
    assert series(records, metric) == pytest.approx(expected)
    assert series(records, "estimated_samples") == [10, 10]
    assert fired(records) == [10, 30]
    assert [keys for _, keys in source.evaluated] == [list(range(10, 20)), list(range(20, 30))], "each once, none of the training"


@pytest.mark.parametrize(("metric", "expected"), [("EstimatedAccuracyATC", [0.9, 0.4]), ("EstimatedAccuracyDoC", [0.83, 0.68])])
def test_estimates_are_calibrated_on_samples_that_were_held_out(metric: str, expected: list[float]) -> None:
    samples = stream(2, 1, 6)
    source = FakeEvidence(samples, held_out=lambda model_id: [3, 4, 5, 6, 9])
    asked = performance(STATIC | {"metric": metric, "metric_threshold": 0.7})
    records = checks(asked, samples, source)
    # 0.8 right, of confidence 0.9, and an error of 0.6.
    assert series(records, "calibration.accuracy") == [0.8, 0.8]
    assert series(records, "calibration.mean_confidence") == [0.84, 0.84]
    assert series(records, metric) == pytest.approx(expected)
    assert fired(records) == [10, 30]
    newest = checks({**asked, "calibration_samples": 1}, samples, source)
    assert series(newest, "calibration.accuracy")[0] == 0


def test_samples_that_were_held_out_count_once_their_labels_have_come() -> None:
    samples = stream(2, 0, 0, 0, 0, every=86_400)
    source = FakeEvidence(samples, held_out=lambda model_id: [1, 2])
    records = checks(performance(ESTIMATED[0], label_delay="25d"), samples, source)
    # At 30 the labels of the first five days have come, which the first model is trained on.
    found = {record.position: record.numbers.get("calibration.accuracy") for record in records}
    assert found == {10: None, 20: None, 30: None, 40: 1, 50: 1}


def test_calibration_takes_the_newest_samples_with_labels() -> None:
    samples = stream(0, 0, 1, 0, 0, 0, every=3600)
    source = Recorded(samples)
    asked = performance(ESTIMATED[0], evaluation_interval_data_points=15, label_delay="10h", calibration_samples=4)
    records = checks(asked, samples, source)
    assert (1, list(range(5, 20))) in source.evaluated, "the labels that have come at 30, since the trigger at 15"
    assert series(records, "calibration.accuracy") == [1, 1, 1]


def test_labels_that_come_too_late_for_the_stream_are_said() -> None:
    samples = stream(0, 0, 0, 0)
    for delay, is_said in (("1h", True), ("15s", False), (0, False)):
        policy = build_trigger(performance(label_delay=delay))
        decide(policy, [samples], source=FakeEvidence(samples))
        assert ("so nothing was measured" in policy.end_warning()) is is_said, delay


def test_one_class_only_is_estimated_and_is_not_a_change() -> None:
    samples = stream(0, 0, 0, 0)
    records = checks(performance(STATIC, *ESTIMATED, QUANTILE), samples)
    assert fired(records) == [10]
    assert series(records, "EstimatedAccuracyATC") == series(records, "EstimatedAccuracyDoC") == [1, 1, 1]


def test_an_unknown_metric_is_named() -> None:
    samples = stream(0, 0)
    with pytest.raises(ConfigError, match="has no metric 'Acuracy', did you mean 'Accuracy'"):
        checks(performance(QUANTILE | {"metric": "Acuracy"}), samples)


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({"decision_criteria": {}}, "decision_criteria", "at least 1"),
        ({"decision_criteria": {"a": 3}}, "decision_criteria.a", "3 is wrong"),
        ({"decision_criteria": {"a": {}}}, "decision_criteria.a.id", "the name of a performance criterion"),
        ({"decision_criteria": {"a": STATIC | {"id": "StaticPerformanceCriterion"}}}, "decision_criteria.a.id", "did you mean"),
        (
            {"decision_criteria": {"a": {**STATIC, "metric_treshold": 1}}},
            "decision_criteria.a.metric_treshold",
            "metric_threshold",
        ),
        ({"decision_criteria": {"a": {**QUANTILE, "quantile": 1}}}, "decision_criteria.a.quantile", "less than 1"),
        ({"decision_criteria": {"a": {**COUNT, "expected_accuracy": 80}}}, "decision_criteria.a.expected_accuracy", "equal to 1"),
        ({"decision_criteria": {"Accuracy": COUNT}}, "decision_criteria.Accuracy", "choose another name"),
        ({"evaluation": {}}, "evaluation.dataset", "is required"),
        ({"evaluation": {"dataset": {}, "label_transformer_function": "x ="}}, "evaluation.label_transformer_function", "Python"),
        (
            {"evaluation": {"dataset": {"label_transformer_function": "a.b:c"}, "label_transformer_function": "a.b:c"}},
            "evaluation",
            "once",
        ),
        ({"mode": "foresight"}, "mode", "hindsight"),
        ({"forecasting_method": "ridge"}, "forecasting_method", "ridge_regression"),
        ({"data_density_window_size": 0}, "data_density_window_size", "or equal to 1"),
        ({"performance_triggers_window_size": 0}, "performance_triggers_window_size", "or equal to 1"),
        ({"label_delay": "-1d"}, "label_delay", "duration"),
    ],
)
def test_mistakes(options: dict[str, Any], path: str, words: str) -> None:
    found = check_trigger_section(performance(**options))
    assert [problem.path for problem in found] == [f"trigger.{path}"]
    assert words in found[0].message


DEFAULTS: dict[str, Any] = {
    "warmup_intervals": None,
    "warmup_policy": None,
    "mode": "hindsight",
    "forecasting_method": "ridge_regression",
    "data_density_window_size": 20,
    "performance_triggers_window_size": 10,
}
"""Options of the trigger and their defaults, as `design/pipeline-schema.md` lists them."""
WHOLE_CRITERIA: list[dict[str, Any]] = [
    STATIC,
    {"id": QUANTILE["id"], "metric": "Accuracy", "window_size": 10, "quantile": 0.05},
    {"id": ROLLING["id"], "metric": "Accuracy", "window_size": 10, "deviation": 0.05, "absolute": False},
    {**COUNT, "expected_accuracy": None, "allow_reduction": False},
]
"""Every criterion with all of its options."""
WHOLE_EVALUATION = {
    "device": "cpu",
    "dataset": {"dataset_id": "d", "bytes_parser_function": "a.b:c", "batch_size": 4, "metrics": [{"name": "Accuracy"}]},
    "label_transformer_function": None,
}


@pytest.mark.parametrize("criterion", WHOLE_CRITERIA, ids=lambda criterion: criterion["id"])
def test_every_option_may_be_used_together_with_every_criterion(criterion: dict[str, Any]) -> None:
    written = performance(criterion, evaluation=WHOLE_EVALUATION, **DEFAULTS)
    assert check_trigger_section(written) == []
    assert check_of_evaluator({"trigger": written}) == []
    for name, value in DEFAULTS.items():
        assert check_trigger_section(performance(criterion, **{name: value})) == []
    for name, value in FORECASTS.items():
        found = check_trigger_section(performance(criterion, **{name: value}))
        assert all(problem.severity is Severity.WARNING and problem.path == f"trigger.{name}" for problem in found)


def test_options_of_forecasts_are_for_criteria_of_misclassifications() -> None:
    changed = {**FORECASTS, "mode": "lookahead"}
    found = check_trigger_section(performance(STATIC, **changed))
    assert [(problem.path, problem.severity) for problem in found] == [(f"trigger.{name}", Severity.WARNING) for name in changed]
    assert "has an effect on StaticNumberMisclassificationCriterion only" in found[0].message
    assert build_trigger(performance(STATIC, **changed)).state()
    assert check_trigger_section(performance(STATIC, COUNT, **changed)) == []


def test_a_label_transformer_next_to_the_dataset_reaches_the_evaluator() -> None:
    asked: list[Mapping[str, Any]] = []

    class Source(FakeEvidence):
        def scores(self, question: ScoreQuestion) -> Sequence[Score]:
            asked.append({**question.dataset, "device": question.device})
            return super().scores(question)

    samples = stream(0, 0)
    evaluation = {"dataset": DATASET, "device": "cuda:0", "label_transformer_function": "a.b:c"}
    checks(performance(evaluation=evaluation), samples, Source(samples))
    assert asked[0] == {**DATASET, "label_transformer_function": "a.b:c", "device": "cuda:0"}


EXPECTED = COUNT | {"expected_accuracy": 0.9}


@pytest.mark.parametrize(
    ("criteria", "mode", "warned"),
    [
        ([COUNT], "hindsight", ["data_density_window_size"]),
        ([COUNT], "lookahead", []),
        ([EXPECTED], "hindsight", ["data_density_window_size", "performance_triggers_window_size", "forecasting_method"]),
        ([EXPECTED], "lookahead", ["performance_triggers_window_size"]),
        ([EXPECTED, COUNT, STATIC], "lookahead", []),
    ],
)
def test_options_of_forecasts_that_nothing_asks_for_are_named(
    criteria: list[dict[str, Any]], mode: str, warned: list[str]
) -> None:
    found = check_trigger_section(performance(*criteria, **FORECASTS | {"mode": mode}))
    assert [(problem.path, problem.severity) for problem in found] == [(f"trigger.{name}", Severity.WARNING) for name in warned]
    assert all("leave" in problem.message for problem in found)


def test_samples_to_calibrate_on_are_for_estimates() -> None:
    (found,) = check_trigger_section(performance(STATIC, calibration_samples=7))
    assert (found.path, found.severity) == ("trigger.calibration_samples", Severity.WARNING)
    assert "EstimatedAccuracyATC and EstimatedAccuracyDoC" in found.message
    for criterion in (ESTIMATED[1], EXPECTED | {"metric": "EstimatedAccuracyATC"}):
        assert check_trigger_section(performance(STATIC, criterion, calibration_samples=7)) == []


def test_estimates_wait_for_the_first_label_and_say_so() -> None:
    """Labels after nine days. Ten samples come within ten days, twenty at the last of these, without further labels, and then one a day."""
    samples = stream(0, 0, 0, 0, 6, 0)
    days = np.concatenate([np.arange(10), np.full(20, 9), np.arange(10, 40)])
    samples = SampleBatch(samples.keys, days * 86_400, samples.labels)
    section = performance(ESTIMATED[0], label_delay="9d", calibration_samples=4)
    policy = build_trigger(section)
    assert fired(decide(policy, [samples.slice(0, 20)], source=FakeEvidence(samples))) == [10]
    assert "cannot be calibrated" in (policy.warning() or "")
    assert policy.end_warning() == policy.warning()

    policy = build_trigger(section)
    records = decide(policy, [samples], source=FakeEvidence(samples))
    assert [record.position for record in records if "calibration.accuracy" in record.numbers] == [40, 50, 60]
    assert fired(records) == [10, 50]
    assert [record.numbers.get("EstimatedAccuracyATC") for record in records] == [None, None, None, 1.0, 0.4, 1.0]
    source = FakeEvidence(samples, held_out=lambda model_id: [0])
    records = decide(build_trigger(section), [samples], source=source)
    assert [record.position for record in records if "calibration.accuracy" in record.numbers] == [20, 30, 40, 50, 60]
    check_trigger(TRIGGERS.get("PerformanceTrigger"), {k: v for k, v in section.items() if k != "id"},
                  streams={"daily": samples}, source=FakeEvidence(samples))  # fmt: skip
