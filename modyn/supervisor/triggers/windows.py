"""Windows of reference and of current data: ranges of positions of the run's stream, found by amount or by time."""

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
"""Buckets of time that the longest window is divided into: the start of a window is found to within one of them."""


class TriggerPoint(NamedTuple):
    """Where the newest trigger stands in the stream that windows are of."""

    position: int = 0
    """Samples before it; 0: there was no trigger."""
    newest: int | None = None
    """The largest timestamp before it; None: there was no sample."""


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
        self.first: int | None = None
        """Timestamp of the first sample; None before it."""
        self._entries: list[tuple[int, int]] = []

    def observe(self, samples: SampleBatch) -> None:
        """Take the next samples of the stream."""
        if len(samples) == 0:
            return
        newest = int(samples.timestamps.max())
        self.first = int(samples.timestamps[0]) if self.first is None else self.first
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
        return self.between(self.newest - seconds + 1, MAX_TIMESTAMP)

    def between(self, start: int, end: int) -> StreamWindow:
        """The samples so far with timestamps in [start, end), which lies within the horizon. Those that came after newer ones than `end` are not
        among them."""
        start = max(start, MIN_TIMESTAMP)
        first = next((position for bucket, position in reversed(self._entries) if bucket * self._width <= start), 0)
        stop = next((position for bucket, position in self._entries if bucket * self._width >= end), self.position)
        return StreamWindow(first, stop, Interval(start, end))

    def spans(self, seconds: int) -> bool:
        """Whether the stream has gone on for so long since its first sample."""
        return self.newest is not None and self.first is not None and self.newest - self.first + 1 >= seconds

    def reaches_before_start(self, seconds: int) -> bool:
        """Whether a window of so many seconds would reach behind the first sample, as far as that is known."""
        if self.newest is None or not self._entries:
            return True
        bucket, position = self._entries[0]
        return position == 0 and self.newest - seconds + 1 < bucket * self._width

    def state(self) -> dict[str, Any]:
        """What survives a restart, as JSON."""
        return {"position": self.position, "newest": self.newest, "first": self.first, "entries": self._entries}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self.position, self.newest = state["position"], state["newest"]
        self.first = state.get("first", self.newest)  # earlier releases had no use for it
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

    def reference_at(self, index: TimeIndex) -> StreamWindow | None:
        """The reference window of a model that is triggered now."""
        return StreamWindow(max(0, index.position - self.amount_ref), index.position)

    def first_reference(self, index: TimeIndex) -> StreamWindow | None:
        """See TimeWindowingStrategy: each trigger has a reference."""
        return None

    def compared(self, index: TimeIndex, reference: StreamWindow | None, last: TriggerPoint) -> WindowPair | None:
        """The reference and the current window; None: there is no reference. Args: reference: that of the newest model. last: the newest trigger."""
        oldest = 0 if self.allow_overlap else last.position
        current = StreamWindow(max(oldest, index.position - self.amount_cur), index.position)
        return None if reference is None else WindowPair(reference, current)

    def unfilled(self, index: TimeIndex) -> list[str]:
        """Options that ask for more samples than there are, with their values."""
        wanted = {"amount_ref": self.amount_ref, "amount_cur": self.amount_cur}
        return [f"{name}={amount}" for name, amount in wanted.items() if amount > index.position]


class TimeWindowingStrategy(_WindowingStrategy):
    """The samples of the newest time, in stream time: those newer than the newest one less the limit. Late samples are not among them.

    With a `season` both windows cover the same phases of it, or nothing is compared: they have their whole length, and do not reach before the first
    sample, nor, without `allow_overlap`, before the last trigger.
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
        description="length of the cycle that data repeat, such as a day or a week: windows are whole multiples of it, or are compared with the same "
        "phase of the one before; none: they have no such cycle",
        examples=["1w"],
    )
    reference: Literal["last_trigger", "same_phase"] = Field(
        "last_trigger",
        description="which samples are the reference: last_trigger, those before the trigger of the newest model; same_phase, the current window one "
        "season ago",
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
                    message = f"{written} is no whole multiple of the season, {format_duration(self.season)}, so that the windows cover other phases"
                    raise PlacedError(name, f"{message}; write {whole}")
        return self

    @property
    def horizon(self) -> int:
        """Seconds that its windows reach back."""
        if self.limit_ref is None:
            return (self.season or 0) + self.limit_cur
        return max(self.limit_ref, self.limit_cur)

    def reference_at(self, index: TimeIndex) -> StreamWindow | None:
        """The reference window of a model that is triggered now; None: it is found later."""
        if self.limit_ref is None or (self.season is not None and not index.spans(self.limit_ref)):
            return None
        return index.newest_for(self.limit_ref)

    def first_reference(self, index: TimeIndex) -> StreamWindow | None:
        """The reference of a model whose trigger came before there were whole seasons for one: the first that there are; None: not yet."""
        if self.limit_ref is None or index.first is None or not index.spans(self.limit_ref):
            return None
        return StreamWindow(0, index.position, Interval(index.first, index.first + self.limit_ref))

    def compared(self, index: TimeIndex, reference: StreamWindow | None, last: TriggerPoint) -> WindowPair | None:
        """The reference and the current window; None: there is none, or with a season none that is whole.

        Args: reference: that of the newest model. last: the newest trigger.
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
        """Whether the current window, and a reference one season ago, lie within the stream, and the former after the last trigger."""
        back = self.limit_cur + (self.season or 0 if self.limit_ref is None else 0)
        if self.allow_overlap or last.newest is None:
            return index.spans(back)
        return index.spans(back) and index.newest is not None and index.newest - last.newest >= self.limit_cur

    def unfilled(self, index: TimeIndex) -> list[str]:
        """Options that ask for more time than there is, with their values."""
        if self.limit_ref is None:
            return [] if index.spans(self.horizon) else [f"season + limit_cur={self.horizon}s"]
        wanted = {"limit_ref": self.limit_ref, "limit_cur": self.limit_cur}
        return [f"{name}={seconds}s" for name, seconds in wanted.items() if index.reaches_before_start(seconds)]


WindowingStrategy = Annotated[AmountWindowingStrategy | TimeWindowingStrategy, Field(discriminator="id")]
"""How the windows of reference and current data are found."""
