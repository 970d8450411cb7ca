"""Measures how well the newest model of a run does on the samples that are new at each check, by its labels or by its confidence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from modyn.config.base import Problem, Section, without_effect
from modyn.config.durations import Duration
from modyn.dataset.user_code import check_function
from modyn.errors import ConfigError, DataError
from modyn.evaluator.client import ATC, DOC, ESTIMATED_METRICS, Rows, Score
from modyn.records import SampleBatch, StreamWindow
from modyn.registry import nearest
from modyn.supervisor.triggers.accuracy_trend import AccuracyTrend
from modyn.supervisor.triggers.base import TriggerContext
from modyn.supervisor.triggers.estimated_accuracy import (
    Calibration,
    average_thresholded_confidence,
    calibrate,
    difference_of_confidences,
)
from modyn.supervisor.triggers.evidence import EvidenceSource
from modyn.supervisor.triggers.forecasts import ForecastingMethod
from modyn.supervisor.triggers.interval import IntervalConfig
from modyn.supervisor.triggers.labelled_windows import LabelledWindows

EVALUATED: Final = "evaluated_samples"
"""Evidence: samples whose labels were compared with the model's predictions."""
ESTIMATED: Final = "estimated_samples"
"""Evidence: samples whose confidence was looked at."""
_ESTIMATES: Final = {ATC: average_thresholded_confidence, DOC: difference_of_confidences}
_TRANSFORMER: Final = "label_transformer_function"


_DIVERGED: Final = "the model has diverged: lower its learning rate or clip its gradients, and submit the pipeline anew"


def refuse_diverged(rows: Rows, model_id: int, windows: Sequence[StreamWindow] = ()) -> None:
    """Raise DataError if the class probabilities of any of these samples are not finite: errors and confidences of them mean nothing.

    Args: rows: of `EvidenceSource.outcomes`. windows: that they are of; none: the samples that the training of the model has held out.
    """
    if odd := int((~np.isfinite(rows.outputs[:, 2])).sum()):
        raise DataError(
            f"what model {model_id} says of {odd} of {len(rows.keys)} samples{_of(windows)} is not finite (NaN or infinity); {_DIVERGED}"
        )


def _refuse_unfit(score: Score, model_id: int, windows: Sequence[StreamWindow]) -> None:
    """Raise DataError for a score that is no number, unless it is undefined for these samples whatever the model."""
    if score.has_diverged:
        raise DataError(
            f"{score.metric} of model {model_id} on {score.num_samples} samples{_of(windows)} is {score.note}; {_DIVERGED}"
        )
    if score.value is not None and not math.isfinite(score.value):
        raise DataError(
            f"{score.metric} of model {model_id} on {score.num_samples} samples{_of(windows)} is {score.value}, no finite number; correct the "
            "metric: where it is undefined, its value is None"
        )


def _of(windows: Sequence[StreamWindow]) -> str:
    """Which samples they are, for messages."""
    if not windows:
        return " that its training has held out"
    return (
        f", of positions {min(window.start for window in windows)} to {max(window.stop for window in windows) - 1} of the stream,"
    )


class ModelEvaluation(Section):
    """How the newest model is evaluated on samples of the run."""

    device: str = Field("cpu", description="where: `cpu` or `cuda:N`", examples=["cuda:0"])
    dataset: dict[str, Any] = Field(description="an entry as of `evaluation.datasets`, of the dataset that the run trains on")
    label_transformer_function: str | None = Field(
        None, description="as in `data`, in place of that of `dataset`: source, or package.module:name, of what labels become"
    )

    @field_validator(_TRANSFORMER)
    @classmethod
    def _function(cls, value: str | None) -> str | None:
        return value if value is None else check_function(value, _TRANSFORMER, 1)

    @model_validator(mode="after")
    def _one_transformer(self) -> Self:
        if self.label_transformer_function is not None and self.dataset.get(_TRANSFORMER) is not None:
            raise ValueError(f"give {_TRANSFORMER} once, beside `dataset` or in it")
        return self

    def entry(self) -> dict[str, Any]:
        """The dataset's section as the evaluator is given it."""
        own = self.label_transformer_function
        return self.dataset | ({_TRANSFORMER: own} if own is not None else {})


class LateLabelsConfig(IntervalConfig):
    """Options of policies that look at labels."""

    label_delay: Duration = Field(
        0,
        ge=0,
        description="the same as `data.label_delay`, which is the better place: labels come so late in stream time, for trainings as for this "
        "policy",
        examples=["1w"],
    )

    def context(self, context: TriggerContext | None) -> TriggerContext:
        """Return the context with the `label_delay` of this section, if it has one."""
        context = context or TriggerContext()
        return replace(context, label_delay=self.label_delay or context.label_delay)


class ForecastOptions(LateLabelsConfig):
    """Options of policies that compare the newest model with one that would be trained now."""

    evaluation: ModelEvaluation = Field(description="how the newest model is evaluated on samples of the run")
    mode: Literal["hindsight", "lookahead"] = Field(
        "hindsight",
        description="whether avoidable misclassifications count until now, or until the next check, as forecast",
    )
    forecasting_method: ForecastingMethod = Field(
        ForecastingMethod.RIDGE_REGRESSION, description="how accuracies after triggers, and samples of checks, are forecast"
    )
    data_density_window_size: int = Field(
        20, ge=1, le=100_000, description="newest checks whose samples the forecast of the next one's is made from (`lookahead`)"
    )
    performance_triggers_window_size: int = Field(
        10, ge=1, le=100_000, description="newest triggers whose accuracies the forecast of the next one's is made from"
    )


def forecasts_without_effect(
    model: type[ForecastOptions], options: Mapping[str, Any], path: str, *, is_expected: bool
) -> list[Problem]:
    """Warnings of options of forecasts that forecast nothing. Args: options: a valid `model`. is_expected: whether `expected_accuracy` is given
    wherever it counts."""
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
    """Options of policies that look at scores of the newest model."""

    calibration_samples: int = Field(
        1000,
        ge=1,
        description="newest samples with labels, at most so many, that estimates from confidence are calibrated on: those that the training has "
        "held out (`training.validation`), or else those of the first check after the trigger that has labels",
    )


class PerformanceMeter:
    """Evaluates each sample of the stream once: at the first check at which its label has come, by the newest model, unless that was trained
    on it. Estimates from confidence need no labels of these samples, and look at all that are new.

    Evidence: each score under the label of its metric, where it is defined, and `evaluated_samples`; each estimated accuracy, and
    `estimated_samples`, with what they were calibrated to: `calibration.accuracy`, `.mean_confidence`, `.confidence_threshold`. The calibration
    is made once a model, on samples that it was not trained on, since a model is surer and better of those that it was: on the newest that its
    training has held out, or where it has held out none, on those behind the trigger whose labels come first.
    """

    def __init__(self, options: PerformanceOptions, metrics: Iterable[str], label_delay: int) -> None:
        """Args: metrics: labels of the scores that are needed. label_delay: seconds of stream time that labels come late."""
        self._options = options
        self._estimated = [name for name in ESTIMATED_METRICS if name in (wanted := set(metrics))]
        self._scored = wanted - set(ESTIMATED_METRICS)
        self._windows = LabelledWindows(label_delay)
        self._calibration: Calibration | None = None
        self._waits_for_labels = False
        """Whether there was nothing to calibrate on at the last check."""
        num_triggers, num_checks = options.performance_triggers_window_size, options.data_density_window_size
        self._trends = {name: AccuracyTrend(options.forecasting_method, num_triggers, num_checks) for name in sorted(wanted)}

    def observe(self, samples: SampleBatch) -> None:
        """Take the next samples of the stream."""
        self._windows.observe(samples)

    def measure(self, source: EvidenceSource, model_id: int) -> dict[str, float]:
        """What a model does on the samples that are new. Changes nothing.

        Raises: ConfigError: there is no such metric. DataError: what the model gives, or a score, is not finite.
        """
        return self._scores(source, model_id) | self._estimates(source, model_id)

    def _scores(self, source: EvidenceSource, model_id: int) -> dict[str, float]:
        if not self._scored:
            return {}
        evaluation = self._options.evaluation
        windows = self._windows.labelled()
        scores = source.scores(model_id, windows, evaluation.entry(), evaluation.device) if windows else ()
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
        defined = {name: value for name, value in values.items() if value is not None}
        return {**defined, EVALUATED: float(number)}

    def _estimates(self, source: EvidenceSource, model_id: int) -> dict[str, float]:
        if not self._estimated:
            return {}
        outcomes = self._outcomes(source, model_id, self._windows.new())
        number = float(0 if outcomes is None else len(outcomes))
        calibration = self._calibration or self._calibrated(source, model_id, outcomes)
        if calibration is None or outcomes is None:
            return {ESTIMATED: number}
        return {
            **{name: _ESTIMATES[name](calibration, outcomes[:, 1]) for name in self._estimated},
            ESTIMATED: number,
            "calibration.accuracy": calibration.accuracy,
            "calibration.mean_confidence": calibration.mean_confidence,
            "calibration.confidence_threshold": calibration.confidence_threshold,
        }

    def _calibrated(self, source: EvidenceSource, model_id: int, of_new: np.ndarray[Any, Any] | None) -> Calibration | None:
        """Args: of_new: outcomes of the samples since the last check."""
        evaluation, count = self._options.evaluation, self._options.calibration_samples
        before = self._windows.labelled_before
        held_out = source.held_out(model_id, count, before, evaluation.entry(), evaluation.device)
        if held_out is not None:
            refuse_diverged(held_out, model_id)
            outcomes: np.ndarray[Any, Any] | None = held_out.outputs[:, [0, 2]]
        else:
            labelled = self._windows.labelled()
            outcomes = of_new if labelled == self._windows.new() else self._outcomes(source, model_id, labelled)
        return None if outcomes is None else calibrate(outcomes[-count:, 0], outcomes[-count:, 1])

    def _outcomes(self, source: EvidenceSource, model_id: int, windows: list[StreamWindow]) -> np.ndarray[Any, Any] | None:
        """Error and confidence, (n, 2), n ≥ 1; None: there are no samples."""
        evaluation = self._options.evaluation
        rows = source.outcomes(model_id, windows, evaluation.entry(), evaluation.device) if windows else None
        if rows is None:
            return None
        refuse_diverged(rows, model_id, windows)
        return rows.outputs[:, [0, 2]]

    def num_samples(self, metric: str, measured: Mapping[str, float]) -> int:
        """The samples that a score in evidence was measured on."""
        return int(measured[ESTIMATED if metric in ESTIMATED_METRICS else EVALUATED])

    def expected_accuracy(self, metric: str, measured: Mapping[str, float]) -> float:
        """The accuracy that a model trained now would have, as forecast; see `AccuracyTrend`."""
        return self._trends[metric].expected_accuracy(measured[metric])

    def samples_ahead(self, metric: str, measured: Mapping[str, float]) -> float:
        """The samples that the next check will measure on, as forecast."""
        return self._trends[metric].samples_ahead(self.num_samples(metric, measured))

    def remember(self, evidence: Mapping[str, float]) -> None:
        """Take the evidence of a check, just made or replayed."""
        for name, trend in self._trends.items():
            if name in evidence:
                trend.remember(evidence[name], self.num_samples(name, evidence))
        if "calibration.accuracy" in evidence:
            names = ("accuracy", "mean_confidence", "confidence_threshold")
            self._calibration = Calibration(*(evidence[f"calibration.{name}"] for name in names))
        if EVALUATED in evidence:
            self._windows.count(evidence[EVALUATED])
        self._waits_for_labels = bool(evidence.get(ESTIMATED)) and self._calibration is None

    def advance(self) -> None:
        """Take the samples so far as checked."""
        self._windows.advance()

    def trained(self) -> None:
        """Go on with a model that was made at a trigger here."""
        self._windows.trained()
        self._calibration, self._waits_for_labels = None, False
        for trend in self._trends.values():
            trend.trained()

    def warning(self) -> str | None:
        """That estimates wait for labels. Asked once there is a model."""
        if not self._waits_for_labels or not self._windows.is_late:
            return None
        return (
            f"no label of a sample that the newest model was not trained on has come{self._windows.delay}, so "
            f"{' and '.join(self._estimated)} cannot be calibrated and fire nothing until one is; let trainings hold samples out "
            "(training.validation), and they are calibrated on these"
        )

    def lacking(self) -> str:
        """That no label came in time, in a clause for the end of the stream; empty: one did, or none was needed."""
        return self._windows.lacking()

    def state(self) -> dict[str, Any]:
        """What survives a restart, as JSON."""
        calibration = self._calibration
        numbers = calibration and [calibration.accuracy, calibration.mean_confidence, calibration.confidence_threshold]
        return {
            "windows": self._windows.state(),
            "calibration": numbers,
            "waits_for_labels": self._waits_for_labels,
            "trends": {name: trend.state() for name, trend in self._trends.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self._windows.load_state(state["windows"])
        self._calibration = None if state["calibration"] is None else Calibration(*state["calibration"])
        self._waits_for_labels = state["waits_for_labels"]
        for name, trend in self._trends.items():
            trend.load_state(state["trends"][name])
