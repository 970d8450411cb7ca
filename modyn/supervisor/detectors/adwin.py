"""The detector ADWIN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final

from pydantic import Field

from modyn.config.base import Section
from modyn.supervisor.detectors.base import StreamDetector
from modyn.supervisor.evidence import Evidence

_BUCKETS_A_ROW: Final = 5
"""Largest number of buckets in a row of the histogram; M in the paper."""


class ADWINConfig(Section):
    """Options of ADWIN."""

    delta: float = Field(0.002, gt=0, lt=1, description="probability of a detection without a change: 1 - confidence")
    clock: int = Field(32, ge=1, description="number of values between two searches for a change")
    min_window_length: int = Field(5, ge=1, description="smallest number of values in each of the two parts of the window")
    grace_period: int = Field(10, ge=1, description="number of values before the first search")


class ADWIN(StreamDetector):
    """Detects that the means of two parts of a window differ by more than chance allows; the window grows while the mean stays the same
    (Bifet and Gavaldà: Learning from Time-Changing Data with Adaptive Windowing, 2007). The numbers may be any real numbers.

    The window is an exponential histogram: row i has at most five buckets, each with the sum of 2^i numbers. Memory: O(log n) for n numbers.

    >>> detector = ADWIN(ADWINConfig())
    >>> [at for at, number in enumerate([0.0] * 100 + [1.0] * 100) if detector.update(number)]
    [127]
    """

    Config: ClassVar[type[Section]] = ADWINConfig

    def __init__(self, config: ADWINConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        self._difference, self._bound = 0.0, 0.0
        self._reset()

    def _reset(self) -> None:
        self._rows: list[list[float]] = []
        """The sums of the buckets of each row, oldest first."""
        self._width = 0
        self._total = self._squares = 0.0
        self._ticks = 0

    def update(self, value: float) -> bool:
        """See `StreamDetector.update`."""
        self._ticks += 1
        if self._width:
            mean = self._total / self._width
            self._squares += self._width * (value - mean) ** 2 / (self._width + 1)
        self._width += 1
        self._total += value
        self._insert(value, 0)
        if self._ticks % self.config.clock or self._width <= self.config.grace_period:
            return False
        changed = self._has_changed()
        if changed:
            self._reset()
        return changed

    def _insert(self, total: float, row: int) -> None:
        """Append a bucket to its row. A row with too many buckets merges the two oldest buckets into one bucket of the next row."""
        if row == len(self._rows):
            self._rows.append([])
        self._rows[row].append(total)
        if len(self._rows[row]) > _BUCKETS_A_ROW:
            older, newer = self._rows[row][:2]
            del self._rows[row][:2]
            self._insert(older + newer, row + 1)

    def _has_changed(self) -> bool:
        """Return whether the means of two parts of the window differ by more than the bound, at any division between two buckets."""
        least = self.config.min_window_length
        older, older_sum = 0, 0.0
        # Iterate from the oldest to the newest bucket. Each bucket of row i contains 2^i numbers, and rows with a larger i are older.
        for row in range(len(self._rows) - 1, -1, -1):
            for bucket_sum in self._rows[row]:
                older += 2**row
                older_sum += bucket_sum
                newer = self._width - older
                if newer < least:
                    return False
                if older < least:
                    continue
                difference = abs(older_sum / older - (self._total - older_sum) / newer)
                bound = self._chance(older, newer)
                self._difference, self._bound = difference, bound
                if difference > bound:
                    return True
        return False

    def _chance(self, older: int, newer: int) -> float:
        """Return the largest difference of two means that chance explains, with confidence 1 - delta."""
        least = self.config.min_window_length
        log = math.log(2 * math.log(self._width) / self.config.delta)
        inverse = 1 / (older - least + 1) + 1 / (newer - least + 1)
        return float(math.sqrt(2 * inverse * self._squares / self._width * log) + 2 / 3 * inverse * log)

    def evidence(self) -> Sequence[Evidence]:
        """Return the difference of means at the last tested division with the bound for this difference, and the width of the window."""
        return Evidence("difference", self._difference, self._bound), Evidence("width", float(self._width))
