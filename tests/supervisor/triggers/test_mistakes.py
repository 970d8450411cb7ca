"""Mistakes in a drift trigger, as `modyn check` tells them: the key that is wrong, its line in the file, and what to write."""

from __future__ import annotations

import re
from typing import Any

import pytest

from modyn.evaluator.trigger_section import check_trigger
from modyn.supervisor.pipeline_checks.validation import check_pipeline
from modyn.supervisor.triggers import check_trigger_section
from modyn.testing.stack import tiny_pipeline

THRESHOLD: dict[str, Any] = {"id": "ThresholdDecisionCriterion", "threshold": 0.1}


def drift(metric: object = None, **options: Any) -> dict[str, Any]:
    """A section with one metric; options of None are left out."""
    metrics = {"far": {"id": "MMDDriftMetric", "decision_criterion": THRESHOLD} if metric is None else metric}
    section = {"id": "DataDriftTrigger", "evaluation_interval_data_points": 25, "metrics": metrics, **options}
    return {name: value for name, value in section.items() if value is not None}


def metric(**options: Any) -> dict[str, Any]:
    return drift({"id": "MMDDriftMetric", "decision_criterion": THRESHOLD, **options})


def windows(**options: Any) -> dict[str, Any]:
    return drift(windowing_strategy=options)


AMOUNT: dict[str, Any] = {"id": "DataAmountTrigger", "num_samples": 10}
P_VALUE = {"id": "PValueDecisionCriterion", "p_val": 0.05}
PCA_600 = {"id": "PCAProjection", "num_components": 600}
TIME_AND_DRIFT = {"time": {"id": "TimeTrigger", "every": "1d"}, "drift": metric(id="KSDriftMetrik")}

CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "metric": (metric(id="MMDDriftMetrik"), "metrics.far.id", "id: MMDDriftMetrik", "did you mean 'MMDDriftMetric'?"),
    "metric as text": (drift("MMDDriftMetric"), "metrics.far", "far: MMD", "a section with the id of a drift metric is expected"),
    "name of a metric": (drift(metrics={"a b": {"id": "MMDDriftMetric", "decision_criterion": THRESHOLD}}),
                         "metrics.a b", "a b:", "begins with a letter"),
    "option of a metric": (metric(num_permutation=3), "metrics.far.num_permutation", "num_permutation: 3",
                           "did you mean 'num_permutations'?"),
    "value of an option": (metric(bandwidth=0), "metrics.far.bandwidth", "bandwidth: 0", "greater than or equal to"),
    "criterion": (metric(decision_criterion={"id": "TresholdDecisionCriterion"}), "metrics.far.decision_criterion.id",
                  "id: Treshold", "did you mean 'ThresholdDecisionCriterion'?"),
    "no criterion": (drift({"id": "MMDDriftMetric"}), "metrics.far.decision_criterion", "far:", "is required: one of "),
    "p-value without permutations": (metric(decision_criterion=P_VALUE), "metrics.far.decision_criterion.id", "id: PValue",
                                     "set trigger.metrics.far.num_permutations"),
    "p-value without a test": (metric(id="PSIDriftMetric", decision_criterion=P_VALUE), "metrics.far.decision_criterion.id",
                               "id: PValue", "use another criterion, or a metric with a test"),
    "windowing strategy": (windows(id="AmountWindowStrategy"), "windowing_strategy.id", "id: AmountWindowStrategy",
                           "did you mean 'AmountWindowingStrategy'?"),
    "no strategy": (windows(amount_ref=5), "windowing_strategy.id", "windowing_strategy:", "one of AmountWindowingStrategy, Time"),
    "strategy as text": (drift(windowing_strategy="Amount"), "windowing_strategy", "windowing_strategy: Amount", "with the key 'id'"),
    "option of another strategy": (windows(id="AmountWindowingStrategy", limit_ref="1d"), "windowing_strategy.limit_ref",
                                   "limit_ref: 1d", "Allowed: allow_overlap, amount_cur, amount_ref, id"),
    "duration": (windows(id="TimeWindowingStrategy", limit_ref="1x", limit_cur="1d"), "windowing_strategy.limit_ref",
                 "limit_ref: 1x", "'1x' is not a duration"),
    "more votes than metrics": (drift(aggregation_strategy={"id": "AtLeastN", "n": 2}), "aggregation_strategy.n", "n: 2",
                                "2 of 1 metrics never fire together"),
    "vote": (drift(aggregation_strategy={"id": "Majority"}), "aggregation_strategy.id", "id: Majority", "'MajorityVote'?"),
    "both intervals": (drift(evaluation_interval="1d"), "evaluation_interval", "evaluation_interval: 1d", "give one of them"),
    "neither interval": (drift(evaluation_interval_data_points=None), "", "trigger:", "how often to check"),
    "no warm-up policy": (drift(warmup_intervals=3), "warmup_intervals", "warmup_intervals: 3", "needs warmup_policy"),
    "no warm-up": (drift(warmup_policy=AMOUNT), "warmup_policy", "warmup_policy:", "needs warmup_intervals"),
    "warm-up by drift": (drift(warmup_intervals=3, warmup_policy={"id": "DataDriftTrigger"}), "warmup_policy.id",
                         "id: DataDriftTrigger", "write DataAmountTrigger or TimeTrigger"),
    "option of the warm-up": (drift(warmup_intervals=3, warmup_policy={**AMOUNT, "num_sample": 3}), "warmup_policy.num_sample",
                              "num_sample: 3", "did you mean 'num_samples'?"),
    "what is compared": (drift(on="embedding"), "on", "'on': embedding", "should be 'embeddings', 'predictions'"),
    "projection": (drift(projection={"id": "PCA"}), "projection.id", "id: PCA", "did you mean 'PCAProjection'?"),
    "projection of labels": (drift({"id": "ChiSquaredDriftMetric", "decision_criterion": THRESHOLD}, on="labels",
                                   projection={"id": "PCAProjection", "num_components": 2}), "projection",
                             "projection:", "cannot be used where `on` is labels"),
    "AutoDrift": ({"id": "AutoDrift", "quantil": 0.1}, "quantil", "quantil: 0.1", "there is no such key"),
    "metric of AutoDrift": ({"id": "AutoDrift", "metrics": {"far": {"decision_criterion": THRESHOLD}}}, "metrics.far.id", "far:",
                            "the name of a drift metric"),
    "projection of AutoDrift": ({"id": "AutoDrift", "projection": PCA_600 | {"id": "PCAProjektion"}}, "projection.id",
                                "id: PCAProjektion", "did you mean 'PCAProjection'?"),
    "default windows": (drift(projection=PCA_600 | {"num_components": 1200}), "windowing_strategy.amount_ref", "trigger:",
                        "1000 samples are never enough for projection, PCAProjection: write at least 1200"),
    "windows of AutoDrift": ({"id": "EnsembleTrigger", "subtriggers": {"a": AMOUNT, "b": {"id": "AutoDrift", "projection": PCA_600}}},
                             "subtriggers.b.windowing_strategy.amount_ref", "b:", "500 samples are never enough"),
    "an amount of AutoDrift": ({"id": "AutoDrift", "projection": PCA_600, "windowing_strategy": {"id": "AmountWindowingStrategy"}},
                               "windowing_strategy.amount_ref", "windowing_strategy:", "500 samples are never enough"),
    "in an ensemble": ({"id": "EnsembleTrigger", "ensemble_strategy": {"id": "All"}, "subtriggers": TIME_AND_DRIFT},
                       "subtriggers.drift.metrics.far.id", "id: KSDriftMetrik", "did you mean 'KSDriftMetric'?"),
    "votes of an ensemble": ({"id": "EnsembleTrigger", "ensemble_strategy": {"id": "AtLeastN", "n": 4}, "subtriggers": {"a": AMOUNT}},
                             "ensemble_strategy.n", "n: 4", "4 of 1 subtriggers never fire together"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_key_and_its_line_are_named_and_what_to_write(name: str) -> None:
    section, place, line, words = CASES[name]
    text = tiny_pipeline("anything", trigger=section)
    (problem,) = check_pipeline(text, "bad.yaml", [check_trigger])
    assert problem.path == f"trigger.{place}".removesuffix(".")
    found = re.search(r"\(line (\d+)\)$", problem.message)
    assert found, problem
    assert line in text.splitlines()[int(found[1]) - 1]
    assert words in problem.message


RESERVED = ["unusual", "unusual_in_a_row", "warming_up", "first_trigger", "cooling_down", "detections", "detected_before"]
RESERVED += ["reference_samples"]
COUNT = {"id": "StaticNumberMisclassificationCriterion", "avoidable_misclassification_threshold": 3}


def performance(criterion: str, **metric: Any) -> dict[str, Any]:
    dataset = {"dataset_id": "d", "metrics": [{"name": "Accuracy"}, {"name": "F1Score", **metric}]}
    fixed = {"id": "PerformanceTrigger", "evaluation_interval_data_points": 10, "evaluation": {"dataset": dataset}}
    return {**fixed, "decision_criteria": {criterion: COUNT}}


def test_names_that_other_evidence_has_are_free() -> None:
    """Evidence has a kind and fields of its own for flags, counts, votes and verdicts."""
    for label in ("F1 v1.2", "calibration.accuracy", "b.threshold", "unusual"):
        assert check_trigger_section(performance("late", label=label)) == []
    for name in ("unusual", "1y_amount", "a.vote"):
        assert check_trigger_section({"id": "EnsembleTrigger", "subtriggers": {name: AMOUNT}}) == []
    for name in ("a.p_value", "current_samples", "unusual"):
        assert check_trigger_section({"id": "AutoDrift", "metrics": {name: metric()["metrics"]["far"]}}) == []


def test_a_criterion_has_another_name_than_a_metric() -> None:
    (problem,) = check_trigger_section(performance("F1", label="F1"))
    assert (problem.path, "also the name of a metric" in problem.message) == ("trigger.decision_criteria.F1", True)
