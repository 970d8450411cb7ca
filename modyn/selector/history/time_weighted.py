"""More of what is new in the history."""

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
"""Half-lives between the newest samples of two steps, up to which their weights are summed together."""
_HALVINGS: Final = 40
"""A sample that is older than so many half-lives is drawn 10^12 times as seldom as a new one: it counts as not there."""


class TimeWeightedOptions(Section):
    """Options of TimeWeighted."""

    half_life: Duration = Field(
        ge=1, description="age at which a sample is half as likely to be drawn as a new one", examples=["30d"]
    )


class TimeWeightedHistory(HistoryPolicy):
    """Draws each step's samples from all before its new ones, each with a probability proportional to 2^(-age / `half_life`), with replacement.

    Ages are differences of timestamps. Reading begins at the newest sample and ends at the first block of 65,536 whose samples are all older than 60
    half-lives: memory and time grow with the samples that are younger.
    """

    Config = TimeWeightedOptions
    config: TimeWeightedOptions

    def draw(self, window: SelectionWindow, steps: DueSteps, size: int, context: SelectionContext) -> Int64Array:
        """As the base says."""
        return self._at(window, steps.begins[:-1], context.generator().random((len(steps), size)))

    def _at(self, window: SelectionWindow, ends: Int64Array, shares: Float64Array) -> Int64Array:
        """The samples at shares of the sum of weights before each of `ends`: int64, of the shape of `shares`."""
        half_life = self.config.half_life
        oldest = (_HALVINGS + _SHARED_HALVINGS) * half_life
        first, ages = ages_of(window, int(ends[-1]), int(ends[0]), oldest)
        newest = np.minimum.accumulate(ages)[ends - first - 1]
        if newest.max() > _SHARED_HALVINGS * half_life:
            # What is new for one step is old for another: no sums are precise enough for both.
            return np.concatenate(
                [self._at(window, end, share) for end, share in zip(ends[:, None], shares[:, None], strict=True)]
            )
        sums = np.cumsum(np.exp2(-np.minimum(ages, float(oldest)) / half_life))
        # A step sees the sums up to its own history: relative weights are the same whatever sample ages are counted from.
        found = np.searchsorted(sums, shares * sums[ends - first - 1, None], "right")
        return first + np.sort(np.minimum(found, ends[:, None] - first - 1), 1)


def ages_of(window: SelectionWindow, end: int, needed: int, oldest: int) -> tuple[int, Float64Array]:
    """The number of a sample of the window, and the ages of the samples from there up to number `end`, against the newest timestamp of these.

    It is 0, or behind it all is older than `oldest`, but for blocks of which a sample is younger. Args: needed: the sample before this one is
    among them.
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
    # The difference of two int64 fits into uint64, where it wraps to what it is.
    return start, (np.uint64(newest % 2**64) - np.concatenate(found[::-1]).astype(np.uint64)).astype(np.float64)
