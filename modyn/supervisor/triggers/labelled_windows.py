"""Which samples of a stream are evaluated at a check: those whose labels have come since the last one, each once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Interval, SampleBatch, StreamWindow
from modyn.supervisor.triggers.windows import TimeIndex


class LabelledWindows:
    """The samples whose labels have come in since the last check, as windows of the stream; the same for any batching.

    The label of a sample counts once it is `delay` seconds old: once the newest timestamp of the stream so far exceeds that of the sample
    by so much. A late sample may be so old when it arrives. Samples that the model was trained on are left out: those before the trigger
    that made it.
    """

    def __init__(self, delay: int = 0) -> None:
        """Args: delay: seconds of stream time."""
        self._delay = delay
        self._index = TimeIndex(delay)
        self._checked = 0
        """Samples before the last check."""
        self._unlabelled = StreamWindow(0, 0)
        """Those of them without a label at the last check."""
        self._trained = 0
        """Samples before the trigger that made the newest model."""
        self._has_measured: bool | None = None
        """Whether any sample was evaluated; None: there was no check yet that could have been."""

    def observe(self, samples: SampleBatch) -> None:
        """Take the next samples of the stream."""
        self._index.observe(samples)

    def advance(self) -> None:
        """Take the samples so far as checked."""
        self._checked = self._index.position
        self._unlabelled = self._without_label()

    def trained(self, position: int) -> None:
        """Go on with a model that was made at a trigger after so many samples."""
        self._trained = position

    def new(self) -> list[StreamWindow]:
        """The samples since the last check, with labels or without."""
        return _nonempty(StreamWindow(max(self._checked, self._trained), self._index.position))

    def labelled(self) -> list[StreamWindow]:
        """The samples whose labels have come since the last check: first those that had arrived before it, then those that arrived since."""
        if not self._delay:
            return self.new()
        end = self._without_label().times.start
        before = self._unlabelled
        came_later = StreamWindow(max(before.start, self._trained), before.stop, Interval(before.times.start, end))
        new = StreamWindow(max(self._checked, self._trained), self._index.position, Interval(MIN_TIMESTAMP, end))
        return _nonempty(came_later, new)

    def count(self, num_samples: float) -> None:
        """Take note of how many samples a check has evaluated, with a model."""
        self._has_measured = bool(self._has_measured) or num_samples > 0

    def lacking(self) -> str:
        """That labels came too late for the stream, in a clause for its end; empty: they did not."""
        if not self._delay or self._has_measured is not False:
            return ""
        return f"no label of a sample behind a trigger was so old as label_delay ({self._delay} s), so nothing was measured"

    @property
    def labelled_before(self) -> int:
        """The labels of samples with smaller timestamps have come."""
        return self._without_label().times.start

    def _without_label(self) -> StreamWindow:
        """The samples so far whose labels have not come."""
        if not self._delay:
            return StreamWindow(self._index.position, self._index.position, Interval(MAX_TIMESTAMP, MAX_TIMESTAMP))
        return self._index.newest_for(self._delay)

    def state(self) -> dict[str, Any]:
        """What survives a restart, as JSON."""
        window = self._unlabelled
        return {
            "index": self._index.state(),
            "checked": self._checked,
            "unlabelled": [window.start, window.stop, window.times.start, window.times.end],
            "trained": self._trained,
            "has_measured": self._has_measured,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self._index.load_state(state["index"])
        self._checked, self._trained = state["checked"], state["trained"]
        self._has_measured = state["has_measured"]
        start, stop, first, end = state["unlabelled"]
        self._unlabelled = StreamWindow(start, stop, Interval(first, end))


def _nonempty(*windows: StreamWindow) -> list[StreamWindow]:
    return [window for window in windows if window.start < window.stop and window.times.start < window.times.end]
