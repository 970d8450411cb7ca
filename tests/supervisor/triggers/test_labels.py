"""Drift on labels: classes that change places are seen by default, and metrics that take classes for numbers are warned of."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

from modyn.config.base import Severity, load_section
from modyn.config.policy import load_policy
from modyn.errors import CorruptStateError
from modyn.evaluator.client import DriftDistance, DriftQuestion, MeasuredDrift
from modyn.evaluator.drift import DRIFT_METRICS, compare
from modyn.evaluator.drift.base import TooFewSamplesError
from modyn.evaluator.trigger_section import check_trigger, metric_options
from modyn.records import SampleBatch
from modyn.supervisor.triggers import TRIGGERS, TriggerContext, build_trigger, check_trigger_section, with_defaults
from modyn.supervisor.triggers.base import CheckRecord
from modyn.testing.checks import decide
from modyn.testing.fake_evidence import FakeEvidence
from tests.supervisor.triggers.test_drift import AMOUNT, QUANTILE, THRESHOLD, drift
from tests.support.triggers import fired

MMD = {
    "mmd": {"id": "MMDDriftMetric", "decision_criterion": {**QUANTILE["decision_criterion"], "window_size": 15, "quantile": 0.05}}
}
"""The comparison of labels that AutoDrift used before."""
CHANGE = 6000


class MeasuredEvidence(FakeEvidence):
    """Evidence whose distances are those of the metrics."""

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        self.asked.append(question)
        reference, current = self.samples(question.reference), self.samples(question.current)
        found = {}
        for name, section in question.metrics.items():
            metric, config = load_policy(DRIFT_METRICS, metric_options(section), "id", name)
            with suppress(TooFewSamplesError):
                measured = compare(metric(config, 0), torch.from_numpy(reference.labels), torch.from_numpy(current.labels))
                found[name] = DriftDistance(measured.distance, measured.p_value)
        return MeasuredDrift(found, len(reference), len(current), 0)


def changing_classes() -> SampleBatch:
    """9,000 samples of 100 classes, the even ones nine times as frequent as the odd ones, until each changes places with its neighbour."""
    rng = np.random.default_rng(5)
    is_frequent = rng.random(9000) < 0.9
    is_odd = is_frequent == (np.arange(9000) >= CHANGE)
    labels = 2 * rng.integers(0, 50, 9000) + is_odd
    return SampleBatch(np.arange(9000), np.arange(9000), labels.astype(np.int64))


def checks(**section: Any) -> list[CheckRecord]:
    samples = changing_classes()
    return decide(build_trigger(section, TriggerContext(seed=1)), [samples], source=MeasuredEvidence(samples))


def first_after_change(records: list[CheckRecord]) -> int:
    return next((record.position for record in records if record.fires and record.position > CHANGE), 0)


def test_a_hundred_classes_that_change_places_fire_by_default() -> None:
    every = {"evaluation_interval_data_points": 250, "windowing_strategy": {**AMOUNT, "amount_ref": 500, "amount_cur": 500}}
    assert fired(checks(id="DataDriftTrigger", on="labels", **every)) == [250, 6250, 6500], (
        "no check before, and the mixed reference again"
    )
    found = checks(id="AutoDrift", on="labels")
    assert first_after_change(found) == 6250
    at_change = next(record.numbers for record in found if record.position == 6250)
    assert at_change["chi_squared"] > 1.5 * at_change["chi_squared.threshold"]
    assert first_after_change(checks(id="AutoDrift", on="labels", metrics=MMD)) != 6250, (
        "the numbers of classes are spread as before"
    )


@pytest.mark.parametrize(("num_classes", "said"), [(10, ""), (10**6, "no check had enough samples for chi_squared")])
def test_a_metric_that_never_had_enough_samples_of_a_class_is_told(num_classes: int, said: str) -> None:
    labels = np.random.default_rng(1).integers(0, num_classes, 200)
    samples = SampleBatch(np.arange(200), np.arange(200), labels)
    policy = build_trigger(
        {"id": "DataDriftTrigger", "on": "labels", "evaluation_interval_data_points": 50, "windowing_strategy": AMOUNT}
    )
    records = decide(policy, [samples], source=MeasuredEvidence(samples))
    assert all(("chi_squared" in record.numbers) == (not said) for record in records[1:])
    assert policy.end_warning().startswith(said)
    assert bool(policy.end_warning()) == bool(said)
    policy.load_state(policy.state())
    assert policy.end_warning().startswith(said)


@pytest.mark.parametrize("id_", ["DataDriftTrigger", "AutoDrift"])
def test_the_default_counts_classes(id_: str) -> None:
    every = {"evaluation_interval_data_points": 250} if id_ == "DataDriftTrigger" else {}
    for on, expected in (("labels", ["ChiSquaredDriftMetric"]), ("embeddings", [] if every else ["MMDDriftMetric"])):
        section = {"id": id_, "on": on, **every}
        metrics = with_defaults(section).get("metrics", {})
        assert [metric["id"] for metric in metrics.values()] == expected
        required = [(problem.path, problem.message) for problem in check_trigger_section(section)]
        assert required == (
            [] if expected else [("trigger.metrics", "is required, at least 1 drift metric, unless `on` is labels")]
        )


def test_a_run_that_compared_labels_by_the_former_default_is_not_resumed_by_another() -> None:
    before = build_trigger({"id": "AutoDrift", "on": "labels", "metrics": MMD}).state()
    with pytest.raises(CorruptStateError, match=r"saved values are of \['mmd'\], and the criteria judge \['chi_squared'\] now"):
        build_trigger({"id": "AutoDrift", "on": "labels"}).load_state(before)


def test_a_default_is_not_shared_by_two_policies() -> None:
    kind = TRIGGERS.get("AutoDrift").Config
    one, other = (load_section(kind, {"on": "labels"}).model_dump()["metrics"]["chi_squared"] for _ in range(2))
    one["decision_criterion"]["quantile"] = 0.5
    assert other["decision_criterion"]["quantile"] == 0.05


OF_NUMBERS = {id_: id_ != "ChiSquaredDriftMetric" for id_ in DRIFT_METRICS.builtin if not id_.startswith(("Alibi", "Evidently"))}


@pytest.mark.parametrize("id_", OF_NUMBERS)
def test_metrics_that_take_classes_for_numbers_are_warned_of(id_: str) -> None:
    criterion = THRESHOLD["decision_criterion"]
    compared = {
        "trigger.metrics.far.id": drift(on="labels", metrics={"far": {"id": id_, "decision_criterion": criterion}}),
        "trigger.distance.metric.id": {
            "id": "StreamDetectorTrigger",
            "on": "distance",
            "detector": {"id": "ADWIN"},
            "distance": {"on": "labels", "metric": {"id": id_}},
        },
    }
    for path, section in compared.items():
        found = check_trigger({"trigger": with_defaults(section)})
        assert [(problem.path, problem.severity) for problem in found] == [(path, Severity.WARNING)] * OF_NUMBERS[id_], found
        assert all(
            "compare classes by ChiSquaredDriftMetric, unless labels are quantities" in problem.message for problem in found
        )
    assert check_trigger({"trigger": {**compared["trigger.metrics.far.id"], "on": "embeddings"}}) == []


def test_histograms_with_a_bin_for_each_class_count_classes() -> None:
    criterion = THRESHOLD["decision_criterion"]
    for num_bins, number in ((10, 1), (100, 0)):
        far = {"id": "PSIDriftMetric", "num_bins": num_bins, "decision_criterion": criterion}
        assert len(check_trigger({"trigger": drift(on="labels", metrics={"far": far})})) == number
