"""Measures the scores of a run's newest model on the new samples of each check, by labels or by confidence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any, Final, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from modyn.config.base import Problem, Section, without_effect
from modyn.config.durations import Duration
from modyn.dataset.code.user_code import check_function
from modyn.errors import ConfigError, DataError
from modyn.evaluator.client import ATC, DOC, ESTIMATED_METRICS, Rows, Score
from modyn.records import SampleBatch, StreamWindow
from modyn.registry import nearest
from modyn.supervisor.evidence import Evidence, EvidenceKind, required_value, value_of
from modyn.supervisor.triggers.base import TriggerContext
from modyn.supervisor.triggers.interval import IntervalConfig
from modyn.supervisor.triggers.measures.accuracy_trend import AccuracyTrend
from modyn.supervisor.triggers.measures.estimated_accuracy import (
    Calibration,
    average_thresholded_confidence,
    calibrate,
    difference_of_confidences,
)
from modyn.supervisor.triggers.measures.forecasts import ForecastingMethod
from modyn.supervisor.triggers.measures.labelled_windows import LabelledWindows
from modyn.supervisor.triggers.measures.questions import EvidenceSource, HeldOutQuestion, OutcomeQuestion, ScoreQuestion

EVALUATED: Final = "evaluated_samples"
"""Evidence: number of samples whose labels were compared with the model's predictions."""
ESTIMATED: Final = "estimated_samples"
"""Evidence: number of samples whose confidence was used."""
_ESTIMATES: Final = {ATC: average_thresholded_confidence, DOC: difference_of_confidences}
_CALIBRATION: Final = ("calibration.accuracy", "calibration.mean_confidence", "calibration.confidence_threshold")
"""Evidence: details, in the order of the fields of `Calibration`."""
_TRANSFORMER: Final = "label_transformer_function"
_DIVERGED: Final = "the model has diverged: lower its learning rate or clip its gradients, and submit the pipeline again"


def refuse_diverged(rows: Rows, model_id: int, windows: Sequence[StreamWindow] = ()) -> None:
    """Raise DataError if the class probabilities of any of these samples are not finite, because their errors and confidences are then meaningless.

    Args: rows: answer to an outcome question. windows: windows of the rows; empty if the rows are samples that the model's training has held out.
    """
    if odd := int((~np.isfinite(rows.outputs[:, 2])).sum()):
        raise DataError(
            f"what model {model_id} says of {odd} of {len(rows.keys)} samples{_of(windows)} is not finite (NaN or infinity); {_DIVERGED}"
        )


def _refuse_unfit(score: Score, model_id: int, windows: Sequence[StreamWindow]) -> None:
    """Raise DataError for a score that is not a finite number, unless the score is undefined for these samples with every model."""
    if score.has_diverged:
        raise DataError(
            f"{score.metric} of model {model_id} on {score.num_samples} samples{_of(windows)} is {score.note}; {_DIVERGED}"
        )
    if score.value is not None and not math.isfinite(score.value):
        raise DataError(
            f"{score.metric} of model {model_id} on {score.num_samples} samples{_of(windows)} is {score.value}, which is not finite; correct the "
            "metric: where it is undefined, its value is None"
        )


def _of(windows: Sequence[StreamWindow]) -> str:
    """Name the samples, for messages."""
    if not windows:
        return " that its training has held out"
    return (
        f", of positions {min(window.start for window in windows)} to {max(window.stop for window in windows) - 1} of the stream,"
    )


class ModelEvaluation(Section):
    """Options for evaluating the newest model on samples of the run."""

    device: str = Field("cpu", description="device: `cpu` or `cuda:N`", examples=["cuda:0"])
    dataset: dict[str, Any] = Field(
        description="entry like those of `evaluation.datasets`, for the dataset that the run trains on"
    )
    label_transformer_function: str | None = Field(None, description="like that of `data`, instead of that of `dataset`")

    @field_validator(_TRANSFORMER)
    @classmethod
    def _function(cls, value: str | None) -> str | None:
        return value if value is None else check_function(value, _TRANSFORMER, 1)

    @model_validator(mode="after")
    def _one_transformer(self) -> Self:
        if self.label_transformer_function is not None and self.dataset.get(_TRANSFORMER) is not None:
            raise ValueError(f"give {_TRANSFORMER} once, next to `dataset` or in it")
        return self

    def entry(self) -> dict[str, Any]:
        """The dataset's section as the evaluator receives it."""
        own = self.label_transformer_function
        return self.dataset | ({_TRANSFORMER: own} if own is not None else {})


class LateLabelsConfig(IntervalConfig):
    """Options of policies that read labels."""

    label_delay: Duration = Field(
        0,
        ge=0,
        description="the same as `data.label_delay`, which is preferred: time in the stream until a label arrives, for this policy and for "
        "trainings",
        examples=["1w"],
    )

    def context(self, context: TriggerContext | None) -> TriggerContext:
        """Return the context with the `label_delay` of this section, if the section has this option."""
        context = context or TriggerContext()
        return replace(context, label_delay=self.label_delay or context.label_delay)


class ForecastOptions(LateLabelsConfig):
    """Options of policies that compare the newest model with a model that would be trained now."""

    evaluation: ModelEvaluation = Field(description="how the newest model is evaluated on samples of the run")
    mode: Literal["hindsight", "lookahead"] = Field(
        "hindsight",
        description="avoidable misclassifications count until now, or until the next check by a forecast",
    )
    forecasting_method: ForecastingMethod = Field(
        ForecastingMethod.RIDGE_REGRESSION, description="method that forecasts accuracies after triggers and samples of checks"
    )
    data_density_window_size: int = Field(
        20, ge=1, le=100_000, description="number of newest checks from whose samples the next ones are forecast (`lookahead`)"
    )
    performance_triggers_window_size: int = Field(
        10, ge=1, le=100_000, description="number of newest triggers from whose accuracies the next one is forecast"
    )


def forecasts_without_effect(
    model: type[ForecastOptions], options: Mapping[str, Any], path: str, *, is_expected: bool
) -> list[Problem]:
    """Return warnings about forecast options without effect. Args: options: a valid `model`. is_expected: whether `expected_accuracy` is given, so
    that no accuracy is forecast.
    """
    found, is_ahead = list[Problem](), options.get("mode") == "lookahead"
    if not is_ahead:
        message = "is for the forecast of mode: lookahead: leave it out, or write that mode"
        found += without_effect(model, options, ["data_density_window_size"], path, message)
    if is_expected:
        message = "is for the forecast of expected_accuracy, which is given: leave one of them out"
        names = ["performance_triggers_window_size", *([] if is_ahead else ["forecasting_method"])]
        found += without_effect(model, options, names, path, message)
    return found


class PerformanceOptions(ForecastOptions):
    """Options of policies that use scores of the newest model."""

    calibration_samples: int = Field(
        1000,
        ge=1,
        description="largest number of newest samples with labels for calibrating estimates from confidence: samples that the training has held "
        "out (`training.validation`), or else those of the first check with labels after the trigger",
    )


class PerformanceMeter:
    """Evaluates each sample of the stream once with the newest model, at the first check after the sample's label has arrived. Samples on which the
    model was trained are left out. Estimates from confidence need no labels and use all new samples.

    Evidence: each defined score under the label of its metric, and `evaluated_samples`; each estimated accuracy, and `estimated_samples`, with the
    numbers of the calibration: `calibration.accuracy`, `.mean_confidence`, `.confidence_threshold`. The calibration is made once for each model. The
    calibration does not use samples on which the model was trained, because a model is more confident and more accurate on these samples. The
    calibration uses the newest samples that the training has held out. Without held-out samples, the calibration uses the first samples with labels
    after the trigger.
    """

    def __init__(self, options: PerformanceOptions, metrics: Iterable[str], label_delay: int) -> None:
        """Args: metrics: labels of the needed scores. label_delay: seconds of stream time by which labels arrive late."""
        self._options = options
        self._estimated = [name for name in ESTIMATED_METRICS if name in (wanted := set(metrics))]
        self._scored = wanted - set(ESTIMATED_METRICS)
        self._windows = LabelledWindows(label_delay)
        self._calibration: Calibration | None = None
        self._waits_for_labels = False
        """Whether the last check had no samples for calibration."""
        num_triggers, num_checks = options.performance_triggers_window_size, options.data_density_window_size
        self._trends = {name: AccuracyTrend(options.forecasting_method, num_triggers, num_checks) for name in sorted(wanted)}

    def observe(self, samples: SampleBatch) -> None:
        """Receive the next samples of the stream."""
        self._windows.observe(samples)

    def measure(self, source: EvidenceSource, model_id: int) -> list[Evidence]:
        """Measure a model on the new samples. Changes nothing.

        Raises: ConfigError: the metric does not exist. DataError: an output of the model, or a score, is not finite.
        """
        return [*self._scores(source, model_id), *self._estimates(source, model_id)]

    def _scores(self, source: EvidenceSource, model_id: int) -> list[Evidence]:
        if not self._scored:
            return []
        evaluation = self._options.evaluation
        windows = self._windows.labelled()
        question = ScoreQuestion(model_id, windows, evaluation.entry(), evaluation.device)
        scores = source.ask(question) if windows else ()
        for score in scores:
            if score.metric in self._scored:
                _refuse_unfit(score, model_id, windows)
        values = {score.metric: score.value for score in scores}
        for name in self._scored - values.keys() if windows else ():
            choices = [*values, *ESTIMATED_METRICS]
            raise ConfigError(
                f"evaluation.dataset has no metric '{name}'{nearest(name, choices) or '.'} There are: {', '.join(choices)}"
            )
        number = max((score.num_samples for score in scores), default=0)
        defined = [Evidence(name, value) for name, value in values.items() if value is not None]
        return [*defined, Evidence.count(EVALUATED, number)]

    def _estimates(self, source: EvidenceSource, model_id: int) -> list[Evidence]:
        if not self._estimated:
            return []
        outcomes = self._outcomes(source, model_id, self._windows.new())
        count = Evidence.count(ESTIMATED, 0 if outcomes is None else len(outcomes))
        calibration = self._calibration or self._calibrate(source, model_id, outcomes)
        if calibration is None or outcomes is None:
            return [count]
        estimates = [Evidence(name, _ESTIMATES[name](calibration, outcomes[:, 1])) for name in self._estimated]
        numbers = zip(_CALIBRATION, astuple(calibration), strict=True)
        return [*estimates, count, *(Evidence.detail(name, number) for name, number in numbers)]

    def _calibrate(self, source: EvidenceSource, model_id: int, new: np.ndarray[Any, Any] | None) -> Calibration | None:
        """Calibrate on held-out samples, or else on samples with new labels; None without samples. Args: new: outcomes since the last check."""
        evaluation, count = self._options.evaluation, self._options.calibration_samples
        before = self._windows.labelled_before
        held_out = source.ask(HeldOutQuestion(model_id, count, before, evaluation.entry(), evaluation.device))
        if held_out is not None:
            refuse_diverged(held_out, model_id)
            outcomes: np.ndarray[Any, Any] | None = held_out.outputs[:, [0, 2]]
        else:
            labelled = self._windows.labelled()
            outcomes = new if labelled == self._windows.new() else self._outcomes(source, model_id, labelled)
        return None if outcomes is None else calibrate(outcomes[-count:, 0], outcomes[-count:, 1])

    def _outcomes(self, source: EvidenceSource, model_id: int, windows: list[StreamWindow]) -> np.ndarray[Any, Any] | None:
        """Return error and confidence, (n, 2), n ≥ 1; None without samples."""
        evaluation = self._options.evaluation
        question = OutcomeQuestion(model_id, windows, evaluation.entry(), evaluation.device)
        rows = source.ask(question) if windows else None
        if rows is None:
            return None
        refuse_diverged(rows, model_id, windows)
        return rows.outputs[:, [0, 2]]

    def num_samples(self, metric: str, measured: Sequence[Evidence]) -> int:
        """Return the number of samples on which a score in evidence was measured."""
        return int(required_value(measured, ESTIMATED if metric in ESTIMATED_METRICS else EVALUATED, EvidenceKind.COUNT))

    def expected_accuracy(self, score: Evidence) -> float:
        """Forecast the accuracy that a model trained now would have; see `AccuracyTrend`."""
        return self._trends[score.series].expected_accuracy(score.value)

    def samples_ahead(self, metric: str, num_samples: int) -> float:
        """Forecast the number of samples of the next check. Args: num_samples: number of samples of this check."""
        return self._trends[metric].samples_ahead(num_samples)

    def remember(self, evidence: Sequence[Evidence]) -> None:
        """Record the evidence of a check. The check was just made, or is from the journal."""
        for name, trend in self._trends.items():
            if (score := value_of(evidence, name)) is not None:
                trend.remember(score, self.num_samples(name, evidence))
        if value_of(evidence, _CALIBRATION[0], EvidenceKind.DETAIL) is not None:
            self._calibration = Calibration(*(required_value(evidence, name, EvidenceKind.DETAIL) for name in _CALIBRATION))
        evaluated, estimated = (value_of(evidence, name, EvidenceKind.COUNT) for name in (EVALUATED, ESTIMATED))
        if evaluated is not None:
            self._windows.count(evaluated)
        self._waits_for_labels = bool(estimated) and self._calibration is None

    def advance(self) -> None:
        """Mark the samples so far as checked."""
        self._windows.advance()

    def trained(self) -> None:
        """Continue with the model of a trigger here."""
        self._windows.trained()
        self._calibration, self._waits_for_labels = None, False
        for trend in self._trends.values():
            trend.trained()

    def warning(self) -> str | None:
        """Return the warning that estimates wait for labels; None if estimates do not wait. The policy calls this method only with a model."""
        if not self._waits_for_labels or not self._windows.is_late:
            return None
        return (
            f"no label of a sample that the newest model was not trained on has come{self._windows.delay}, so "
            f"{' and '.join(self._estimated)} cannot be calibrated and fire nothing until one is; let trainings hold samples out "
            "(training.validation), and they are calibrated on these"
        )

    def end_warning(self) -> str:
        """Return a clause for the end of the stream if no label arrived in time; empty otherwise, or if the policy needs no label."""
        return self._windows.end_warning()

    def state(self) -> dict[str, Any]:
        """Return the state that survives a restart, as JSON."""
        calibration = self._calibration
        numbers = calibration and [calibration.accuracy, calibration.mean_confidence, calibration.confidence_threshold]
        return {
            "windows": self._windows.state(),
            "calibration": numbers,
            "waits_for_labels": self._waits_for_labels,
            "trends": {name: trend.state() for name, trend in self._trends.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""
        self._windows.load_state(state["windows"])
        self._calibration = None if state["calibration"] is None else Calibration(*state["calibration"])
        self._waits_for_labels = state["waits_for_labels"]
        for name, trend in self._trends.items():
            trend.load_state(state["trends"][name])
