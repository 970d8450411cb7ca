"""The drift trigger: golden decisions on streams whose drift is that of their labels, and what its evidence says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from modyn.config.base import Severity, load_section
from modyn.config.trigger_parts import ComparedData
from modyn.records import SampleBatch, StreamWindow
from modyn.supervisor.triggers import TRIGGERS, build_trigger, check_trigger_section
from modyn.supervisor.triggers.base import TriggerOutcome
from modyn.supervisor.triggers.drift import DataDriftConfig, DataDriftTrigger
from modyn.testing.checks import check_trigger, decide, example_streams
from modyn.testing.fake_evidence import FakeEvidence
from tests.support.trigger_sections import streams_of_each
from tests.support.triggers import checks, fired

THRESHOLD: dict[str, Any] = {"id": "MMDDriftMetric", "decision_criterion": {"id": "ThresholdDecisionCriterion", "threshold": 0.5}}
QUANTILE: dict[str, Any] = {
    "id": "KSDriftMetric",
    "decision_criterion": {"id": "DynamicQuantileThresholdCriterion", "window_size": 4, "quantile": 0.25},
}
AMOUNT = {"id": "AmountWindowingStrategy", "amount_ref": 20, "amount_cur": 10}


def drift(**options: Any) -> dict[str, Any]:
    """A section that checks every 10 samples by one metric with a threshold of 0.5."""
    defaults = {"evaluation_interval_data_points": 10, "windowing_strategy": AMOUNT, "metrics": {"mmd": THRESHOLD}}
    return {"id": "DataDriftTrigger", **defaults, **options}


def seasons(**options: Any) -> dict[str, Any]:
    """Windows of time."""
    return {"id": "TimeWindowingStrategy", **options}


def stream(*labels: tuple[int, int], every: int = 1) -> SampleBatch:
    """Samples of pairs (label, number), one every `every` seconds."""
    column = np.repeat([label for label, _ in labels], [count for _, count in labels])
    return SampleBatch(np.arange(len(column)), np.arange(len(column)) * every, column)


CONFIGS: dict[str, dict[str, Any]] = {
    "threshold": drift(),
    "time windows": drift(windowing_strategy={"id": "TimeWindowingStrategy", "limit_ref": "5d", "limit_cur": "2d"}),
    "overlap": drift(
        windowing_strategy={"id": "TimeWindowingStrategy", "limit_ref": "5d", "limit_cur": "9d", "allow_overlap": True}
    ),
    "whole seasons": drift(windowing_strategy=seasons(limit_ref="4d", limit_cur="2d", season="2d")),
    "same phase": drift(windowing_strategy=seasons(limit_cur="1d", season="3d", reference="same_phase")),
    "same phase of labels": drift(
        on="labels", windowing_strategy=seasons(limit_cur="2d", season="2d", reference="same_phase", allow_overlap=True)
    ),
    "interval of time": drift(evaluation_interval_data_points=None, evaluation_interval="1d"),
    "warm-up by amount": drift(warmup_intervals=5, warmup_policy={"id": "DataAmountTrigger", "num_samples": 15}),
    "warm-up by time": drift(warmup_intervals=5, warmup_policy={"id": "TimeTrigger", "every": "1d"}),
    "two metrics": drift(metrics={"mmd": THRESHOLD, "ks": QUANTILE}, aggregation_strategy={"id": "AtLeastN", "n": 1}),
    "hysteresis": drift(consecutive_checks=2, min_samples_between_triggers=35),
    "labels": drift(on="labels", sample_size=None),
    "AutoDrift": {"id": "AutoDrift", "evaluation_interval": "1d", "warmup_intervals": 3},
}


@pytest.mark.parametrize(("name", "titles"), streams_of_each(CONFIGS, 120))
def test_same_decisions_for_any_batching_and_after_any_restart(name: str, titles: list[str]) -> None:
    options = {key: value for key, value in CONFIGS[name].items() if key != "id"}
    streams = example_streams(120)
    for title in titles:
        samples = streams[title]
        policy = TRIGGERS.get(CONFIGS[name]["id"])
        check_trigger(policy, options, streams={title: samples}, source=FakeEvidence(samples))


def test_fires_first_of_all_and_then_where_the_distance_is_beyond_the_threshold() -> None:
    samples = stream((0, 45), (1, 55))
    records = checks(drift(), samples)
    assert fired(records) == [10, 60], "at 50 half of the current window is new, which equals the threshold: not beyond it"
    assert records[0].numbers == {"first_trigger": 1}
    at_50 = next(record for record in records if record.position == 50)
    assert at_50.numbers["mmd"] == at_50.numbers["mmd.threshold"] == 0.5
    assert (at_50.numbers["mmd.unusual"], at_50.numbers["unusual"]) == (0, 0)
    assert (at_50.numbers["reference_samples"], at_50.numbers["current_samples"]) == (10, 10)


def test_the_reference_is_the_newest_data_at_the_last_trigger_by_the_newest_model() -> None:
    samples = stream((0, 45), (1, 55))
    source = FakeEvidence(samples)
    checks(drift(), samples, source)
    assert {question.reference for question in source.asked} == {StreamWindow(0, 10), StreamWindow(40, 60)}
    assert [question.model_id for question in source.asked[::2]] == [1] * 5 + [2] * 4, "as `decide` numbers models, asking twice"
    assert all(question.current.start >= 10 for question in source.asked), "without overlap it begins at the last trigger"
    assert {question.seed for question in source.asked} == {3}


def test_without_a_model_it_fires_at_each_interval_unless_none_is_needed() -> None:
    samples = stream((0, 20), (1, 40))
    for on in ComparedData:
        options = {key: value for key, value in drift(on=on.value).items() if key != "id"}
        policy = _Untrained(load_section(DataDriftConfig, options))
        records = decide(policy, [samples], source=FakeEvidence(samples))
        assert fired(records) == ([10, 20, 30, 40, 50, 60] if on.needs_model else [10, 30]), on


class _LateModel(DataDriftTrigger):
    """A policy whose first two triggers make no model."""

    def trained(self, outcome: TriggerOutcome) -> None:
        if outcome.trigger_id >= 2:
            super().trained(outcome)


@pytest.mark.parametrize(
    "warm_up", [{}, {"warmup_intervals": 2, "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 10}}]
)
def test_it_begins_with_the_first_model_also_when_the_run_is_resumed(warm_up: dict[str, Any]) -> None:
    samples = stream((0, 45), (1, 55))
    options = {key: value for key, value in drift(**warm_up).items() if key != "id"}
    check_trigger(_LateModel, options, streams={"abrupt": samples}, source=FakeEvidence(samples))
    policy = _LateModel(load_section(DataDriftConfig, options))
    records = decide(policy, [samples], source=FakeEvidence(samples))
    assert fired(records) == [10, 20, 30, 60]
    assert policy.warning() is None


class _OnceUntrained(DataDriftTrigger):
    """A policy whose second trigger makes no model."""

    def trained(self, outcome: TriggerOutcome) -> None:
        if outcome.trigger_id != 1:
            super().trained(outcome)


@pytest.mark.parametrize("on", ["embeddings", "payload"])
def test_a_trigger_that_trains_nothing_leaves_the_reference(on: str) -> None:
    samples = stream((0, 45), (1, 55))
    options = {key: value for key, value in drift(on=on).items() if key != "id"}
    check_trigger(_OnceUntrained, options, streams={"abrupt": samples}, source=FakeEvidence(samples))
    source = FakeEvidence(samples)
    records = decide(_OnceUntrained(load_section(DataDriftConfig, options)), [samples], source=source)
    assert fired(records) == [10, 60, 70], "the drift is there until a model is trained on it"
    at_70 = [question for question in source.asked if question.current.stop == 70]
    assert {question.reference for question in at_70} == {StreamWindow(0, 10)}, "what the only model was trained on"
    assert source.asked[-1].reference == StreamWindow(50, 70)


def test_a_trigger_that_trained_nothing_is_told_where_a_model_is_needed() -> None:
    samples = stream((0, 20), (1, 40))
    for on in ComparedData:
        options = {key: value for key, value in drift(on=on.value).items() if key != "id"}
        policy = _Untrained(load_section(DataDriftConfig, options))
        assert policy.warning() is None
        decide(policy, [samples], source=FakeEvidence(samples))
        assert ("no trigger so far has trained a model" in (policy.warning() or "")) == on.needs_model, on
        assert policy.end_warning() == (policy.warning() or ""), "the end of the run says so too"


TIME = {"id": "TimeWindowingStrategy", "limit_ref": "1d", "limit_cur": "1h"}
WARM_UP = {"warmup_intervals": 9, "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 20}}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, ""),
        ({"windowing_strategy": {"id": "AmountWindowingStrategy", "amount_ref": 60, "amount_cur": 60}}, ""),
        ({"windowing_strategy": {"id": "AmountWindowingStrategy", "amount_ref": 61}},
         "the 60 samples of the stream are fewer than its windows are meant to hold (amount_ref=61, amount_cur=1000)"),
        ({"windowing_strategy": TIME}, "the 60 samples of the stream are fewer than its windows are meant to hold (limit_ref=86400s)"),
        (WARM_UP, "it warmed up until the end, 6 of 9 checks (warmup_intervals)"),
        ({**WARM_UP, "warmup_intervals": 6}, ""),
    ],
)  # fmt: skip
def test_what_it_lacks_at_the_end_is_told(options: dict[str, Any], said: str) -> None:
    """60 samples, one a minute, are too few."""
    samples = stream((0, 60), every=61)
    policy = build_trigger(drift(**options))
    decide(policy, [samples], source=FakeEvidence(samples))
    assert policy.end_warning() == said
    both = build_trigger({"id": "EnsembleTrigger", "subtriggers": {"a": drift(**options)}, "ensemble_strategy": {"id": "All"}})
    decide(both, [samples], source=FakeEvidence(samples))
    assert both.end_warning() == (f"a: {said}" if said else "")


class _Untrained(DataDriftTrigger):
    """A policy whose trainings make no model."""

    def trained(self, outcome: TriggerOutcome) -> None:
        """Hear nothing of it."""


def test_warm_up_fires_by_its_policy_and_calibrates() -> None:
    samples = stream((0, 30), (1, 30), (0, 60))
    section = drift(metrics={"ks": QUANTILE}, warmup_intervals=6, warmup_policy={"id": "DataAmountTrigger", "num_samples": 20})
    records = checks(section, samples)
    assert fired(records)[:3] == [20, 40, 60], "the warm-up policy alone"
    measured = {record.position: record.numbers for record in records if record.evidence}
    assert sorted(measured)[0] == 30, "there is a reference from the first trigger on"
    assert all(("warming_up" in evidence) == (position <= 60) for position, evidence in measured.items())
    assert measured[70]["ks.threshold"] == np.quantile([measured[at]["ks"] for at in (30, 40, 50, 60)], 0.75), "calibrated"


def test_without_observations_a_dynamic_threshold_says_no() -> None:
    samples = stream((0, 10), (5, 90))
    records = checks(drift(metrics={"ks": QUANTILE}), samples)
    first = next(record for record in records if "ks" in record.numbers)
    assert not first.fires
    assert "ks.threshold" not in first.numbers
    assert first.numbers["ks.unusual"] == 0


def test_hysteresis_and_cool_down() -> None:
    samples = stream((0, 20), (1, 80))
    assert fired(checks(drift(), samples)) == [10, 30]
    assert fired(checks(drift(consecutive_checks=3), samples)) == [10, 50], "unusual at 30, 40 and 50"
    cooled = checks(drift(min_samples_between_triggers=60), samples)
    assert fired(cooled) == [10, 70]
    assert [record.position for record in cooled if record.numbers.get("cooling_down")] == [20, 30, 40, 50, 60, 80, 90, 100]


def test_votes() -> None:
    samples = stream((0, 20), (1, 30))
    lenient = {**THRESHOLD, "decision_criterion": {"id": "ThresholdDecisionCriterion", "threshold": 5}}
    metrics = {"a": THRESHOLD, "b": lenient}
    for vote, expected in (("MajorityVote", [10]), ("All", [10])):
        assert fired(checks(drift(metrics=metrics, aggregation_strategy={"id": vote}), samples)) == expected
    assert fired(checks(drift(metrics=metrics, aggregation_strategy={"id": "AtLeastN", "n": 1}), samples)) == [10, 30]


def test_too_few_samples_measure_nothing_and_fire_nothing() -> None:
    samples = stream((0, 10), (1, 30), every=100)
    one = {"id": "TimeWindowingStrategy", "limit_ref": 1, "limit_cur": 1}
    records = checks(drift(windowing_strategy=one), samples)
    assert fired(records) == [10]
    assert records[1].numbers == {"reference_samples": 1, "current_samples": 1, "embedded_samples": 0, "unusual": 0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"warmup_intervals": 3, "warmup_policy": {"id": "DataAmountTriger", "num_samples": 3}},
            "did you mean 'DataAmountTrigger'",
        ),
        ({"warmup_intervals": 3, "warmup_policy": {"id": "TimeTrigger", "every": "soon"}}, "trigger.warmup_policy.every"),
        ({"metrics": {}}, "at least 1"),
        ({"metrics": {"mmd": {"id": "MMDDriftMetric"}}}, "trigger.metrics.mmd.decision_criterion is required: one of"),
        (
            {"metrics": {"mmd": {"id": "M", "decision_criterion": {"id": "TresholdDecisionCriterion"}}}},
            "did you mean 'ThresholdDecisionCriterion'",
        ),
        ({"metrics": {"a/b": THRESHOLD}}, "metrics"),
        ({"on": "pixels"}, "embeddings"),
        ({"windowing_strategy": {"id": "AmountWindowingStrategy", "amount_ref": 1}}, "amount_ref"),
        ({"sample_size": 1}, "sample_size"),
        ({"consecutive_checks": 0}, "consecutive_checks"),
    ],
)
def test_mistakes(options: dict[str, Any], words: str) -> None:
    section = {key: value for key, value in drift(**options).items() if value is not None}
    assert any(words in f"{problem.path} {problem.message}" for problem in check_trigger_section(section))


def test_auto_drift_is_the_papers_setting() -> None:
    config = load_section(TRIGGERS.get("AutoDrift").Config, {})
    data = config.model_dump()
    assert data["metrics"]["mmd"]["decision_criterion"] == {
        "id": "DynamicQuantileThresholdCriterion",
        "window_size": 15,
        "quantile": 0.05,
    }
    assert (data["evaluation_interval_data_points"], data["warmup_intervals"]) == (250, 20), (
        "the paper's 14, and 6 that measure nothing"
    )


def test_fourteen_checks_of_the_warm_up_of_auto_drift_measure() -> None:
    samples = stream((0, 6000))
    records = checks({"id": "AutoDrift"}, samples)
    assert [record.position for record in records if record.numbers.get("warming_up")] == list(range(1750, 5001, 250))
    assert fired([record for record in records if record.position <= 5000]) == [1500, 3000, 4500]
    assert "warming_up" not in next(record for record in records if record.position == 5250).numbers


@pytest.mark.parametrize(
    ("options", "num_before"),
    [
        ({"warmup_intervals": 3, "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 30}}, 3),
        ({"warmup_intervals": 4, "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 39}}, None),
        ({"warmup_intervals": 3, "warmup_policy": {"id": "TimeTrigger", "every": "1d"}}, None),
        ({"warmup_intervals": 3, "warmup_policy": {"id": "TimeTrigger", "every": "1d"}, "evaluation_interval": "6h",
          "evaluation_interval_data_points": None}, 4),
        ({"warmup_intervals": 5, "warmup_policy": {"id": "TimeTrigger", "every": "1d"}, "evaluation_interval": "6h",
          "evaluation_interval_data_points": None}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_a_warm_up_that_measures_nothing_is_warned_of(options: dict[str, Any], num_before: int | None) -> None:
    section = {key: value for key, value in drift(metrics={"ks": QUANTILE}, **options).items() if value is not None}
    found = check_trigger_section(section)
    paths = [(problem.path, problem.severity) for problem in found]
    assert paths == ([] if num_before is None else [("trigger.warmup_intervals", Severity.WARNING)])
    message = (
        f"none of these checks measures anything: up to its first trigger, warmup_policy has {num_before} of them; write more"
    )
    assert all(problem.message.startswith(message) for problem in found)
    assert check_trigger_section({**section, "metrics": {"mmd": THRESHOLD}}) == [], "a threshold needs no calibration"


def test_amounts_that_windows_of_auto_drift_leave_out_are_the_presets() -> None:
    kind, written = TRIGGERS.get("AutoDrift").Config, {"id": "AmountWindowingStrategy", "amount_cur": 70, "allow_overlap": True}
    windows = load_section(kind, {"windowing_strategy": written}).model_dump()["windowing_strategy"]
    assert windows == {**written, "amount_ref": 500}
    assert load_section(kind, {}).model_dump()["windowing_strategy"] == {
        **written,
        **dict.fromkeys(("amount_ref", "amount_cur"), 500),
        "allow_overlap": False,
    }
