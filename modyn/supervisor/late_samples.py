"""Whether everything that arrives is late, as after a sample whose timestamp lies in the future. For any trigger policy."""

from __future__ import annotations

import numpy as np

from modyn.config.durations import format_timestamp
from modyn.records import SampleBatch


class LateSamples:
    """Follows a stream, and warns when all samples since the newest timestamp are older than it and span some time among themselves.

    >>> late = LateSamples(None)
    >>> times = np.array([0, 1000, 11, 15, 21])
    >>> late.observe(SampleBatch(times, times, times))
    >>> late.warning(10).partition(",")[0]
    'all samples that arrive are older than the newest one before them'
    >>> late.warning(11)
    ''
    """

    def __init__(self, newest: int | None) -> None:
        """Args: newest: the largest timestamp of the stream so far; None: it begins."""
        self._newest = newest
        self._late: tuple[int, int] | None = None
        """Smallest and largest timestamp of the samples since the last one that was as new as any before it."""

    def observe(self, samples: SampleBatch) -> None:
        """Receive the next samples of the stream, which may be none."""
        late = samples.timestamps
        if not len(late):
            return
        if self._newest is None or late.max() >= self._newest:
            self._newest, self._late = int(late.max()), None
            late = late[np.flatnonzero(late == self._newest)[-1] + 1 :]
        if len(late):
            ends = [int(late.min()), int(late.max()), *(self._late or ())]
            self._late = min(ends), max(ends)

    def warning(self, span_s: int) -> str:
        """Return what the user of the run should know; empty: nothing. Args: span_s: that the late samples must span."""
        if self._late is None or self._newest is None or self._late[1] - self._late[0] < span_s:
            return ""
        newest = format_timestamp(self._newest)
        return (
            f"all samples that arrive are older than the newest one before them, of {newest}: until others reach that time, models count as "
            "trained on data up to then, and a trigger policy that goes by time may not fire. If a wrong timestamp or start_timestamp is the "
            "reason, correct it and submit the pipeline again"
        )
