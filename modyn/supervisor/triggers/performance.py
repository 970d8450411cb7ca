"""Policy that fires when scores of the newest model on new data are unusually bad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from pydantic import Field

from modyn.config.base import Problem, load_section, section_at, sections_in, without_effect
from modyn.config.policy import check_policy, load_policy
from modyn.evaluator.client import ESTIMATED_METRICS
from modyn.records import SampleBatch
from modyn.supervisor.criteria import PERFORMANCE_CRITERIA, DecisionCriterion, Worse
from modyn.supervisor.criteria.panel import CriteriaPanel
from modyn.supervisor.criteria.performance import StaticNumberMisclassificationCriterion
from modyn.supervisor.criteria.votes import AtLeastN
from modyn.supervisor.evidence import Evidence, EvidenceKind, find, required_value, value_of
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, SeriesName, TriggerContext, TriggerOutcome
from modyn.supervisor.triggers.interval import CheckMeasurement, IntervalConfig, IntervalTrigger, idle_warm_up
from modyn.supervisor.triggers.measures.performance_meter import PerformanceMeter, PerformanceOptions, forecasts_without_effect

_OF_FORECASTS: Final = ("mode", "forecasting_method", "data_density_window_size", "performance_triggers_window_size")


class PerformanceConfig(PerformanceOptions):
    """Fires when scores of the newest model on new data are unusually bad."""

    decision_criteria: dict[SeriesName, dict[str, Any]] = Field(
        min_length=1,
        description="criteria by names of letters, digits, _ and -; each has an `id` and options. The policy fires if any score is unusual",
    )


class PerformanceTrigger(IntervalTrigger):
    """Fires when a score of the newest model on new samples is unusual by any of its criteria (Modyn, SIGMOD'25, sections 5.1 and 7.2).

    Each sample is evaluated once, at the first check after its label has arrived (`label_delay`), unless the newest model was trained on it. A
    criterion judges the score that its `metric` names, or the misclassifications since the last trigger that a model trained now would avoid: Σ
    (expected accuracy - accuracy) · samples over the checks since the last trigger. Checks that are better than expected reduce the sum only with
    `allow_reduction`, and never below 0. The expected accuracy is an option, or is forecast from the first accuracies after the newest triggers.
    With `lookahead`, the sum is forecast for the next check.

    `EstimatedAccuracyATC` and `EstimatedAccuracyDoC` need no labels of new samples. The average thresholded confidence (ATC) exaggerates a loss of
    accuracy if errors are not the least confident samples. The difference of confidences (DoC) is exact if confidence equals accuracy. ATC and DoC
    are calibrated once for each model, on samples that its training has held out (`training.validation`). Without held-out samples, ATC and DoC are
    calibrated on the samples of the first check with labels after the trigger.

    A criterion votes no if its score is undefined or has no samples. Outputs of a model that are not finite are an error. Nothing is measured before
    the first model. During the warm-up, criteria calibrate.

    Evidence: each score under the label of its metric, once for each criterion that judges it, and the count `evaluated_samples`; each estimated
    accuracy with the count `estimated_samples` and its calibration; misclassifications under the name of their criterion, with the detail
    `name.expected_accuracy`, and with `lookahead` the detail `name.so_far` without the forecast part.

    >>> import numpy as np
    >>> from modyn.testing.decisions import decide
    >>> from modyn.testing.fake_evidence import FakeEvidence  # models err where the label is 0
    >>> stream = SampleBatch(np.arange(40), np.arange(40), np.repeat([1, 0], [24, 16]))
    >>> evaluation = {"dataset": {"dataset_id": "d", "metrics": [{"name": "Accuracy"}]}}
    >>> criterion = {"id": "StaticPerformanceThresholdCriterion", "metric": "Accuracy", "metric_threshold": 0.75}
    >>> options = {"evaluation_interval_data_points": 10, "evaluation": evaluation, "decision_criteria": {"low": criterion}}
    >>> checks = decide(PerformanceTrigger(load_section(PerformanceConfig, options)), [stream], source=FakeEvidence(stream))
    >>> [(check.position, check.numbers.get("Accuracy")) for check in checks if check.fires]
    [(10, None), (30, 0.4), (40, 0.0)]
    """

    Config: ClassVar[type[IntervalConfig]] = PerformanceConfig
    config: PerformanceConfig

    def __init__(self, config: PerformanceConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, config.context(context))
        criteria = {name: _criterion(section) for name, section in config.decision_criteria.items()}
        judged = {
            name: (name if _counts(type(criterion)) else criterion.config.metric, criterion)
            for name, criterion in criteria.items()
        }
        self._panel = CriteriaPanel(judged, AtLeastN(n=1))
        metrics = {criterion.config.metric for criterion in criteria.values()}
        self._meter = PerformanceMeter(config, metrics, self.label_delay)
        self._counting = {name: criterion.config for name, criterion in criteria.items() if _counts(type(criterion))}
        self._avoidable = dict.fromkeys(self._counting, 0.0)
        """Number of avoidable misclassifications since the last trigger, by criterion."""

    @classmethod
    def problems(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Find mistakes in the options of the policy and the criteria; the evaluator checks the dataset and its metrics."""
        found, sections = super().problems(options, path), sections_in(options.get("decision_criteria"))
        labels = _labels(options)
        metrics = [*labels, *(section.get("metric", "Accuracy") for section in sections.values())]
        for name, section in sections.items():
            at = f"{path}.decision_criteria.{name}"
            found += check_policy(PERFORMANCE_CRITERIA, section, "id", at)
            if name in metrics:
                found.append(Problem(at, f"'{name}' is also the name of a metric; choose another name"))
        if found:
            return found
        kinds = [PERFORMANCE_CRITERIA.get(section["id"]) for section in sections.values()]
        found = idle_warm_up(load_section(cls.Config, options), kinds, path)
        return found + _without_effect(options, list(sections.values()), path)

    def observe(self, samples: SampleBatch) -> None:
        """Count the samples, and store their times."""
        super().observe(samples)
        self._meter.observe(samples)

    @property
    def needs_model(self) -> bool:
        """True, because the policy evaluates a model."""
        return True

    def warning(self) -> str | None:
        """Return the warning that the policy waits for a model, or for labels."""
        return super().warning() or (None if self.model_id is None else self._meter.warning())

    def end_warning(self) -> str:
        """Return the clause of `IntervalTrigger.end_warning`; without such a clause, a clause if labels arrived too late."""
        return super().end_warning() or self._meter.end_warning()

    def measure(self, context: CheckContext) -> CheckMeasurement:
        """Measure the scores, if there is a model."""
        return (
            CheckMeasurement() if self.model_id is None else CheckMeasurement(self._meter.measure(context.source, self.model_id))
        )

    def judge(self, measured: Sequence[Evidence], context: CheckContext) -> tuple[bool, Sequence[Evidence]]:
        """Return whether any criterion fires."""
        return self._panel.judge([*measured, *(one for name in self._counting for one in self._count(name, measured))])

    def _count(self, name: str, measured: Sequence[Evidence]) -> list[Evidence]:
        """Count the avoidable misclassifications of a criterion."""
        criterion, so_far, ahead, details = self._counting[name], self._avoidable[name], 0.0, list[Evidence]()
        if (score := find(measured, criterion.metric)) is not None:
            expected = criterion.expected_accuracy
            if expected is None:
                expected = self._meter.expected_accuracy(score)
            lack = expected - score.value
            lack = lack if criterion.allow_reduction else max(0.0, lack)
            num_samples = self._meter.num_samples(criterion.metric, measured)
            so_far = max(0.0, so_far + lack * num_samples)
            ahead = lack * self._meter.samples_ahead(criterion.metric, num_samples)
            details.append(Evidence.detail(f"{name}.expected_accuracy", expected))
        if self.config.mode == "hindsight":
            return [Evidence(name, so_far), *details]
        return [Evidence(name, max(0.0, so_far + ahead)), Evidence.detail(f"{name}.so_far", so_far), *details]

    def remember(self, record: CheckRecord) -> None:
        """Store the scores, for criteria that compare with earlier scores, for forecasts and for sums."""
        evidence = record.evidence
        self._panel.remember(evidence)
        self._meter.remember(evidence)
        for name in self._avoidable:
            so_far = value_of(evidence, f"{name}.so_far", EvidenceKind.DETAIL)
            self._avoidable[name] = required_value(evidence, name) if so_far is None else so_far

    def interval_ended(self) -> None:
        """Start the next interval after the samples so far."""
        self._meter.advance()

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Count avoidable misclassifications from 0."""
        super().triggered(outcome)
        self._avoidable = dict.fromkeys(self._counting, 0.0)

    def trained(self, outcome: TriggerOutcome) -> None:
        """Evaluate the new model from now on."""
        super().trained(outcome)
        self._meter.trained()

    def own_state(self) -> dict[str, Any]:
        """Return the meter, the sums, and the earlier scores that criteria need."""
        return {"meter": self._meter.state(), "avoidable": dict(self._avoidable), "scores": self._panel.state()}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore the meter, the sums and the scores."""
        self._meter.load_state(state["meter"])
        self._avoidable = dict(state["avoidable"])
        self._panel.load_state(state["scores"])


def _criterion(section: Mapping[str, Any]) -> DecisionCriterion:
    criterion, config = load_policy(PERFORMANCE_CRITERIA, section, "id", "decision_criteria")
    return criterion(config, Worse.HIGHER if _counts(criterion) else Worse.LOWER)


def _without_effect(options: Mapping[str, Any], criteria: list[Mapping[str, Any]], path: str) -> list[Problem]:
    """Warn of options that have no effect with these criteria. Args: options, criteria: options and criteria without mistakes."""
    found, counting = list[Problem](), [one for one in criteria if _counts(PERFORMANCE_CRITERIA.get(one["id"]))]
    if counting:
        is_expected = all(criterion.get("expected_accuracy") is not None for criterion in counting)
        found += forecasts_without_effect(PerformanceConfig, options, path, is_expected=is_expected)
    else:
        why = f"has an effect on {StaticNumberMisclassificationCriterion.__name__} only: leave it out, or add that criterion"
        found += without_effect(PerformanceConfig, options, _OF_FORECASTS, path, why)
    if not any(criterion.get("metric") in ESTIMATED_METRICS for criterion in criteria):
        why = f"is for {' and '.join(ESTIMATED_METRICS)}, and no criterion judges one of them: leave it out"
        found += without_effect(PerformanceConfig, options, ["calibration_samples"], path, why)
    return found


def _counts(criterion: type[DecisionCriterion]) -> bool:
    """Return whether a criterion judges misclassifications, not a score."""
    return issubclass(criterion, StaticNumberMisclassificationCriterion)


def _labels(options: Mapping[str, Any]) -> list[str]:
    """Return the label, or else the name, of each valid metric of `evaluation.dataset`."""
    metrics = section_at(options, "evaluation", "dataset").get("metrics")
    return [str(one.get("label") or one.get("name")) for one in sections_in(metrics).values()]
