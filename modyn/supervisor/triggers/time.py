"""Fires once per period of stream time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from modyn.config.base import Section
from modyn.config.durations import Duration, Timestamp
from modyn.records import SampleBatch
from modyn.supervisor.triggers.base import Trigger, TriggerContext, read_state


class TimeConfig(Section):
    """Fires once per period of `every`, by the samples' own timestamps."""

    every: Duration = Field(ge=1, description="length of a period", examples=["1d"])
    start_timestamp: Timestamp | None = Field(
        None, description="start of the first period; none: the timestamp of the stream's first sample", examples=["2020-01-01"]
    )


class TimeTrigger(Trigger):
    """Fires before the first sample at or past the end of a period; periods end at `start_timestamp + k * every`, k = 1, 2, …

    Time is the samples' time, never the clock's. So a period without samples fires nothing, a gap over several periods fires once
    (for the samples before it), and a late sample (older than the current period) never fires: it belongs to the period in which it
    arrived. A timestamp from the future ends the current period and starts its own. (Modyn, SIGMOD'25, section 5.1: time trigger.)

    >>> times = np.array([100, 104, 110, 119, 141, 108])
    >>> trigger = TimeTrigger(TimeConfig(every="10s"))
    >>> list(trigger.cuts(SampleBatch(times, times, times)))
    [2, 4]
    """

    Config: ClassVar[type[Section]] = TimeConfig

    def __init__(self, config: TimeConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        # No two timestamps are further apart than 2^64 - 1 seconds.
        self._every = min(config.every, 2**64 - 1)
        self._start = config.start_timestamp
        self._period: int | None = None
        """Number of the newest period seen, from 0; none before the first sample."""

    def cuts(self, batch: SampleBatch) -> Iterator[int]:
        """The positions at which a newer period begins. The whole batch counts as seen with the first position."""
        if len(batch) == 0:
            return
        if self._start is None:
            self._start = int(batch.timestamps[0])
        newest = np.maximum.accumulate(batch.timestamps)
        # Differences of int64 may need 64 bits without a sign; modulo 2^64 they are right wherever newest >= start.
        since_start = newest.astype(np.uint64) - np.array(self._start, np.int64).astype(np.uint64)
        periods = np.where(newest >= self._start, since_start // np.uint64(self._every), np.uint64(0))
        previous = np.uint64(periods[0] if self._period is None else self._period)
        periods = np.maximum(periods, previous)
        fired = np.flatnonzero(np.diff(periods, prepend=previous))
        self._period = int(periods[-1])
        yield from fired.tolist()

    def state(self) -> dict[str, Any]:
        """`start` of the first period, seconds since 1970, and number of the newest `period`; None before the first sample."""
        return {"version": 1, "start": self._start, "period": self._period}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore both. Raises: CorruptStateError."""
        values = read_state("TimeTrigger", state, 1, {"start": (int, NoneType), "period": (int, NoneType)})
        self._start, self._period = values["start"], values["period"]
