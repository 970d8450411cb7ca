"""Fires when the newest model does worse on new data than it should."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pydantic import Field

from modyn.config.base import Problem, load_section, without_effect
from modyn.config.policy import check_policy, load_policy
from modyn.evaluator.client import ESTIMATED_METRICS
from modyn.records import SampleBatch
from modyn.supervisor.criteria import PERFORMANCE_CRITERIA, DecisionCriterion, Measurement, Worse
from modyn.supervisor.criteria.panel import CriteriaPanel
from modyn.supervisor.criteria.performance import StaticNumberMisclassificationCriterion
from modyn.supervisor.criteria.votes import AtLeastN
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, OwnSeriesName, TriggerContext, TriggerOutcome, unreserved
from modyn.supervisor.triggers.interval import IntervalConfig, IntervalTrigger, idle_warm_up
from modyn.supervisor.triggers.performance_meter import PerformanceMeter, PerformanceOptions, forecasts_without_effect

_OF_FORECASTS: Final = ("mode", "forecasting_method", "data_density_window_size", "performance_triggers_window_size")


class PerformanceConfig(PerformanceOptions):
    """Fires when the newest model does worse on new data than it should."""

    decision_criteria: dict[OwnSeriesName, dict[str, Any]] = Field(
        min_length=1,
        description="which scores are unusual: a criterion by its `id` each; any one of them fires; names "
        "have letters, digits, _ and - alone",
    )


class PerformanceTrigger(IntervalTrigger):
    """Fires when a score of the newest model on the samples since the last check is unusual by any of its criteria (Modyn, SIGMOD'25, sections
    5.1 and 7.2).

    Each sample is evaluated once, at the first check after its label has come (`label_delay`), unless the newest model was trained on it. A
    criterion judges the score that its `metric` names, or the misclassifications since the last trigger that a model trained now would
    avoid: Σ (expected accuracy - accuracy) · samples over the checks since then, as a real number. Checks that are better than expected
    reduce the sum only with `allow_reduction`, to 0 at least. The expected accuracy is given, or forecast from the first accuracies that were
    measured of the models of the newest triggers. In `lookahead`, the sum is what it will be at the next check, as forecast.

    `EstimatedAccuracyATC` and `EstimatedAccuracyDoC` need no labels of new samples: average thresholded confidence, which exaggerates a loss
    where errors are not the least confident samples, and the difference of confidences, which is right of a model whose confidence is its
    accuracy. Both are calibrated once a model, on samples that it was not trained on: those that its training has held out
    (`training.validation`), or else those of the first check after the trigger that has labels.

    A score that is undefined, or of no samples, votes no; one that is undefined since the model gives no numbers is an error. Before the
    first model nothing is measured. During warm-up criteria calibrate.

    Evidence: each score under the label of its metric, and `evaluated_samples`; each estimated accuracy, and `estimated_samples`, with what
    it was calibrated to; for each criterion `metric.name.threshold` and `metric.name.unusual`; for one of misclassifications their number
    under its name, `name.threshold`, `name.unusual`, `name.expected_accuracy`, and in lookahead `name.so_far`, without the forecast part.
    """

    Config: ClassVar[type[IntervalConfig]] = PerformanceConfig
    config: PerformanceConfig

    def __init__(self, config: PerformanceConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, config.context(context))
        criteria = {name: _criterion(section) for name, section in config.decision_criteria.items()}
        judged = {name: (name, criterion) for name, criterion in criteria.items() if _counts(type(criterion))}
        judged |= {
            f"{criterion.config.metric}.{name}": (criterion.config.metric, criterion)
            for name, criterion in criteria.items()
            if not _counts(type(criterion))
        }
        self._panel = CriteriaPanel(judged, AtLeastN(n=1))
        metrics = {criterion.config.metric for criterion in criteria.values()}
        self._meter = PerformanceMeter(config, metrics, self.label_delay)
        self._counting = {name: criterion.config for name, criterion in criteria.items() if _counts(type(criterion))}
        self._avoidable = dict.fromkeys(self._counting, 0.0)
        """Misclassifications since the last trigger, by criterion."""

    @classmethod
    def problems(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Those of the criteria too, and names of metrics that evidence has; the evaluator checks the dataset and whether there is a metric."""
        found, criteria = super().problems(options, path), options.get("decision_criteria")
        named = criteria.items() if isinstance(criteria, Mapping) else ()
        sections = {name: section for name, section in named if isinstance(section, Mapping)}
        labels = _labels(options)
        found += _reserved(labels, f"{path}.evaluation.dataset.metrics")
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
        """Count them, and their time."""
        super().observe(samples)
        self._meter.observe(samples)

    @property
    def needs_model(self) -> bool:
        """It evaluates one."""
        return True

    def warning(self) -> str | None:
        """That it waits for a model, or for labels."""
        return super().warning() or (None if self.model_id is None else self._meter.warning())

    def lacking(self) -> str:
        """Labels that came too late for the stream, too."""
        return super().lacking() or self._meter.lacking()

    def measure(self, context: CheckContext) -> Mapping[str, float]:
        """The scores, once there is a model."""
        return {} if self.model_id is None else self._meter.measure(context.source, self.model_id)

    def judge(self, measured: Mapping[str, float], context: CheckContext) -> tuple[bool, Mapping[str, float]]:
        """Whether any criterion fires."""
        counted = [self._count(name, measured) for name in self._counting]
        values = {name: value for evidence in [measured, *counted] for name, value in evidence.items()}
        fires, evidence = self._panel.judge({name: Measurement(value) for name, value in values.items()})
        return fires, {**values, **evidence}

    def _count(self, name: str, measured: Mapping[str, float]) -> dict[str, float]:
        """The avoidable misclassifications of a criterion, as evidence."""
        criterion, so_far = self._counting[name], self._avoidable[name]
        metric, ahead, evidence = criterion.metric, 0.0, dict[str, float]()
        if metric in measured:
            expected = criterion.expected_accuracy
            if expected is None:
                expected = self._meter.expected_accuracy(metric, measured)
            lack = expected - measured[metric]
            lack = lack if criterion.allow_reduction else max(0.0, lack)
            so_far = max(0.0, so_far + lack * self._meter.num_samples(metric, measured))
            ahead = lack * self._meter.samples_ahead(metric, measured)
            evidence[f"{name}.expected_accuracy"] = expected
        if self.config.mode == "hindsight":
            return {name: so_far, **evidence}
        return {name: max(0.0, so_far + ahead), f"{name}.so_far": so_far, **evidence}

    def remember(self, record: CheckRecord) -> None:
        """Take the scores, for criteria that compare with earlier ones, for forecasts and for sums."""
        evidence = record.evidence
        self._panel.remember(evidence)
        self._meter.remember(evidence)
        for name in self._avoidable:
            self._avoidable[name] = evidence.get(f"{name}.so_far", evidence[name])

    def interval_ended(self) -> None:
        """Begin the next one behind the samples so far."""
        self._meter.advance()

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Count avoidable misclassifications anew."""
        super().triggered(outcome)
        self._avoidable = dict.fromkeys(self._counting, 0.0)

    def trained(self, outcome: TriggerOutcome) -> None:
        """Go on with the new model."""
        super().trained(outcome)
        self._meter.trained()

    def own_state(self) -> dict[str, Any]:
        """The meter, the sums, and the scores that criteria look back at."""
        return {"meter": self._meter.state(), "avoidable": dict(self._avoidable), "scores": self._panel.state()}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._meter.load_state(state["meter"])
        self._avoidable = dict(state["avoidable"])
        self._panel.load_state(state["scores"])


def _criterion(section: Mapping[str, Any]) -> DecisionCriterion:
    criterion, config = load_policy(PERFORMANCE_CRITERIA, section, "id", "decision_criteria")
    return criterion(config, Worse.HIGHER if _counts(criterion) else Worse.LOWER)


def _without_effect(options: Mapping[str, Any], criteria: list[Mapping[str, Any]], path: str) -> list[Problem]:
    """Warnings of options that change nothing with these criteria. Args: options, criteria: without mistakes."""
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
    """Whether a criterion judges misclassifications, not a score."""
    return issubclass(criterion, StaticNumberMisclassificationCriterion)


def _labels(options: Mapping[str, Any]) -> list[str]:
    """What the metrics of `evaluation.dataset` are called, as far as they are written rightly: by their label, else by their name."""
    found: Any = options
    for key in ("evaluation", "dataset", "metrics"):
        found = found.get(key) if isinstance(found, Mapping) else None
    sections = found if isinstance(found, list | tuple) else ()
    return [str(one.get("label") or one.get("name")) if isinstance(one, Mapping) else "" for one in sections]


def _reserved(labels: list[str], path: str) -> list[Problem]:
    found = []
    for i, label in enumerate(labels):
        try:
            unreserved(label)
        except ValueError as error:
            found.append(Problem(f"{path}.{i}.label", str(error)))
    return found
