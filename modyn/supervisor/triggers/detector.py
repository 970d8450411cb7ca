"""Fires when a stream detector finds a change in the errors of the newest model, or in the distance of new data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from modyn.config.base import Problem, Severity
from modyn.config.policy import check_policy, load_policy
from modyn.errors import ConfigError, DataError, InvalidArgumentError
from modyn.evaluator.client import DriftQuestion
from modyn.records import SampleBatch
from modyn.supervisor.detectors import DETECTORS, StreamDetector
from modyn.supervisor.evidence import (
    DETECTED_BEFORE,
    DETECTIONS,
    UNUSUAL,
    Evidence,
    EvidenceKind,
    is_flagged,
    required_value,
    value_of,
)
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, TriggerContext, TriggerOutcome
from modyn.supervisor.triggers.interval import CheckMeasurement, IntervalConfig, IntervalTrigger
from modyn.supervisor.triggers.measures.labelled_windows import LabelledWindows
from modyn.supervisor.triggers.measures.performance_meter import EVALUATED, LateLabelsConfig, ModelEvaluation, refuse_diverged
from modyn.supervisor.triggers.measures.questions import OutcomeQuestion
from modyn.supervisor.triggers.measures.window_distances import ComparedWindows, WindowDistances

_COLUMNS = {"error": 0, "loss": 1}
"""Column of each series in the outputs that answer an `OutcomeQuestion`."""
_NEEDED = {"error": "evaluation", "loss": "evaluation", "distance": "distance"}
"""The section that defines the measurement of each series."""
_TAKEN = {"errors": ("error",), "shares": ("error", "distance"), "numbers": ("error", "loss", "distance")}
"""Type of numbers that a detector accepts → the series with such numbers."""


class MeasuredDistance(ComparedWindows):
    """Options for measuring the distance between new data and the training data of the newest model."""

    metric: dict[str, Any] = Field(description="drift metric of the windows: its `id` and options, without a criterion")


class StreamDetectorConfig(LateLabelsConfig):
    """Fires when a stream detector finds a change."""

    detector: dict[str, Any] = Field(
        description="stream detector that finds changes: its `id` and options", examples=[{"id": "ADWIN"}]
    )
    on: Literal["error", "loss", "distance"] = Field(
        "error", description="the series: error (0 or 1) or loss of the newest model on each sample, or one distance per check"
    )
    evaluation: ModelEvaluation | None = Field(
        None, description="how the newest model is evaluated on samples of the run; required if `on` is error or loss"
    )
    distance: MeasuredDistance | None = Field(None, description="how the distance is measured; required if `on` is distance")


class StreamDetectorTrigger(IntervalTrigger):
    """Fires when a stream detector finds that the distribution of a series has changed since the last trigger.

    The series has one number for each new sample: the error or the loss of the newest model, after the label of the sample has arrived
    (`label_delay`), in the order of the stream. With `on: distance`, the series has one number for each check: the distance between the reference
    and the newest data, as measured by DataDriftTrigger. At each check, also during warm-up and cool-down, the detector processes the new numbers
    one by one. The detector starts again after a trigger.

    A detection stays valid until the next trigger of the run. A detection in a warm-up or a cool-down therefore fires at the first check afterwards.
    The detector would not find the same change again, because the new distribution is normal for the detector by then.

    Evidence: the number that the detector compares, with threshold and verdict (from the first detection, or without a detection from the newest
    number); the mean of the series as `error`, `loss` or `distance`; the count `detections` of the changes since the last check; the flag
    `detected_before` if a detection of an earlier check is still valid; the count `evaluated_samples`, or the counts of the windows (see
    DataDriftTrigger).

    >>> from modyn.config.base import load_section
    >>> from modyn.testing.decisions import decide
    >>> from modyn.testing.fake_evidence import FakeEvidence  # models err where the label is 0
    >>> stream = SampleBatch(np.arange(300), np.arange(300), np.repeat([1, 0], [200, 100]))
    >>> evaluation = {"dataset": {"dataset_id": "d", "metrics": [{"name": "Accuracy"}]}}
    >>> options = {"evaluation_interval_data_points": 50, "detector": {"id": "ADWIN"}, "evaluation": evaluation}
    >>> checks = decide(StreamDetectorTrigger(load_section(StreamDetectorConfig, options)), [stream], source=FakeEvidence(stream))
    >>> [(check.position, check.numbers.get("error")) for check in checks if check.fires]
    [(50, None), (250, 1.0)]
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
        """Whether the detector has detected a change since the last trigger of the run."""

    @classmethod
    def problems(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Find mistakes in the options of the policy and the detector; the evaluator checks the dataset and the drift metric."""
        found = super().problems(options, path)
        if isinstance(detector := options.get("detector"), Mapping):
            found += check_policy(DETECTORS, detector, "id", f"{path}.detector")
        return found or _unfit(options, f"{path}.") or _hard_to_convince(options, f"{path}.detector.threshold")

    def _new_detector(self) -> StreamDetector:
        detector, config = load_policy(DETECTORS, self.config.detector, "id", "detector")
        return detector(config, self.context.seed or 0)

    def observe(self, samples: SampleBatch) -> None:
        """Count the samples, and store their times."""
        super().observe(samples)
        self._windows.observe(samples)
        if self._distances is not None:
            self._distances.observe(samples)

    @property
    def needs_model(self) -> bool:
        """Whether a model computes the series."""
        return self.config.distance is None or self.config.distance.on.needs_model

    def end_warning(self) -> str:
        """See `Trigger`. The result also names the windows, or the delay of labels, for which the stream was too short."""
        watched = self._windows.end_warning() if self._distances is None else self._distances.end_warning()
        return "; ".join(filter(None, [super().end_warning(), watched]))

    def drift_question(self) -> DriftQuestion | None:
        """See `IntervalTrigger.drift_question`."""
        return None if self._distances is None else self._distances.question(self.model_id)

    def measure(self, context: CheckContext) -> CheckMeasurement:
        """Pass the new numbers through a copy of the detector, if there is a model or a reference. The check's memory is the copy's final state."""
        evidence, values = self._distance(context) if self._distances is not None else self._outcomes(context)
        if not evidence:
            return CheckMeasurement()
        # The check changes only a copy of the detector, because an interrupted check is repeated. `remember` stores the copy's state.
        detector = self._new_detector()
        detector.load_state(self._detector_state)
        seen, num_detections = None, 0
        for value in values.tolist():
            if detector.update(value):
                num_detections += 1
                seen = seen or detector.evidence()
        # Without a detection, the evidence describes the detector after the last number.
        seen = seen or detector.evidence()
        verdict = [replace(one, unusual=num_detections > 0) for one in seen[:1]]
        found = [*verdict, *seen[1:], *evidence, Evidence.count(DETECTIONS, num_detections)]
        return CheckMeasurement(found, {"detector": detector.state()})

    def _outcomes(self, context: CheckContext) -> tuple[list[Evidence], NDArray[np.float64]]:
        """Return errors or losses of the samples with new labels, in the order of the stream. Without a model the evidence is empty."""
        evaluation, name = self.config.evaluation, self.config.on
        assert evaluation is not None
        if self.model_id is None:
            return [], np.empty(0)
        windows = self._windows.labelled()
        question = OutcomeQuestion(self.model_id, windows, evaluation.entry(), evaluation.device)
        rows = context.source.ask(question) if windows else None
        if rows is not None:
            refuse_diverged(rows, self.model_id, windows)
        values = np.empty(0) if rows is None else np.asarray(rows.outputs[:, _COLUMNS[name]], np.float64)
        if odd := int((~np.isfinite(values)).sum()):
            raise DataError(f"the {name} of model {self.model_id} is not a number for {odd} of {len(values)} samples")
        mean = [Evidence(name, float(values.mean()))] if len(values) else []
        return [*mean, Evidence.count(EVALUATED, len(values))], values

    def _distance(self, context: CheckContext) -> tuple[list[Evidence], NDArray[np.float64]]:
        """Return one distance; no distance if the windows have too few samples. Without a reference or a model the evidence is empty."""
        assert self._distances is not None
        evidence = self._distances.measure(context.source, self.model_id)
        distance = value_of(evidence, "distance")
        detector = DETECTORS.get(self.config.detector["id"])
        if detector.takes == "shares" and distance is not None and not 0 <= distance <= 1:
            raise InvalidArgumentError(
                f"{self.config.detector['id']} takes numbers from 0 to 1, and the distance is {distance:g}; use {_fitting('distance')}, or a "
                "metric with such values"
            )
        return evidence, np.array([] if distance is None else [distance], np.float64)

    def judge(self, measured: Sequence[Evidence], context: CheckContext) -> tuple[bool, Sequence[Evidence]]:
        """Return whether there was a detection, at this check or since the last trigger."""
        num_detections = required_value(measured, DETECTIONS, EvidenceKind.COUNT)
        before = [Evidence.flag(DETECTED_BEFORE)] if self._has_detected else []
        return num_detections > 0 or self._has_detected, [*measured, *before]

    def remember(self, record: CheckRecord) -> None:
        """Continue from the detector's state after the check, and store whether the detector has found a change."""
        self._detector_state = dict(record.memory["detector"])
        self._has_detected = is_flagged(record.evidence, UNUSUAL)
        # Labels are not counted, because a distance needs no labels.
        needs_labels = self._distances is None
        self._windows.count(required_value(record.evidence, EVALUATED, EvidenceKind.COUNT) if needs_labels else 0)

    def interval_ended(self) -> None:
        """Start the next interval after the samples so far."""
        self._windows.advance()
        if self._distances is not None:
            self._distances.advance()

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Start with a new detector. While there is no model, the newest data becomes the reference."""
        super().triggered(outcome)
        self._detector_state = self._new_detector().state()
        self._has_detected = False
        if self._distances is not None:
            self._distances.triggered()
            if self.model_id is None:
                self._distances.renew_reference()

    def trained(self, outcome: TriggerOutcome) -> None:
        """Record the new model. The newest data, on which the model was trained, becomes the reference."""
        super().trained(outcome)
        self._windows.trained()
        if self._distances is not None:
            self._distances.renew_reference()

    def own_state(self) -> dict[str, Any]:
        """Return the state of the detector, whether the detector has found a change, and the windows."""
        distances = self._distances.state() if self._distances is not None else None
        detector = {"detector": self._detector_state, "has_detected": self._has_detected}
        return {**detector, "windows": self._windows.state(), "distances": distances}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore the detector, the detection and the windows."""
        self._detector_state, self._has_detected = dict(state["detector"]), state["has_detected"]
        self._windows.load_state(state["windows"])
        if self._distances is not None:
            self._distances.load_state(state["distances"])


def _unfit(options: Mapping[str, Any], prefix: str) -> list[Problem]:
    """Find options that are missing, have no effect or contradict each other. Each option is valid by itself."""
    series, found = options.get("on", "error"), []
    for name in ("evaluation", "distance"):
        # Either the needed section is missing, or a section that is not needed is given.
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
    """Warn if PageHinkley has the default threshold for single samples, but gets one distance per check. Args: options: without mistakes."""
    detector = options["detector"]
    if options.get("on") != "distance" or detector["id"] != "PageHinkley" or "threshold" in detector:
        return []
    default = DETECTORS.get("PageHinkley").Config.model_fields["threshold"].default
    why = (
        f"its default, {default:g}, is meant for errors of single samples, and a sum of distances, one a check, hardly reaches it"
    )
    return [Problem(path, f"{why}: choose one in units of the distance", Severity.WARNING)]


def _fitting(series: str) -> str:
    """Return the built-in detectors of a series, for messages."""
    return ", ".join(sorted(id_ for id_ in DETECTORS.builtin if series in _TAKEN[DETECTORS.get(id_).takes]))
