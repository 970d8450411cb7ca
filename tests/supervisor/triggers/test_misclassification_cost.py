"""The cost trigger of avoidable misclassifications: against a brute force that knows the whole stream, and its units."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.base import Severity
from modyn.errors import DataError
from modyn.evaluator.client import Rows
from modyn.records import SampleBatch
from modyn.supervisor.triggers import TRIGGERS, build_trigger, check_trigger_section
from modyn.supervisor.triggers.base import CheckRecord
from modyn.supervisor.triggers.measures.questions import OutcomeQuestion
from modyn.testing.checks import check_trigger, decide, example_streams
from modyn.testing.fake_evidence import FakeEvidence
from tests.support.trigger_sections import streams_of_each
from tests.support.triggers import fired

ID = "AvoidableMisclassificationCostTrigger"
RATE = "avoidable_misclassification_latency_per_training_second"
DAY = 86_400


def section(**options: Any) -> dict[str, Any]:
    """A section that checks every 10 samples after a warm-up of 10 with one trigger at its end, and expects an accuracy of 0.9."""
    evaluation = {"dataset": {"dataset_id": "d", "metrics": [{"name": "Accuracy"}]}}
    warm_up = {"warmup_intervals": 1, "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 10}}
    defaults = {"evaluation_interval_data_points": 10, "evaluation": evaluation, "expected_accuracy": 0.9, RATE: 100, **warm_up}
    return {"id": ID, **defaults, **options}


CRITERIA = [
    {"id": "StaticPerformanceThresholdCriterion", "metric": "Accuracy", "metric_threshold": 0.75},
    {"id": "DynamicQuantilePerformanceThresholdCriterion", "metric": "Accuracy", "window_size": 10, "quantile": 0.05},
    {"id": "DynamicRollingAveragePerformanceThresholdCriterion", "metric": "Accuracy", "window_size": 10, "deviation": 0.05},
    {"id": "StaticNumberMisclassificationCriterion", "avoidable_misclassification_threshold": 3},
]


def stream(labels: Sequence[int], times: Sequence[int] | None = None) -> SampleBatch:
    """Samples of these labels, one a second unless `times` are given; FakeEvidence errs where the label is 0."""
    column = np.arange(len(labels)) if times is None else np.array(times, np.int64)
    return SampleBatch(np.arange(len(labels)), column, np.array(labels, np.int64))


def checks(samples: SampleBatch, **options: Any) -> list[CheckRecord]:
    """All checks of a stream in one batch. Its trainings take 1 s, as `decide` says."""
    return decide(build_trigger(section(**options)), [samples], source=FakeEvidence(samples))


CONFIGS: dict[str, dict[str, Any]] = {
    "expected": {RATE: DAY},
    "forecast": {"expected_accuracy": None, RATE: 1000},
    "late labels": {"label_delay": "2d", RATE: DAY},
    "time": {"evaluation_interval_data_points": None, "evaluation_interval": "1d"},
    "lookahead": {"mode": "lookahead", "forecasting_method": "rolling_average", RATE: DAY},
    "reduction": {"allow_reduction": True, "expected_accuracy": 0.7, RATE: DAY, "consecutive_checks": 2},
}


@pytest.mark.parametrize(("name", "titles"), streams_of_each(CONFIGS, 80, all_timed=True))
def test_same_decisions_for_any_batching_and_after_any_restart(name: str, titles: list[str]) -> None:
    options = {key: value for key, value in section(**CONFIGS[name]).items() if key != "id" and value is not None}
    streams = example_streams(80)
    for title in titles:
        samples = streams[title]
        check_trigger(TRIGGERS.get(ID), options, streams={title: samples}, source=FakeEvidence(samples))


def _regret(times: Sequence[int], labels: Sequence[int], delay: int, trigger: int, checked: Sequence[int]) -> float:
    """At the last of the positions `checked`, each sample by itself. Args: trigger: position of the last one. checked: from the first check on."""
    counted, regret, now = set[int](), 0.0, max(times[: checked[-1]])
    for position in checked:
        at = max(times[:position])
        known = {i for i in range(position) if not delay or times[i] <= at - delay}
        if position > trigger:
            new = known - counted  # without those that the model was trained on: their labels had come at the trigger
            errors = [i for i in new if labels[i] == 0]
            avoidable = max(0.0, 0.9 * len(new) - (len(new) - len(errors)))
            regret += sum(avoidable / len(errors) * (now - times[i]) for i in errors)
        counted |= known
    return regret


def _first_trigger(times: Sequence[int], every: int, delay: int) -> int | None:
    """Where a policy fires that warms up for one interval: there if the labels of all its samples have come, or else at the next check before which
    any label has come."""
    for position in range(every, len(times) + 1, every):
        num_known = sum(time <= max(times[:position]) - delay for time in times[:position]) if delay else position
        if num_known >= (every if position == every else 1):
            return position
    return None


@given(
    samples=st.lists(st.tuples(st.integers(-20, 300), st.sampled_from([0, 0, 1, 1, 1])), max_size=60),
    edges=st.lists(st.integers(0, 60), max_size=5),
    every=st.integers(1, 7),
    delay=st.sampled_from([0, 0, 1, 30]),
)
def test_it_counts_and_decides_as_the_rule_says(samples: list[tuple[int, int]], edges: list[int], every: int, delay: int) -> None:
    times, labels = [time for time, _ in samples], [label for _, label in samples]
    whole, bounds = stream(labels, times), [0, *sorted(min(edge, len(times)) for edge in edges), len(times)]
    options = {"evaluation_interval_data_points": every, "label_delay": delay}
    asked = build_trigger(section(**options, warmup_policy={"id": "DataAmountTrigger", "num_samples": every}))
    found = decide(asked, [whole.slice(a, b) for a, b in pairwise(bounds)], source=FakeEvidence(whole))
    last = 0
    assert [record.position for record in found] == list(range(every, len(times) + 1, every))
    for record in found:
        if last:
            expected = _regret(times, labels, delay, last, range(every, record.position + 1, every))
            assert record.numbers["regret"] == pytest.approx(expected, abs=1e-6)
            assert record.fires is (record.numbers["regret"] / 100 > 1.0)
        last = record.position if record.fires else last
    assert next(iter(fired(found)), None) == _first_trigger(times, every, delay)


def test_the_example_of_units_in_the_docstring() -> None:
    # A day's 1,000 samples come evenly, and each tenth is an error; 0.95 is expected.
    labels = np.tile([1, 1, 1, 1, 0, 1, 1, 1, 1, 1], 400)
    times = (np.arange(4000) + 0.5) * DAY / 1000
    options = {
        "evaluation_interval_data_points": 1000,
        "expected_accuracy": 0.95,
        RATE: 1e6,
        "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 1000},
    }
    records = checks(stream(labels.tolist(), times.astype(np.int64).tolist()), min_samples_between_triggers=10_000, **options)
    last = records[-1].numbers
    assert last["avoidable_misclassifications"] == pytest.approx(150)
    assert last["regret"] == pytest.approx(19.44e6, rel=1e-3)
    assert last["regret.threshold"] == last["forecast_training_s"] * 1e6 == 1e6


def test_misclassifications_are_not_rounded_and_a_trigger_resets_their_regret() -> None:
    labels = [1] * 10 + ([0] + [1] * 9) * 20
    records = checks(stream(labels), expected_accuracy=0.92, **{RATE: 15})
    # 0.2 at each check, of an error nine seconds ago; those before grow by ten seconds: 1.8, 5.6, 11.4, 19.2.
    regrets = [record.numbers["regret"] for record in records[1:6]]
    assert regrets == pytest.approx([1.8, 5.6, 11.4, 19.2, 1.8])
    assert fired(records) == [10, 50, 90, 130, 170, 210]


def test_an_error_counts_from_when_it_occurred_though_its_label_comes_late() -> None:
    labels = [1] * 10 + [0] + [1] * 49
    records = checks(stream(labels), label_delay=20, expected_accuracy=1.0, **{RATE: 1e9})
    at = {record.position: record.numbers for record in records}
    assert "regret" not in at[30], "no label had come before it, so the first model is trained there"
    assert at[40]["regret"] == pytest.approx(29), "of the sample at 10 s, at 39 s"
    assert at[60]["regret"] == pytest.approx(49)


def test_a_check_that_is_better_than_expected_reduces_the_regret_only_if_it_may() -> None:
    labels = [1] * 10 + [0, 0] + [1] * 28
    kept, reduced = (checks(stream(labels), allow_reduction=allow, **{RATE: 1e9}) for allow in (False, True))
    assert [record.numbers["avoidable_misclassifications"] for record in kept[1:]] == pytest.approx([1, 1, 1])
    assert [record.numbers["avoidable_misclassifications"] for record in reduced[1:]] == pytest.approx([1, 0, 0])
    assert [record.numbers["regret"] for record in reduced[1:]] == pytest.approx([8.5, 0, 0])


def test_lookahead_is_what_the_regret_will_be_at_the_next_check() -> None:
    labels = [1] * 10 + ([0] * 2 + [1] * 8) * 3
    options = {"mode": "lookahead", "forecasting_method": "rolling_average"}
    records = checks(stream(labels), **options, **{RATE: 1e9})
    at = records[2].numbers
    assert at["regret.so_far"] == pytest.approx(8.5 * 2 + 10), "an avoidable one of 18.5 s ago, and one of 8.5 s"
    assert at["regret"] == pytest.approx(27 + 2 * 10 + 1 * 5), "both ten seconds later, and one more five seconds before then"
    hindsight = checks(stream(labels), **{RATE: 1e9})
    assert hindsight[2].numbers["regret"] == at["regret.so_far"]


def test_the_expected_accuracy_is_forecast_from_those_after_triggers() -> None:
    labels = [1] * 20 + [0] * 5 + [1] * 5 + [1] * 30
    options = {"expected_accuracy": None, "forecasting_method": "rolling_average"}
    records = checks(stream(labels), **options, **{RATE: 10})
    assert fired(records) == [10, 30]
    expected = [record.numbers.get("expected_accuracy") for record in records]
    assert expected == [None, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert records[2].numbers["accuracy"] == 0.5


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({"warmup_policy": None}, "warmup_policy", "is wrong"),
        ({"warmup_intervals": None}, "warmup_intervals", "is wrong"),
        ({RATE: 0}, RATE, "greater than 0"),
        ({"expected_accuracy": 1.5}, "expected_accuracy", "less than or equal to 1"),
        ({"evaluation": {}}, "evaluation.dataset", "is required"),
        ({"mode": "foresight"}, "mode", "hindsight"),
        ({"calibration_samples": 10}, "calibration_samples", "no such key"),
        (
            {"decision_criteria": {"a": {**CRITERIA[0], "metric_treshold": 1}}},
            "decision_criteria.a.metric_treshold",
            "metric_threshold",
        ),
    ],
)
def test_mistakes(options: dict[str, Any], path: str, words: str) -> None:
    found = check_trigger_section(section(**options))
    assert any(problem.path == f"trigger.{path}" and words in problem.message for problem in found), found


def test_errors_of_a_model_that_gives_no_numbers_are_not_counted() -> None:
    class Diverged(FakeEvidence):
        def outcomes(self, question: OutcomeQuestion) -> Rows | None:
            rows = super().outcomes(question)
            if rows is not None:
                rows.outputs[3, 2] = np.nan
            return rows

    column = np.arange(30)
    samples = SampleBatch(column, column, column * 0 + 1)
    with pytest.raises(
        DataError, match="what model 1 says of 1 of 10 samples, of positions 10 to 19 of the stream, is not finite"
    ):
        decide(build_trigger(section()), [samples], source=Diverged(samples))


DEFAULTS: dict[str, Any] = {
    "cost_tracking_window_size": 1000,
    "expected_accuracy": None,
    "allow_reduction": False,
    "mode": "hindsight",
    "forecasting_method": "ridge_regression",
    "data_density_window_size": 20,
    "performance_triggers_window_size": 10,
}
"""Options and their defaults, as `design/pipeline-schema.md` lists them."""


@pytest.mark.parametrize("expected_accuracy", [None, 0.9])
def test_every_option_may_be_written_out(expected_accuracy: float | None) -> None:
    assert check_trigger_section(section(**{**DEFAULTS, "expected_accuracy": expected_accuracy})) == []
    latency = {"id": "DataIncorporationLatencyCostTrigger", "evaluation_interval_data_points": 10}
    published = {"incorporation_delay_per_training_second": 1, "cost_tracking_window_size": 1000}
    assert check_trigger_section({**latency, **published, "warmup_intervals": None, "warmup_policy": None}) == []


@pytest.mark.parametrize("criterion", CRITERIA, ids=lambda criterion: criterion["id"])
def test_decision_criteria_have_no_effect(criterion: dict[str, Any]) -> None:
    written = section(**DEFAULTS, decision_criteria={"a": criterion})
    found = check_trigger_section(written)
    assert [(problem.path, problem.severity) for problem in found] == [("trigger.decision_criteria", Severity.WARNING)]
    assert "EnsembleTrigger" in found[0].message
    assert build_trigger(written).state() == build_trigger(section(**DEFAULTS)).state()


@pytest.mark.parametrize(
    ("expected_accuracy", "mode", "warned"),
    [
        (None, "hindsight", ["data_density_window_size"]),
        (None, "lookahead", []),
        (0.9, "hindsight", ["data_density_window_size", "performance_triggers_window_size", "forecasting_method"]),
        (0.9, "lookahead", ["performance_triggers_window_size"]),
    ],
)
def test_options_of_forecasts_that_nothing_asks_for_are_named(
    expected_accuracy: float | None, mode: str, warned: list[str]
) -> None:
    forecasts = {"data_density_window_size": 5, "performance_triggers_window_size": 5, "forecasting_method": "rolling_average"}
    found = check_trigger_section(section(expected_accuracy=expected_accuracy, mode=mode, **forecasts))
    assert [(problem.path, problem.severity) for problem in found] == [(f"trigger.{name}", Severity.WARNING) for name in warned]


@pytest.mark.parametrize("name", ["warmup_policy", "warmup_intervals"])
def test_a_warm_up_is_compulsory(name: str) -> None:
    options = {key: value for key, value in section().items() if key != name}
    assert (f"trigger.{name}", "is required") in [(problem.path, problem.message) for problem in check_trigger_section(options)]


def test_labels_that_come_too_late_for_the_stream_are_said() -> None:
    samples = stream([1] * 50)
    for delay, is_said in ((1000, True), (15, False)):
        policy = build_trigger(section(label_delay=delay))
        decide(policy, [samples], source=FakeEvidence(samples))
        assert ("so nothing was measured" in policy.end_warning()) is is_said, delay
