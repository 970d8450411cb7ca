"""Distances between a reference window of a stream and its newest data, for policies that detect drift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from pydantic import Field, model_validator

from modyn.config.base import PlacedError, Section
from modyn.config.trigger_parts import ComparedData
from modyn.evaluator.client import DriftQuestion
from modyn.records import Interval, SampleBatch, StreamWindow
from modyn.supervisor.evidence import Evidence
from modyn.supervisor.triggers.measures.label_clock import LateBatch
from modyn.supervisor.triggers.measures.questions import EvidenceSource
from modyn.supervisor.triggers.measures.windows import AmountWindowingStrategy, TimeIndex, TriggerPoint, WindowingStrategy


class ComparedWindows(Section):
    """The compared windows, and the compared values of their samples."""

    on: ComparedData = Field(ComparedData.EMBEDDINGS, description="the compared values of each sample")
    windowing_strategy: WindowingStrategy = Field(
        default_factory=AmountWindowingStrategy, description="how reference and current samples are chosen"
    )
    sample_size: int | None = Field(
        5000,
        ge=2,
        description="number of samples of a window that are compared, drawn by `training.seed` and their keys; none: all",
    )
    projection: dict[str, Any] | None = Field(
        None,
        description="projection of the compared values to fewer dimensions: its `id` and options",
        examples=[{"id": "RandomProjection", "num_components": 32}],
    )

    @model_validator(mode="after")
    def _can_be_projected(self) -> Self:
        if self.on is ComparedData.LABELS and self.projection is not None:
            raise PlacedError("projection", "cannot be used where `on` is labels, one number a sample; remove it")
        return self


class WindowDistances:
    """Distances between the reference and the newest data of the stream. The reference is the newest training data of the newest model.

    The reference is the window that was current at the trigger of the newest model. A trigger that makes no model does not change the reference.
    While the run has no model, the reference is the window at the last trigger. If windows cover whole seasons, but the stream had too few whole
    seasons at this trigger, the reference is the first whole seasons of the stream. The class compares embeddings or predictions of the newest model,
    or the samples themselves or their labels, which need no model.

    Evidence: for each metric its distance, p-value and seconds; the counts `reference_samples` and `current_samples` of the compared windows, and
    `embedded_samples`, the samples that passed the model for this check. A metric has no distance if a window has too few samples for it (most need
    two).
    """

    def __init__(self, options: ComparedWindows, metrics: Mapping[str, Mapping[str, Any]], seed: int | None) -> None:
        """Args: metrics: sections of drift metrics by name. seed: seed of random draws."""
        self._options = options
        self._metrics = metrics
        self._seed = seed or 0
        self._index = TimeIndex(options.windowing_strategy.horizon)
        self._reference: StreamWindow | None = None
        self._labelled = False
        """Whether windows count labels in order of arrival, because labels are compared and some labels arrive late."""
        self._waits_for_reference = False
        """Whether the stream was too short for a reference at the newest trigger."""
        self._last = TriggerPoint()
        self._asked: tuple[int | None, DriftQuestion | None] | None = None
        """The model and the question of the newest check; None after the windows have moved."""

    def observe(self, samples: SampleBatch) -> None:
        """Receive the next samples of the stream. If labels are compared, a sample counts when its label arrives."""
        self._asked = None
        if self._options.on is ComparedData.LABELS:
            self._labelled |= isinstance(samples, LateBatch)
            samples = samples.labelled
        self._index.observe(samples)

    def triggered(self) -> None:
        """Let the next current window begin at this position, unless `allow_overlap` is set."""
        self._last, self._asked = TriggerPoint(self._index.position, self._index.newest), None

    def renew_reference(self) -> None:
        """Make the newest data the reference: at a trigger that has made a model, and at each trigger before the first model."""
        self._reference, self._asked = self._options.windowing_strategy.reference_at(self._index), None
        self._waits_for_reference = self._reference is None

    def advance(self) -> None:
        """Use the first whole seasons as the reference as soon as they are complete. The policy calls this at the end of each interval."""
        if self._waits_for_reference and (found := self._options.windowing_strategy.first_reference(self._index)) is not None:
            self._reference, self._waits_for_reference, self._asked = found, False, None

    def question(self, model_id: int | None) -> DriftQuestion | None:
        """Return the question of a check at this position; None if there are no windows to compare, or a needed model does not exist."""
        if self._asked is None or self._asked[0] != model_id:
            self._asked = model_id, self._question(model_id)
        return self._asked[1]

    def _question(self, model_id: int | None) -> DriftQuestion | None:
        options = self._options
        windows = options.windowing_strategy.compared(self._index, self._reference, self._last)
        if windows is None or (options.on.needs_model and model_id is None):
            return None
        reference, current = windows.reference, windows.current
        if self._labelled:
            reference, current = replace(reference, labelled=True), replace(current, labelled=True)
        return DriftQuestion(
            reference,
            current,
            self._metrics,
            options.on,
            model_id if options.on.needs_model else None,
            options.projection,
            options.sample_size,
            self._seed,
        )

    def measure(self, source: EvidenceSource, model_id: int | None) -> list[Evidence]:
        """Return the distances; empty if nothing can be compared yet. Changes nothing."""
        question = self.question(model_id)
        if question is None:
            return []
        measured = source.ask(question)
        return [
            Evidence.count("reference_samples", measured.num_reference),
            Evidence.count("current_samples", measured.num_current),
            Evidence.count("embedded_samples", measured.num_embedded),
            *(
                Evidence(name, found.distance, p_value=found.p_value, seconds=found.seconds)
                for name, found in measured.distances.items()
            ),
        ]

    def end_warning(self) -> str:
        """Return a clause with the windows for which the stream was too short, or an empty text."""
        short = self._options.windowing_strategy.unfilled(self._index)
        what = f"the {self._index.position:,} samples of the stream are fewer than its windows are meant to hold ({', '.join(short)})"
        return what if short else ""

    def state(self) -> dict[str, Any]:
        """Return the state that survives a restart, as JSON: the reference, and the index of times."""
        window = self._reference
        reference = None if window is None else [window.start, window.stop, window.times.start, window.times.end]
        last = {"triggered": self._last.position, "triggered_at": self._last.newest}
        known = {"labelled": self._labelled, "waits_for_reference": self._waits_for_reference}
        return {"index": self._index.state(), "reference": reference, **last, **known}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""
        self._asked = None
        self._index.load_state(state["index"])
        self._last = TriggerPoint(state["triggered"], state["triggered_at"])
        self._labelled, self._waits_for_reference = state["labelled"], state["waits_for_reference"]
        window = state["reference"]
        self._reference = None if window is None else StreamWindow(window[0], window[1], Interval(window[2], window[3]))
