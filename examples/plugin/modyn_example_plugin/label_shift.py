"""Fires when the mix of labels has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from modyn.config.base import Section
from modyn.records import SampleBatch
from modyn.supervisor.triggers.base import Trigger, TriggerContext, read_state


class LabelShiftConfig(Section):
    """Fires when the labels of the newest window are distributed otherwise than those of the window that was last trained on."""

    window: int = Field(100, ge=1, description="samples in a window")
    distance: float = Field(0.25, ge=0, le=1, description="total variation distance above which it fires")


class LabelShiftTrigger(Trigger):
    """Fires at the end of each window of `window` samples whose label distribution is further than `distance` from the reference.

    The distance is total variation: half the sum of the absolute differences of the shares. The reference is the last window that fired; the
    first window of the stream always fires, for there is no model before it.

    >>> import numpy as np
    >>> labels = np.array([0, 0, 0, 0, 1, 1])
    >>> trigger = LabelShiftTrigger(LabelShiftConfig(window=2, distance=0.5))
    >>> list(trigger.cuts(SampleBatch(np.arange(6), np.arange(6), labels)))
    [2, 6]
    """

    Config: ClassVar[type[Section]] = LabelShiftConfig

    def __init__(self, config: LabelShiftConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._window, self._distance = config.window, config.distance
        self._reference: dict[str, int] = {}
        self._current: Counter[str] = Counter()

    def cuts(self, batch: SampleBatch) -> Iterator[int]:
        start = 0
        while start < len(batch):
            stop = min(start + self._window - self._current.total(), len(batch))
            self._current.update(str(label) for label in batch.labels[start:stop].tolist())
            start = stop
            if self._current.total() == self._window:
                window, self._current = dict(self._current), Counter()
                if not self._reference or self._far_from_reference(window):
                    self._reference = window
                    yield stop

    def state(self) -> dict[str, Any]:
        return {"version": 1, "reference": self._reference, "current": dict(self._current)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        values = read_state("LabelShiftTrigger", state, 1, {"reference": (dict,), "current": (dict,)})
        self._reference, self._current = dict(values["reference"]), Counter(values["current"])

    def _far_from_reference(self, window: Mapping[str, int]) -> bool:
        labels = window.keys() | self._reference.keys()
        difference = sum(abs(window.get(label, 0) - self._reference.get(label, 0)) for label in labels)
        return difference / (2 * self._window) > self._distance
