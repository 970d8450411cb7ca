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

_FIRST_SEARCHED: Final = 256
"""Number of samples that are searched first for the end of a period."""


class TimeConfig(Section):
    """Fires once per period of `every`, by the samples' own timestamps."""

    every: Duration = Field(ge=1, description="length of a period", examples=["1d"])
    start_timestamp: Timestamp | None = Field(
        None, description="start of the first period; none: time of the stream's first sample", examples=["2020-01-01"]
    )


class TimeTrigger(Trigger):
    """Fires before the first sample at or past the end of a period; periods end at `start_timestamp + k * every`, k = 1, 2, …

    Periods are measured by the timestamps of the samples, not by the clock. A period without samples causes no trigger. A gap over several periods
    causes one trigger, for the samples before the gap. A late sample, which is older than the current period, causes no trigger and belongs to the
    period in which the sample arrived. A timestamp from the future ends the current period and starts a new period. When samples arrive, storage
    sets aside samples whose timestamps are too far in the future. If all new samples are late and their timestamps span a period, the run warns.
    (Modyn, SIGMOD'25, section 5.1: time trigger.)

    >>> import numpy as np
    >>> from modyn.testing.decisions import decide
    >>> times = np.array([100, 104, 110, 119, 141, 108])
    >>> trigger = TimeTrigger(TimeConfig(every="10s"))
    >>> [check.position for check in decide(trigger, [SampleBatch(times, times, times)])]
    [2, 4]
    """

    Config: ClassVar[type[Section]] = TimeConfig
    sees_next_sample = True

    def __init__(self, config: TimeConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._every = config.every
        self._start = config.start_timestamp
        self._period: int | None = None
        """Number of the newest period so far, from 0; None before the first sample."""
        self.late_span_s = config.every

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """Return the position before the first sample of a newer period."""
        decided = max(start + 1, 0)
        # If the policy has decided at `start`, the sample after `start` begins a period. This period counts, although the sample is not observed
        # yet.
        origin, period = self._after(batch.slice(max(start, 0), decided))
        if origin is None or period is None or (end := origin + (period + 1) * self._every) > MAX_TIMESTAMP:
            return None
        return _first_from(end, batch.timestamps, decided)

    def observe(self, samples: SampleBatch) -> None:
        """Update the newest period."""
        self._start, self._period = self._after(samples)

    def state(self) -> dict[str, Any]:
        """Return the `start` of the first period, seconds since 1970, and the number of the newest `period`; None before the first sample."""
        return {"version": 1, "start": self._start, "period": self._period}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state. Raises: CorruptStateError."""
        values = read_state("TimeTrigger", state, 1, {"start": (int, NoneType), "period": (int, NoneType)})
        self._start, self._period = values["start"], values["period"]

    def _after(self, samples: SampleBatch) -> tuple[int | None, int | None]:
        """Return the start of the first period, and the number of the newest period after `samples`, as Python integers, which do not overflow."""
        if len(samples) == 0:
            return self._start, self._period
        origin = int(samples.timestamps[0]) if self._start is None else self._start
        return origin, max(self._period or 0, (int(samples.timestamps.max()) - origin) // self._every)


def _first_from(limit: int, timestamps: Int64Array, start: int) -> int | None:
    """Return the first position from `start` on whose timestamp is `limit` or later.

    Each step searches twice as many samples as the step before, so that the search for the end of a short period does not read a whole long batch.
    """
    size = _FIRST_SEARCHED
    while start < len(timestamps):
        reached = timestamps[start : start + size] >= limit
        at = int(reached.argmax())
        if reached[at]:
            return start + at
        start, size = start + size, 2 * size
    return None
