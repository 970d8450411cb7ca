"""Which samples of a stream are evaluated at a check: those whose labels have come since the last one, each once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.records import MAX_TIMESTAMP, SampleBatch, StreamWindow
from modyn.supervisor.triggers.label_clock import LateBatch


class LabelledWindows:
    """The samples whose labels have come in since the last check, as windows of the stream; the same for any batching.

    Labels come with the samples that the stream brings (`SampleBatch.labelled`). Those that had come before the trigger that made the newest model
    are left out: it was trained on them.
    """

    def __init__(self, delay: int = 0) -> None:
        """Args: delay: seconds of stream time that labels come late; 0: as the stream brings them."""
        self._delay = delay
        self._newest: int | None = None
        self._seen, self._labelled = 0, 0
        """Samples so far, and labels."""
        self._checked = self._trained = (0, 0)
        """Samples and labels before the last check, and before the trigger that made the newest model."""
        self._is_late = False
        """Whether labels come in another order than samples."""
        self._has_measured: bool | None = None
        """Whether any sample was evaluated; None: there was no check yet that could have been."""

    def observe(self, samples: SampleBatch) -> None:
        """Take the next samples of the stream."""
        self._seen += len(samples)
        self._labelled += len(samples.labelled)
        self._is_late |= isinstance(samples, LateBatch)
        if len(samples):
            newest = int(samples.timestamps.max())
            self._newest = newest if self._newest is None else max(self._newest, newest)

    def advance(self) -> None:
        """Take the samples so far as checked."""
        self._checked = self._seen, self._labelled

    def trained(self) -> None:
        """Go on with a model that was made at a trigger here."""
        self._trained = self._seen, self._labelled

    def new(self) -> list[StreamWindow]:
        """The samples since the last check, with labels or without."""
        return _nonempty(StreamWindow(max(self._checked[0], self._trained[0]), self._seen))

    def labelled(self) -> list[StreamWindow]:
        """The samples whose labels have come since the last check."""
        if not self._is_late:
            return self.new()
        return _nonempty(StreamWindow(max(self._checked[1], self._trained[1]), self._labelled, labelled=True))

    def count(self, num_samples: float) -> None:
        """Take note of how many samples a check has evaluated, with a model."""
        self._has_measured = bool(self._has_measured) or num_samples > 0

    def lacking(self) -> str:
        """That labels came too late for the stream, in a clause for its end; empty: they did not."""
        if not self._is_late or self._has_measured or (self._has_measured is None and self._labelled):
            return ""
        return f"no label of a sample that the newest model was not trained on came before a check{self.delay}, so nothing was measured"

    @property
    def is_late(self) -> bool:
        """Whether labels have come late so far."""
        return self._is_late

    @property
    def delay(self) -> str:
        """The option that delays labels, for messages; empty: none does."""
        return f" (label_delay: {self._delay} s)" if self._delay else ""

    @property
    def labelled_before(self) -> int:
        """The labels of samples with smaller timestamps have come, as far as they come by the clock."""
        return MAX_TIMESTAMP if not self._delay or self._newest is None else self._newest - self._delay + 1

    def state(self) -> dict[str, Any]:
        """What survives a restart, as JSON."""
        return {
            "newest": self._newest,
            "seen": [self._seen, self._labelled],
            "checked": self._checked,
            "trained": self._trained,
            "is_late": self._is_late,
            "has_measured": self._has_measured,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`, or from that of a release in which labels came with their samples."""
        self._has_measured = state["has_measured"]
        if "index" in state:
            self._newest, self._seen = state["index"]["newest"], state["index"]["position"]
            self._labelled, self._is_late = self._seen, False
            self._checked, self._trained = (state["checked"],) * 2, (state["trained"],) * 2
            return
        self._newest, (self._seen, self._labelled), self._is_late = state["newest"], state["seen"], state["is_late"]
        self._checked, self._trained = tuple(state["checked"]), tuple(state["trained"])


def _nonempty(*windows: StreamWindow) -> list[StreamWindow]:
    return [window for window in windows if window.start < window.stop]
