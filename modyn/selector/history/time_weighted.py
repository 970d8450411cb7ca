"""Draws newer samples of the history more often."""

from __future__ import annotations

from typing import Final

import numpy as np
from pydantic import Field

from modyn.config.base import Section
from modyn.config.durations import Duration
from modyn.records import Float64Array, Int64Array
from modyn.selector.history import DueSteps, HistoryPolicy
from modyn.selector.window import BLOCK, SelectionContext, SelectionWindow

_SHARED_HALVINGS: Final = 20
"""Largest distance in half-lives between the newest samples of two steps whose weights are summed together. For a larger distance, rounding errors of
the larger weights would exceed the smaller weights.
"""
_HALVINGS: Final = 40
"""Age in half-lives beyond which a sample is never drawn: its probability would be at most 10^-12 of the probability of a new sample."""


class TimeWeightedOptions(Section):
    """Options of TimeWeighted."""

    half_life: Duration = Field(
        ge=1, description="age at which a sample is half as likely to be drawn as a new one", examples=["30d"]
    )


class TimeWeightedHistory(HistoryPolicy):
    """Draws the samples of each step from all earlier samples, with replacement, each with a probability proportional to 2^(-age / `half_life`).

    Ages are differences of timestamps. The policy reads the stream backwards from the newest sample, in blocks of 65,536 samples. The policy stops at
    the first block whose samples are all older than 60 half-lives. Memory and time grow with the number of younger samples.

    >>> from modyn.testing.fake_selector import example_history
    >>> example_history({"strategy": "TimeWeighted", "half_life": 1})
    [6, 7, 5, 5, 8, 9, 7, 7]
    """

    Config = TimeWeightedOptions
    config: TimeWeightedOptions

    def draw(self, window: SelectionWindow, steps: DueSteps, size: int, context: SelectionContext) -> Int64Array:
        """Draw samples; see `HistoryPolicy.draw`."""
        return self._at(window, steps.begins[:-1], context.generator().random((len(steps), size)))

    def _at(self, window: SelectionWindow, ends: Int64Array, shares: Float64Array) -> Int64Array:
        """For each of `ends`, find the samples at the fractions `shares` of the sum of all earlier weights: int64, with the shape of `shares`."""
        half_life = self.config.half_life
        oldest = (_HALVINGS + _SHARED_HALVINGS) * half_life
        first, ages = ages_of(window, int(ends[-1]), int(ends[0]), oldest)
        newest = np.minimum.accumulate(ages)[ends - first - 1]
        if newest.max() > _SHARED_HALVINGS * half_life:
            # A sample that is new for one step may be very old for another. Each step has its own sums, because no common sums are precise enough.
            return np.concatenate(
                [self._at(window, end, share) for end, share in zip(ends[:, None], shares[:, None], strict=True)]
            )
        sums = np.cumsum(np.exp2(-np.minimum(ages, float(oldest)) / half_life))
        # Each step uses the sums up to its own begin. All ages are counted from the newest sample of all steps, which does not change the ratios of
        # weights.
        found = np.searchsorted(sums, shares * sums[ends - first - 1, None], "right")
        return first + np.sort(np.minimum(found, ends[:, None] - first - 1), 1)


def ages_of(window: SelectionWindow, end: int, needed: int, oldest: int) -> tuple[int, Float64Array]:
    """Return the number of the first sample that was read, and the ages of the samples from this number up to number `end`. Ages are relative to the
    newest timestamp among these samples.

    The function reads samples backwards from `end` in blocks, until the next block has only samples that are older than `oldest`, or no samples are
    left. Args: needed: the result always includes the sample with the number `needed` - 1.
    """
    found, start, newest = list[Int64Array](), end, 0
    while start > 0:
        before = max(start - BLOCK, 0)
        times = window.reader.read(window.start + before, window.start + start).timestamps
        latest = int(times.max())
        newest = max(newest, latest) if found else latest
        if start < needed and latest < newest - oldest:
            break
        found.append(times)
        start = before
    # The difference of two int64 fits into uint64, where it wraps to the right value.
    return start, (np.uint64(newest % 2**64) - np.concatenate(found[::-1]).astype(np.uint64)).astype(np.float64)
