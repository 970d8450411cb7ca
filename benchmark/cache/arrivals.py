"""Times at which samples of trainings arrived, and the rate of all trainings while all of them ran. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Arrivals(NamedTuple):
    """Batches of one training."""

    times: npt.NDArray[np.float64]
    """(n,), seconds of a clock that all processes share; ascending."""
    samples: npt.NDArray[np.int64]
    """(n,), number of samples that had arrived by then."""
    hits: float = 0.0
    """Share of the samples after the first epoch that came from a cache."""

    def reached(self, num_samples: int) -> float:
        """Return the time at which this number of samples had arrived. Raises ValueError: fewer samples arrived."""
        at = int(np.searchsorted(self.samples, num_samples))
        if at == len(self.samples):
            raise ValueError(f"a training has {self.samples[-1] if at else 0} samples, and {num_samples} were waited for")
        return float(self.times[at])

    def until(self, time: float) -> int:
        """Return the number of samples that had arrived at a time."""
        at = int(np.searchsorted(self.times, time, side="right"))
        return int(self.samples[at - 1]) if at else 0


def together(jobs: Sequence[Arrivals], warm_up: int) -> float:
    """Return samples/s of all trainings while all of them run: after each has had `warm_up` samples, until the first one ends.

    Raises: ValueError: there is no such time, because a training ended before another was warm.

    >>> fast = Arrivals(np.array([1.0, 2.0, 3.0]), np.array([10, 20, 30]))
    >>> slow = Arrivals(np.array([1.5, 2.5, 3.5]), np.array([10, 15, 20]))
    >>> together([fast, slow], warm_up=10)
    16.666666666666668
    """
    begin = max(job.reached(warm_up) for job in jobs)
    end = min(float(job.times[-1]) for job in jobs)
    if end <= begin:
        raise ValueError("a training has ended before another had its first samples: give them more epochs")
    return sum(job.until(end) - job.until(begin) for job in jobs) / (end - begin)
