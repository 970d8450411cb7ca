"""A trigger policy that fires when the distribution of labels changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from modyn.config.base import Section
from modyn.records import SampleBatch
from modyn.supervisor.evidence import Evidence
from modyn.supervisor.triggers.base import Check, CheckContext, CheckRecord, Trigger, TriggerContext, read_state


class LabelShiftConfig(Section):
    """Options of LabelShiftTrigger. The policy fires when the label distributions of the newest window and of the last window that fired differ."""

    window: int = Field(100, ge=1, description="samples in a window")
    distance: float = Field(0.25, ge=0, le=1, description="total variation distance above which it fires")


class LabelShiftTrigger(Trigger):
    """Fires at the end of each window of `window` samples if the distance of its label distribution from the reference exceeds `distance`.

    The distance is total variation: half the sum of the absolute differences of the shares. The reference is the last window that fired. The first
    window of the stream always fires, because no model exists yet.

    >>> import numpy as np
    >>> window = SampleBatch(np.arange(2), np.arange(2), np.array([0, 0]))
    >>> trigger = LabelShiftTrigger(LabelShiftConfig(window=2, distance=0.5))
    >>> trigger.next_check(window, 0)
    2
    >>> trigger.observe(window)
    >>> check = trigger.check(CheckContext(position=2, num_pending=2))
    >>> check.fires, check.evidence[0].value, check.evidence[0].threshold
    (True, 1.0, 0.5)
    """

    Config: ClassVar[type[Section]] = LabelShiftConfig

    def __init__(self, config: LabelShiftConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._window, self._threshold = config.window, config.distance
        self._reference: dict[str, int] = {}
        self._current: Counter[str] = Counter()

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        at = max(start, 0) + self._window - self._current.total()
        return at if at <= len(batch) else None

    def observe(self, samples: SampleBatch) -> None:
        self._current.update(str(label) for label in samples.labels.tolist())

    def check(self, context: CheckContext) -> Check:
        distance = self._distance_to_reference()
        fires = not self._reference or distance > self._threshold
        return Check(fires, [Evidence("distance", distance, self._threshold, unusual=fires)])

    def checked(self, record: CheckRecord) -> None:
        if record.fires:
            self._reference = dict(self._current)
        self._current = Counter()

    def state(self) -> dict[str, Any]:
        return {"version": 1, "reference": self._reference, "current": dict(self._current)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        values = read_state("LabelShiftTrigger", state, 1, {"reference": (dict,), "current": (dict,)})
        self._reference, self._current = dict(values["reference"]), Counter(values["current"])

    def _distance_to_reference(self) -> float:
        labels = self._current.keys() | self._reference.keys()
        difference = sum(abs(self._current[label] - self._reference.get(label, 0)) for label in labels)
        return difference / (2 * self._window) if self._reference else 1.0
