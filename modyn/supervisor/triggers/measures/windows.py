"""Reference windows and current windows: ranges of positions of the run's stream, found by amount or by time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from modyn.config.base import PlacedError, Section
from modyn.config.durations import Duration, format_duration
from modyn.evaluator.client import WindowPair
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Interval, SampleBatch, StreamWindow

_BUCKETS: Final = 256
"""Number of buckets of time in the horizon of a `TimeIndex`. The start of a window is found with the precision of one bucket."""


class TriggerPoint(NamedTuple):
    """Position and stream time of the newest trigger."""

    position: int = 0
    """Number of samples before the trigger; 0 if there was no trigger."""
    newest: int | None = None
    """The largest timestamp before the trigger, or None if there was no sample."""


class TimeIndex:
    """A sparse index from time to positions of a stream. The index finds the start of a window of time, for any division into batches.

    Time is cut into buckets of a fixed width. An entry (bucket, position) means that all samples before the position are older than the bucket.
    Entries that no later window can need are dropped, so that at most a few hundred entries remain.
    """

    def __init__(self, horizon: int) -> None:
        """Args: horizon: largest distance in seconds from now to the start of a window, or 0 if there are no windows of time."""
        self._horizon = horizon
        self._width = max(1, horizon // _BUCKETS)
        self.position = 0
        """Samples so far."""
        self.newest: int | None = None
        """Largest timestamp so far; None before the first sample."""
        self.first: int | None = None
        """Timestamp of the first sample, or None."""
        self._entries: list[tuple[int, int]] = []

    def observe(self, samples: SampleBatch) -> None:
        """Add the next samples of the stream to the index."""
        if len(samples) == 0:
            return
        newest = int(samples.timestamps.max())
        self.first = int(samples.timestamps[0]) if self.first is None else self.first
        if self._horizon:
            self._enter(samples)
        self.newest = newest if self.newest is None else max(self.newest, newest)
        self.position += len(samples)
        # The last entry before the horizon stays, because the longest window begins in the bucket of this entry.
        while len(self._entries) > 1 and self._entries[1][0] * self._width <= self.newest - self._horizon:
            del self._entries[0]

    def _enter(self, samples: SampleBatch) -> None:
        newest = np.maximum.accumulate(samples.timestamps)
        reached = (newest if self.newest is None else np.maximum(newest, self.newest)) // self._width
        last = self._entries[-1][0] if self._entries else None
        # Buckets are compared, not subtracted, because their difference may exceed int64.
        starts = np.flatnonzero(reached > np.append(reached[0] if last is None else last, reached[:-1]))
        if last is None:
            self._entries.append((int(reached[0]), self.position))
        self._entries += [(int(reached[at]), self.position + int(at)) for at in starts]

    def newest_for(self, seconds: int) -> StreamWindow:
        """Return the samples so far that are newer than the newest timestamp minus `seconds`, which is at most the horizon."""
        if self.newest is None:
            return StreamWindow(0, 0)
        return self.between(self.newest - seconds + 1, MAX_TIMESTAMP)

    def between(self, start: int, end: int) -> StreamWindow:
        """Return the samples so far with timestamps in [start, end), within the horizon, without samples that arrived after a sample newer than
        `end`.
        """
        start = max(start, MIN_TIMESTAMP)
        first = next((position for bucket, position in reversed(self._entries) if bucket * self._width <= start), 0)
        stop = next((position for bucket, position in self._entries if bucket * self._width >= end), self.position)
        return StreamWindow(first, stop, Interval(start, end))

    def spans(self, seconds: int) -> bool:
        """Return whether the stream spans this many seconds since its first sample."""
        return self.newest is not None and self.first is not None and self.newest - self.first + 1 >= seconds

    def reaches_before_start(self, seconds: int) -> bool:
        """Return whether a window of this length would begin before the first sample, as far as the index knows."""
        if self.newest is None or not self._entries:
            return True
        bucket, position = self._entries[0]
        return position == 0 and self.newest - seconds + 1 < bucket * self._width

    def state(self) -> dict[str, Any]:
        """Return the state that survives a restart, as JSON."""
        return {"position": self.position, "newest": self.newest, "first": self.first, "entries": self._entries}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""
        self.position, self.newest = state["position"], state["newest"]
        self.first = state["first"]
        self._entries = [(bucket, position) for bucket, position in state["entries"]]


class _WindowingStrategy(Section):
    allow_overlap: bool = Field(
        False,
        description="the current window may contain samples from before the last trigger; if false, it begins at that trigger",
    )


class AmountWindowingStrategy(_WindowingStrategy):
    """A fixed number of the newest samples."""

    id: Literal["AmountWindowingStrategy"] = Field("AmountWindowingStrategy", description="which strategy")
    amount_ref: int = Field(
        1000, ge=2, description="number of samples of the reference, the newest ones at the trigger of the newest model"
    )
    amount_cur: int = Field(1000, ge=2, description="number of samples of the current window, the newest ones now")

    @property
    def horizon(self) -> int:
        """Largest distance in seconds from now to the start of a window, or 0 if the windows are not windows of time."""
        return 0

    def reference_at(self, index: TimeIndex) -> StreamWindow | None:
        """Return the reference window of a model whose training is triggered now."""
        return StreamWindow(max(0, index.position - self.amount_ref), index.position)

    def first_reference(self, index: TimeIndex) -> StreamWindow | None:
        """Return None, because each trigger has a reference. See TimeWindowingStrategy."""
        return None

    def compared(self, index: TimeIndex, reference: StreamWindow | None, last: TriggerPoint) -> WindowPair | None:
        """Return the reference and the current window; None without a reference. Args: reference: of the newest model. last: newest trigger."""
        oldest = 0 if self.allow_overlap else last.position
        current = StreamWindow(max(oldest, index.position - self.amount_cur), index.position)
        return None if reference is None else WindowPair(reference, current)

    def unfilled(self, index: TimeIndex) -> list[str]:
        """Return options that need more samples than the stream has, with their values."""
        wanted = {"amount_ref": self.amount_ref, "amount_cur": self.amount_cur}
        return [f"{name}={amount}" for name, amount in wanted.items() if amount > index.position]


class TimeWindowingStrategy(_WindowingStrategy):
    """The newest samples by stream time: all samples that are newer than the newest timestamp minus the limit. Late samples are left out.

    With a `season`, both windows cover the same phases of the season. The windows are compared only if both have their whole length: no window may
    begin before the first sample, and without `allow_overlap`, the current window may not begin before the last trigger.
    """

    id: Literal["TimeWindowingStrategy"] = Field("TimeWindowingStrategy", description="which strategy")
    limit_ref: Duration | None = Field(
        None,
        ge=1,
        description="length of the reference, which ended at the trigger of the newest model; required, unless `reference` is same_phase",
        examples=["4w"],
    )
    limit_cur: Duration = Field(ge=1, description="length of the current window, which ends now", examples=["1w"])
    season: Duration | None = Field(
        None,
        ge=1,
        description="length of a cycle in the data, such as a day or a week: windows are whole multiples of it, or are compared with the same "
        "phase of the previous cycle; none: the data have no cycle",
        examples=["1w"],
    )
    reference: Literal["last_trigger", "same_phase"] = Field(
        "last_trigger",
        description="samples of the reference: `last_trigger`, those before the trigger of the newest model; `same_phase`, the current window "
        "one season ago",
    )

    @model_validator(mode="after")
    def _cover_the_same_phases(self) -> Self:
        if self.reference == "same_phase":
            if self.season is None:
                raise PlacedError("season", "is required where `reference` is same_phase")
            if self.limit_ref is not None:
                raise PlacedError(
                    "limit_ref", "has no meaning where `reference` is same_phase, which is as long as limit_cur; remove it"
                )
            if self.limit_cur > self.season:
                most = format_duration(self.season)
                raise PlacedError(
                    "limit_cur", f"is longer than the season, so that the window overlaps its reference; write at most {most}"
                )
        elif self.limit_ref is None:
            raise PlacedError("limit_ref", "is required")
        elif self.season is not None:
            for name, limit in (("limit_ref", self.limit_ref), ("limit_cur", self.limit_cur)):
                if limit % self.season:
                    whole, written = format_duration(-(-limit // self.season) * self.season), format_duration(limit)
                    message = f"{written} is not a multiple of the season, {format_duration(self.season)}, so that the windows cover other phases"
                    raise PlacedError(name, f"{message}; write {whole}")
        return self

    @property
    def horizon(self) -> int:
        """Largest distance in seconds from now to the start of a window."""
        if self.limit_ref is None:
            return (self.season or 0) + self.limit_cur
        return max(self.limit_ref, self.limit_cur)

    def reference_at(self, index: TimeIndex) -> StreamWindow | None:
        """Return the reference window of a model whose training is triggered now; None if the window can only be found later."""
        if self.limit_ref is None or (self.season is not None and not index.spans(self.limit_ref)):
            return None
        return index.newest_for(self.limit_ref)

    def first_reference(self, index: TimeIndex) -> StreamWindow | None:
        """Return the first whole seasons, as the reference of a model whose trigger was too early for a reference; None while the seasons are not
        complete.
        """
        if self.limit_ref is None or index.first is None or not index.spans(self.limit_ref):
            return None
        return StreamWindow(0, index.position, Interval(index.first, index.first + self.limit_ref))

    def compared(self, index: TimeIndex, reference: StreamWindow | None, last: TriggerPoint) -> WindowPair | None:
        """Return the reference and the current window; None if a window is missing or, with a season, does not have its whole length. Args:
        reference: reference of the newest model. last: the newest trigger.
        """
        current = index.newest_for(self.limit_cur)
        if self.season is None:
            oldest = 0 if self.allow_overlap else last.position
            current = StreamWindow(max(oldest, current.start), current.stop, current.times)
        elif not self._is_whole(index, last):
            return None
        if self.limit_ref is None:
            assert self.season is not None
            assert index.newest is not None
            end = index.newest - self.season + 1
            reference = index.between(end - self.limit_cur, end)
        return None if reference is None else WindowPair(reference, current)

    def _is_whole(self, index: TimeIndex, last: TriggerPoint) -> bool:
        """Whether the current window, and a reference one season earlier, are within the stream, and the current window is after the last trigger."""
        back = self.limit_cur + (self.season or 0 if self.limit_ref is None else 0)
        if self.allow_overlap or last.newest is None:
            return index.spans(back)
        return index.spans(back) and index.newest is not None and index.newest - last.newest >= self.limit_cur

    def unfilled(self, index: TimeIndex) -> list[str]:
        """Return options that need more time than the stream spans, with their values."""
        if self.limit_ref is None:
            return [] if index.spans(self.horizon) else [f"season + limit_cur={self.horizon}s"]
        wanted = {"limit_ref": self.limit_ref, "limit_cur": self.limit_cur}
        return [f"{name}={seconds}s" for name, seconds in wanted.items() if index.reaches_before_start(seconds)]


WindowingStrategy = Annotated[AmountWindowingStrategy | TimeWindowingStrategy, Field(discriminator="id")]
"""Strategies for finding the windows of reference and current data."""
