"""Distances between a reference window of a stream and its newest data, for policies that watch drift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from pydantic import Field, model_validator

from modyn.config.base import PlacedError, Section
from modyn.evaluator.client import ComparedData, DriftQuestion
from modyn.records import Interval, SampleBatch, StreamWindow
from modyn.supervisor.triggers.evidence import EvidenceSource
from modyn.supervisor.triggers.label_clock import LateBatch
from modyn.supervisor.triggers.windows import AmountWindowingStrategy, TimeIndex, TriggerPoint, WindowingStrategy


class ComparedWindows(Section):
    """Which windows are compared, and what of their samples."""

    on: ComparedData = Field(ComparedData.EMBEDDINGS, description="what is compared of each sample")
    windowing_strategy: WindowingStrategy = Field(
        default_factory=AmountWindowingStrategy, description="which samples are the reference, and which the current ones"
    )
    sample_size: int | None = Field(
        5000, ge=2, description="samples of a window that are compared, drawn by `training.seed` and their keys; none: all"
    )
    projection: dict[str, Any] | None = Field(
        None,
        description="what is compared is projected to fewer dimensions first: a projection by its `id`, with its options",
        examples=[{"id": "RandomProjection", "num_components": 32}],
    )

    @model_validator(mode="after")
    def _can_be_projected(self) -> Self:
        if self.on is ComparedData.LABELS and self.projection is not None:
            raise PlacedError("projection", "cannot be used where `on` is labels, one number a sample; remove it")
        return self


class WindowDistances:
    """The reference is the current window at the trigger of the newest model: the newest data that it was trained on. A trigger that trains
    nothing leaves it as it is; as long as the run has no model, it is that of the last trigger. Where windows are of whole seasons, and that trigger
    came before the stream had enough of them, the reference is the first ones. What is compared are the embeddings by the
    newest model, its predictions, or, without a model, the samples themselves or their labels.

    Evidence: for each metric its distance under its name, `name.p_value`, `name.seconds`; of the windows `reference_samples` and
    `current_samples` that were compared, and `embedded_samples`, those that the model was given for this check. A metric
    that needs more samples than a window has (mostly two) has no distance there.
    """

    def __init__(self, options: ComparedWindows, metrics: Mapping[str, Mapping[str, Any]], seed: int | None) -> None:
        """Args: metrics: sections of drift metrics by name. seed: of what is drawn."""
        self._options = options
        self._metrics = metrics
        self._seed = seed or 0
        self._index = TimeIndex(options.windowing_strategy.horizon)
        self._reference: StreamWindow | None = None
        self._labelled = False
        """Whether windows are of the labels in the order in which they came: labels are compared, and some come late."""
        self._waits_for_reference = False
        """Whether the newest trigger came before the stream was as long as its reference."""
        self._last = TriggerPoint()

    def observe(self, samples: SampleBatch) -> None:
        """Take the next samples of the stream: those whose labels come, where these are compared."""
        if self._options.on is ComparedData.LABELS:
            self._labelled |= isinstance(samples, LateBatch)
            samples = samples.labelled
        self._index.observe(samples)

    def triggered(self) -> None:
        """Begin the current window again, unless it may overlap."""
        self._last = TriggerPoint(self._index.position, self._index.newest)

    def renew_reference(self) -> None:
        """Make the newest data the reference: at a trigger that has made a model, and at each as long as there is none."""
        self._reference = self._options.windowing_strategy.reference_at(self._index)
        self._waits_for_reference = self._reference is None

    def advance(self) -> None:
        """Take the first whole seasons for the reference, once they are there. Called at the end of each interval."""
        if self._waits_for_reference and (found := self._options.windowing_strategy.first_reference(self._index)) is not None:
            self._reference, self._waits_for_reference = found, False

    def measure(self, source: EvidenceSource, model_id: int | None) -> dict[str, float]:
        """The distances, once there are windows to compare and, where one is needed, a model; else empty. Changes nothing."""
        options = self._options
        windows = options.windowing_strategy.compared(self._index, self._reference, self._last)
        if windows is None or (options.on.needs_model and model_id is None):
            return {}
        measured = source.drift(
            DriftQuestion(
                reference=replace(windows.reference, labelled=self._labelled),
                current=replace(windows.current, labelled=self._labelled),
                metrics=self._metrics,
                data=options.on,
                model_id=model_id if options.on.needs_model else None,
                projection=options.projection,
                sample_size=options.sample_size,
                seed=self._seed,
            )
        )
        evidence = {
            "reference_samples": float(measured.num_reference),
            "current_samples": float(measured.num_current),
            "embedded_samples": float(measured.num_embedded),
        }
        for name, found in measured.distances.items():
            evidence |= {name: found.distance, f"{name}.seconds": found.seconds}
            if found.p_value is not None:
                evidence[f"{name}.p_value"] = found.p_value
        return evidence

    def lacking(self) -> str:
        """The windows that the stream was too short for, in a clause; empty: none."""
        short = self._options.windowing_strategy.unfilled(self._index)
        what = f"the {self._index.position:,} samples of the stream are fewer than its windows are meant to hold ({', '.join(short)})"
        return what if short else ""

    def state(self) -> dict[str, Any]:
        """What survives a restart, as JSON: the reference, and the index of times."""
        window = self._reference
        reference = None if window is None else [window.start, window.stop, window.times.start, window.times.end]
        last = {"triggered": self._last.position, "triggered_at": self._last.newest}
        known = {"labelled": self._labelled, "waits_for_reference": self._waits_for_reference}
        return {"index": self._index.state(), "reference": reference, **last, **known}

    def load_state(self, state: Mapping[str, Any], last_trigger: int) -> None:
        """Go on from `state()`. Args: last_trigger: its position, for states of releases that did not keep it."""
        self._index.load_state(state["index"])
        self._last = TriggerPoint(state.get("triggered", last_trigger), state.get("triggered_at"))
        self._labelled, self._waits_for_reference = state.get("labelled", False), state.get("waits_for_reference", False)
        window = state["reference"]
        self._reference = None if window is None else StreamWindow(window[0], window[1], Interval(window[2], window[3]))
