"""Fires once per period of stream time."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, ClassVar, Final

from pydantic import Field

from modyn.config.base import Section
from modyn.config.durations import Duration, Timestamp
from modyn.records import MAX_TIMESTAMP, Int64Array, SampleBatch
from modyn.supervisor.triggers.base import Trigger, TriggerContext, read_state

_FIRST_LOOK: Final = 256
"""Samples."""


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
    arrived. A timestamp from the future ends the current period and starts its own: what lies too far in the future of its arrival must be
    set aside by storage. If all samples are late and span a period among themselves, the run warns. (Modyn, SIGMOD'25, section 5.1: time
    trigger.)

    >>> import numpy as np
    >>> times = np.array([100, 104, 110, 119, 141, 108])
    >>> batch = SampleBatch(times, times, times)
    >>> trigger = TimeTrigger(TimeConfig(every="10s"))
    >>> trigger.next_check(batch, 0)
    2
    """

    Config: ClassVar[type[Section]] = TimeConfig
    sees_next_sample = True

    def __init__(self, config: TimeConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._every = config.every
        self._start = config.start_timestamp
        self._period: int | None = None
        """Number of the newest period seen, from 0; none before the first sample."""
        self.late_span_s = config.every

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """The position before the first sample of a newer period."""
        decided = max(start + 1, 0)
        # The sample behind a position that was decided on belongs to the period that it began.
        origin, period = self._after(batch.slice(max(start, 0), decided))
        if origin is None or period is None or (end := origin + (period + 1) * self._every) > MAX_TIMESTAMP:
            return None
        return _first_from(end, batch.timestamps, decided)

    def observe(self, samples: SampleBatch) -> None:
        """Move on to the newest period among them."""
        self._start, self._period = self._after(samples)

    def state(self) -> dict[str, Any]:
        """`start` of the first period, seconds since 1970, and number of the newest `period`; None before the first sample."""
        return {"version": 1, "start": self._start, "period": self._period}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore both. Raises: CorruptStateError."""
        values = read_state("TimeTrigger", state, 1, {"start": (int, NoneType), "period": (int, NoneType)})
        self._start, self._period = values["start"], values["period"]

    def _after(self, samples: SampleBatch) -> tuple[int | None, int | None]:
        """Start of the first period and number of the newest one, once `samples` have been seen. Python's integers do not overflow."""
        if len(samples) == 0:
            return self._start, self._period
        origin = int(samples.timestamps[0]) if self._start is None else self._start
        return origin, max(self._period or 0, (int(samples.timestamps.max()) - origin) // self._every)


def _first_from(limit: int, timestamps: Int64Array, start: int) -> int | None:
    """The first position from `start` on whose timestamp is `limit` or later. Looks at twice as many each time: many short periods of a long
    batch do not look at all of it each."""
    size = _FIRST_LOOK
    while start < len(timestamps):
        reached = timestamps[start : start + size] >= limit
        at = int(reached.argmax())
        if reached[at]:
            return start + at
        start, size = start + size, 2 * size
    return None
