"""Windows of reference and of current data: ranges of positions of the run's stream, found by amount or by time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field

from modyn.config.base import Section
from modyn.config.durations import Duration
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Interval, SampleBatch, StreamWindow

_BUCKETS: Final = 256
"""Buckets of time that the longest window is divided into: the start of a window is found to within one of them."""


class TimeIndex:
    """A sparse index of a stream: at which positions its newest time went on. Finds where a window of time begins, whatever the batches.

    Time is cut into buckets of a fixed width. An entry (bucket, position) says that all samples before the position are older than the bucket.
    Entries that no later window can need are dropped, so at most some hundred are kept, however long the stream.
    """

    def __init__(self, horizon: int) -> None:
        """Args: horizon: seconds that the longest window reaches back; 0: no window of time is asked for."""
        self._horizon = horizon
        self._width = max(1, horizon // _BUCKETS)
        self.position = 0
        """Samples so far."""
        self.newest: int | None = None
        """Largest timestamp so far; None before the first sample."""
        self._entries: list[tuple[int, int]] = []

    def observe(self, samples: SampleBatch) -> None:
        """Take the next samples of the stream."""
        if len(samples) == 0:
            return
        newest = int(samples.timestamps.max())
        if self._horizon:
            self._enter(samples)
        self.newest = newest if self.newest is None else max(self.newest, newest)
        self.position += len(samples)
        while len(self._entries) > 1 and self._entries[1][0] * self._width <= self.newest - self._horizon:
            del self._entries[0]

    def _enter(self, samples: SampleBatch) -> None:
        newest = np.maximum.accumulate(samples.timestamps)
        reached = (newest if self.newest is None else np.maximum(newest, self.newest)) // self._width
        last = self._entries[-1][0] if self._entries else None
        starts = np.flatnonzero(np.diff(reached, prepend=reached[0] if last is None else last) > 0)
        if last is None:
            self._entries.append((int(reached[0]), self.position))
        self._entries += [(int(reached[at]), self.position + int(at)) for at in starts]

    def newest_for(self, seconds: int) -> StreamWindow:
        """The samples so far that are newer than the newest one less `seconds`, at most the horizon."""
        if self.newest is None:
            return StreamWindow(0, 0)
        oldest = max(self.newest - seconds + 1, MIN_TIMESTAMP)
        start = next((position for bucket, position in reversed(self._entries) if bucket * self._width <= oldest), 0)
        return StreamWindow(start, self.position, Interval(oldest, MAX_TIMESTAMP))

    def reaches_before_start(self, seconds: int) -> bool:
        """Whether a window of so many seconds would reach behind the first sample, as far as that is known."""
        if self.newest is None or not self._entries:
            return True
        bucket, position = self._entries[0]
        return position == 0 and self.newest - seconds + 1 < bucket * self._width

    def state(self) -> dict[str, Any]:
        """What survives a restart, as JSON."""
        return {"position": self.position, "newest": self.newest, "entries": self._entries}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self.position, self.newest = state["position"], state["newest"]
        self._entries = [(bucket, position) for bucket, position in state["entries"]]


class _WindowingStrategy(Section):
    allow_overlap: bool = Field(
        False, description="whether the current window may reach back behind the last trigger; else it begins there anew"
    )


class AmountWindowingStrategy(_WindowingStrategy):
    """The newest samples, so and so many."""

    id: Literal["AmountWindowingStrategy"] = Field("AmountWindowingStrategy", description="which strategy")
    amount_ref: int = Field(
        1000, ge=2, description="samples of the reference: the newest ones at the trigger of the newest model"
    )
    amount_cur: int = Field(1000, ge=2, description="samples of the current window: the newest ones now")

    @property
    def horizon(self) -> int:
        """Seconds that its windows reach back; 0: they are not of time."""
        return 0

    def reference(self, index: TimeIndex) -> StreamWindow:
        """The reference window of a model that is triggered now."""
        return StreamWindow(max(0, index.position - self.amount_ref), index.position)

    def current(self, index: TimeIndex, last_trigger: int) -> StreamWindow:
        """The current window. Args: last_trigger: its position."""
        oldest = 0 if self.allow_overlap else last_trigger
        return StreamWindow(max(oldest, index.position - self.amount_cur), index.position)

    def unfilled(self, index: TimeIndex) -> list[str]:
        """Options that ask for more samples than there are, with their values."""
        wanted = {"amount_ref": self.amount_ref, "amount_cur": self.amount_cur}
        return [f"{name}={amount}" for name, amount in wanted.items() if amount > index.position]


class TimeWindowingStrategy(_WindowingStrategy):
    """The samples of the newest time, in stream time: those newer than the newest one less the limit. Late samples are not among them."""

    id: Literal["TimeWindowingStrategy"] = Field("TimeWindowingStrategy", description="which strategy")
    limit_ref: Duration = Field(
        ge=1, description="length of the reference, which ended at the trigger of the newest model", examples=["4w"]
    )
    limit_cur: Duration = Field(ge=1, description="length of the current window, which ends now", examples=["1w"])

    @property
    def horizon(self) -> int:
        """Seconds that its windows reach back."""
        return max(self.limit_ref, self.limit_cur)

    def reference(self, index: TimeIndex) -> StreamWindow:
        """The reference window of a model that is triggered now."""
        return index.newest_for(self.limit_ref)

    def current(self, index: TimeIndex, last_trigger: int) -> StreamWindow:
        """The current window. Args: last_trigger: its position."""
        window = index.newest_for(self.limit_cur)
        oldest = 0 if self.allow_overlap else last_trigger
        return StreamWindow(max(oldest, window.start), window.stop, window.times)

    def unfilled(self, index: TimeIndex) -> list[str]:
        """Options that ask for more time than there is, with their values."""
        wanted = {"limit_ref": self.limit_ref, "limit_cur": self.limit_cur}
        return [f"{name}={seconds}s" for name, seconds in wanted.items() if index.reaches_before_start(seconds)]


WindowingStrategy = Annotated[AmountWindowingStrategy | TimeWindowingStrategy, Field(discriminator="id")]
"""How the windows of reference and current data are found."""
