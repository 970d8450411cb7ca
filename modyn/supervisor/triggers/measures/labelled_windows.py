"""Find the samples of a stream that a check evaluates: the samples whose labels have arrived since the last check. No sample is evaluated twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.records import MAX_TIMESTAMP, SampleBatch, StreamWindow
from modyn.supervisor.triggers.measures.label_clock import LateBatch


class LabelledWindows:
    """Windows of the samples whose labels have arrived since the last check. The windows are the same for every division of the stream into batches.

    `SampleBatch.labelled` contains the samples with new labels. Samples from before the trigger of the newest model are left out, because the model
    was trained on these samples.
    """

    def __init__(self, delay: int = 0) -> None:
        """Args: delay: seconds of stream time by which labels arrive late; 0 if labels arrive with their samples."""
        self._delay = delay
        self._newest: int | None = None
        self._seen, self._labelled = 0, 0
        """Number of samples so far, and number of labels so far."""
        self._checked = self._trained = (0, 0)
        """Number of samples and number of labels: for `_checked` before the last check, for `_trained` before the trigger of the newest model."""
        self._is_late = False
        """Whether labels may arrive in another order than samples."""
        self._has_measured: bool | None = None
        """Whether any sample was evaluated; None before the first check that could evaluate a sample."""

    def observe(self, samples: SampleBatch) -> None:
        """Count the next samples and labels of the stream."""
        self._seen += len(samples)
        self._labelled += len(samples.labelled)
        self._is_late |= isinstance(samples, LateBatch)
        if len(samples):
            newest = int(samples.timestamps.max())
            self._newest = newest if self._newest is None else max(self._newest, newest)

    def advance(self) -> None:
        """Mark the samples so far as checked."""
        self._checked = self._seen, self._labelled

    def trained(self) -> None:
        """Continue with the model of a trigger at this position."""
        self._trained = self._seen, self._labelled

    def new(self) -> list[StreamWindow]:
        """Return the samples since the last check, with labels or without."""
        return _nonempty(StreamWindow(max(self._checked[0], self._trained[0]), self._seen))

    def labelled(self) -> list[StreamWindow]:
        """Return the samples whose labels have arrived since the last check."""
        if not self._is_late:
            return self.new()
        return _nonempty(StreamWindow(max(self._checked[1], self._trained[1]), self._labelled, labelled=True))

    def count(self, num_samples: float) -> None:
        """Record the number of samples that a check has evaluated."""
        self._has_measured = bool(self._has_measured) or num_samples > 0

    def end_warning(self) -> str:
        """Return a clause for the end of the stream if labels arrived too late; empty otherwise."""
        if not self._is_late or self._has_measured or (self._has_measured is None and self._labelled):
            return ""
        return f"no label of a sample that the newest model was not trained on came before a check{self.delay}, so nothing was measured"

    @property
    def is_late(self) -> bool:
        """Whether labels have arrived late so far."""
        return self._is_late

    @property
    def delay(self) -> str:
        """The option that delays labels, for messages, or an empty text."""
        return f" (label_delay: {self._delay} s)" if self._delay else ""

    @property
    def labelled_before(self) -> int:
        """Timestamp before which the labels of all samples have arrived, if stream time decides when labels arrive."""
        return MAX_TIMESTAMP if not self._delay or self._newest is None else self._newest - self._delay + 1

    def state(self) -> dict[str, Any]:
        """Return the state that survives a restart, as JSON."""
        return {
            "newest": self._newest,
            "seen": [self._seen, self._labelled],
            "checked": self._checked,
            "trained": self._trained,
            "is_late": self._is_late,
            "has_measured": self._has_measured,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""
        self._has_measured = state["has_measured"]
        self._newest, (self._seen, self._labelled), self._is_late = state["newest"], state["seen"], state["is_late"]
        self._checked, self._trained = tuple(state["checked"]), tuple(state["trained"])


def _nonempty(*windows: StreamWindow) -> list[StreamWindow]:
    return [window for window in windows if window.start < window.stop]
