"""Fires when a stream detector finds that what the newest model does, or how far the data have moved, has changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from modyn.config.base import Problem, Severity
from modyn.config.policy import check_policy, load_policy
from modyn.errors import ConfigError, DataError, InvalidArgumentError
from modyn.records import SampleBatch
from modyn.supervisor.detectors import DETECTORS, StreamDetector
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, TriggerContext, TriggerOutcome
from modyn.supervisor.triggers.interval import UNUSUAL, IntervalConfig, IntervalTrigger
from modyn.supervisor.triggers.labelled_windows import LabelledWindows
from modyn.supervisor.triggers.performance_meter import EVALUATED, LateLabelsConfig, ModelEvaluation, refuse_diverged
from modyn.supervisor.triggers.window_distances import ComparedWindows, WindowDistances

_COLUMNS = {"error": 0, "loss": 1}
_NEEDED = {"error": "evaluation", "loss": "evaluation", "distance": "distance"}
"""Which section says how a series is measured."""
_TAKEN = {"errors": ("error",), "shares": ("error", "distance"), "numbers": ("error", "loss", "distance")}
"""Which series hold the kinds of numbers that detectors take."""


class MeasuredDistance(ComparedWindows):
    """How the distance of new data from those that the newest model was trained on is measured."""

    metric: dict[str, Any] = Field(description="how far apart the windows are: a drift metric by its `id`, without a criterion")


class StreamDetectorConfig(LateLabelsConfig):
    """Fires when a stream detector finds a change."""

    detector: dict[str, Any] = Field(
        description="what finds changes: a stream detector by its `id`, with its options", examples=[{"id": "ADWIN"}]
    )
    on: Literal["error", "loss", "distance"] = Field(
        "error", description="the series: error (0 or 1) or loss of each sample by the newest model, or one distance a check"
    )
    evaluation: ModelEvaluation | None = Field(
        None, description="how the newest model is evaluated on samples of the run; required where `on` is error or loss"
    )
    distance: MeasuredDistance | None = Field(None, description="how the distance is measured; required where `on` is distance")


class _Detected(dict[str, float]):
    """Evidence of a check, and the state of the detector after it."""

    def __init__(self, evidence: Mapping[str, float], detector: Mapping[str, Any]) -> None:
        super().__init__(evidence)
        self.detector = detector


class StreamDetectorTrigger(IntervalTrigger):
    """Fires when a stream detector finds that the distribution of a series has changed since the last trigger.

    The series is the error or the loss of the newest model on each new sample, in the order of the stream, once its label has come
    (`label_delay`); or the distance of the newest data from the reference, one number a check, as of DataDriftTrigger. The detector is given
    the numbers one by one at each check, also during warm-up and cool-down, and begins anew after a trigger.

    A detection holds until the next trigger of the run: one of a warm-up or a cool-down fires at the first check behind it, since the detector
    takes what it has found for normal and finds it once.

    Evidence: the mean of the series under its name (`error`, `loss` or `distance`) and `detections`, how often the detector has found a change
    since the last check, with `detected_before` where a detection of an earlier check holds; what the detector compares under its own name,
    with `name.threshold` and `name.unusual`, at the first detection or else at the newest number; `evaluated_samples`, or what
    DataDriftTrigger says of its windows.
    """

    Config: ClassVar[type[IntervalConfig]] = StreamDetectorConfig
    config: StreamDetectorConfig

    def __init__(self, config: StreamDetectorConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, config.context(context))
        if missing := _unfit(config.model_dump(), ""):
            raise ConfigError("\n".join(map(str, missing)))
        self._windows = LabelledWindows(self.label_delay)
        self._distances: WindowDistances | None = None
        if config.distance is not None:
            self._distances = WindowDistances(config.distance, {"distance": config.distance.metric}, self.context.seed)
        self._detector_state = self._new_detector().state()
        self._has_detected = False
        """Whether there was a detection since the last trigger of the run."""

    @classmethod
    def problems(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Those of the detector too; the evaluator checks the dataset and the drift metric."""
        found = super().problems(options, path)
        if isinstance(detector := options.get("detector"), Mapping):
            found += check_policy(DETECTORS, detector, "id", f"{path}.detector")
        return found or _unfit(options, f"{path}.") or _hard_to_convince(options, f"{path}.detector.threshold")

    def _new_detector(self) -> StreamDetector:
        detector, config = load_policy(DETECTORS, self.config.detector, "id", "detector")
        return detector(config, self.context.seed or 0)

    def observe(self, samples: SampleBatch) -> None:
        """Count them, and their time."""
        super().observe(samples)
        self._windows.observe(samples)
        if self._distances is not None:
            self._distances.observe(samples)

    @property
    def needs_model(self) -> bool:
        """By what it looks at."""
        return self.config.distance is None or self.config.distance.on.needs_model

    def lacking(self) -> str:
        """The windows, or the delay of labels, that the stream was too short for, too."""
        watched = self._windows.lacking() if self._distances is None else self._distances.lacking()
        return "; ".join(filter(None, [super().lacking(), watched]))

    def measure(self, context: CheckContext) -> Mapping[str, float]:
        """What the detector says of the numbers that are new, once there is a model, or what it is compared with."""
        evidence, values = self._distance(context) if self._distances is not None else self._outcomes(context)
        if not evidence:
            return {}
        detector, name = self._new_detector(), self.config.on
        detector.load_state(self._detector_state)
        seen, detections = None, 0
        for value in values.tolist():
            if detector.update(value):
                detections += 1
                seen = seen or dict(detector.evidence())
        seen = seen or dict(detector.evidence())
        compared = next(iter(seen), "")
        named = {f"{compared}.{key}" if key == "threshold" else key: number for key, number in seen.items()}
        named |= {f"{compared}.{UNUSUAL}": float(detections > 0)} if compared else {}
        mean = {str(name): float(values.mean())} if len(values) else {}
        return _Detected({**named, **evidence, **mean, "detections": float(detections)}, detector.state())

    def _outcomes(self, context: CheckContext) -> tuple[dict[str, float], NDArray[np.float64]]:
        """Errors or losses of the samples whose labels are new, in the order of the stream; no evidence: there is no model."""
        evaluation, name = self.config.evaluation, self.config.on
        assert evaluation is not None
        if self.model_id is None:
            return {}, np.empty(0)
        windows = self._windows.labelled()
        rows = context.source.outcomes(self.model_id, windows, evaluation.entry(), evaluation.device) if windows else None
        if rows is not None:
            refuse_diverged(rows, self.model_id, windows)
        values = np.empty(0) if rows is None else np.asarray(rows.outputs[:, _COLUMNS[name]], np.float64)
        if odd := int((~np.isfinite(values)).sum()):
            raise DataError(f"the {name} of model {self.model_id} is not a number for {odd} of {len(values)} samples")
        return {EVALUATED: float(len(values))}, values

    def _distance(self, context: CheckContext) -> tuple[dict[str, float], NDArray[np.float64]]:
        """One distance, or none; no evidence: there is no reference, or no model."""
        assert self._distances is not None
        evidence = self._distances.measure(context.source, self.model_id)
        values = np.array([evidence["distance"]] if "distance" in evidence else [], np.float64)
        detector = DETECTORS.get(self.config.detector["id"])
        if detector.takes == "shares" and len(values) and not 0 <= values[0] <= 1:
            raise InvalidArgumentError(
                f"{self.config.detector['id']} takes numbers from 0 to 1, and the distance is {values[0]:g}; use {_fitting('distance')}, or a "
                "metric with such values"
            )
        return evidence, values

    def judge(self, measured: Mapping[str, float], context: CheckContext) -> tuple[bool, Mapping[str, float]]:
        """Whether there was a detection, at this check or since the last trigger."""
        return measured["detections"] > 0 or self._has_detected, {"detected_before": 1.0} if self._has_detected else {}

    def memory(self, measured: Mapping[str, float]) -> Mapping[str, Any]:
        """The detector's state."""
        return {"detector": measured.detector} if isinstance(measured, _Detected) else {}

    def remember(self, record: CheckRecord) -> None:
        """Go on with the detector as it was after the check, and keep what it has found."""
        self._detector_state = dict(record.memory["detector"])
        self._has_detected = bool(record.evidence[UNUSUAL])
        self._windows.count(record.evidence.get(EVALUATED, 0))

    def interval_ended(self) -> None:
        """Begin the next one behind the samples so far."""
        self._windows.advance()
        if self._distances is not None:
            self._distances.advance()

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Begin anew with the detector; make the newest data the reference, as long as there is no model."""
        super().triggered(outcome)
        self._detector_state = self._new_detector().state()
        self._has_detected = False
        if self._distances is not None:
            self._distances.triggered()
            if self.model_id is None:
                self._distances.renew_reference()

    def trained(self, outcome: TriggerOutcome) -> None:
        """Go on with the new model; make the newest data, which it was trained on, the reference."""
        super().trained(outcome)
        self._windows.trained()
        if self._distances is not None:
            self._distances.renew_reference()

    def own_state(self) -> dict[str, Any]:
        """The detector, what it has found, and the windows."""
        distances = self._distances.state() if self._distances is not None else None
        detector = {"detector": self._detector_state, "has_detected": self._has_detected}
        return {**detector, "windows": self._windows.state(), "distances": distances}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._detector_state, self._has_detected = dict(state["detector"]), state["has_detected"]
        self._windows.load_state(state["windows"])
        if self._distances is not None:
            self._distances.load_state(state["distances"], self.last_trigger)


def _unfit(options: Mapping[str, Any], prefix: str) -> list[Problem]:
    """What is missing, given in vain or does not go together in options that are each valid."""
    series, found = options.get("on", "error"), []
    for name in ("evaluation", "distance"):
        if (options.get(name) is None) == (name == _NEEDED[series]):
            wrong = (
                f"is required where `on` is {series}"
                if name == _NEEDED[series]
                else f"has no effect where `on` is {series}; remove it"
            )
            found.append(Problem(f"{prefix}{name}", wrong))
    if series == "distance" and options.get("label_delay"):
        found.append(Problem(f"{prefix}label_delay", "has no effect where `on` is distance, which needs no labels; remove it"))
    if options.get("consecutive_checks", 1) > 1:
        wrong = (
            "has no meaning for a detector, which finds a change once: remove it, or choose a detector that is harder to convince"
        )
        found.append(Problem(f"{prefix}consecutive_checks", wrong))
    id_ = options["detector"]["id"]
    takes = DETECTORS.get(id_).takes
    if series not in _TAKEN[takes]:
        kind = "errors" if takes == "errors" else "numbers from 0 to 1"
        found.append(Problem(f"{prefix}detector.id", f"{id_} takes {kind}, and not a {series}; use {_fitting(series)}"))
    return found


def _hard_to_convince(options: Mapping[str, Any], path: str) -> list[Problem]:
    """A warning of a threshold for numbers of single samples where each check gives one distance. Args: options: without mistakes."""
    detector = options["detector"]
    if options.get("on") != "distance" or detector["id"] != "PageHinkley" or "threshold" in detector:
        return []
    default = DETECTORS.get("PageHinkley").Config.model_fields["threshold"].default
    why = (
        f"its default, {default:g}, is meant for errors of single samples, and a sum of distances, one a check, hardly reaches it"
    )
    return [Problem(path, f"{why}: choose one in units of the distance", Severity.WARNING)]


def _fitting(series: str) -> str:
    """The built-in detectors of a series, for messages."""
    return ", ".join(sorted(id_ for id_ in DETECTORS.builtin if series in _TAKEN[DETECTORS.get(id_).takes]))
