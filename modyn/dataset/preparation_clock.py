"""Measure the times of reading, decoding and augmenting the samples of a batch. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import add
from time import perf_counter, thread_time
from typing import Final, NamedTuple


class PreparationTimes(NamedTuple):
    """Times of the samples of one or more batches. Seconds add up over workers that run in parallel."""

    read_s: float = 0.0
    """Wall time of reading files. Payloads over Flight are not counted."""
    num_read: int = 0
    read_bytes: int = 0
    decode_s: float = 0.0
    """Processor time of the worker's thread in decoding. Other processes and threads do not count."""
    num_decoded: int = 0
    augment_s: float = 0.0
    """Processor time of the worker's thread in augmenting, including the time to make a batch."""
    num_augmented: int = 0

    def plus(self, other: PreparationTimes) -> PreparationTimes:
        """Return the sum of both."""
        return PreparationTimes._make(map(add, self, other))


NO_TIMES: Final = PreparationTimes()


class PreparationClock:
    """Adds up the times of one batch, in the one thread that makes it.

    >>> clock = PreparationClock()
    >>> with clock.decoding(3):
    ...     pass
    >>> clock.times.num_decoded, clock.times.num_augmented
    (3, 0)
    """

    def __init__(self, times: PreparationTimes = NO_TIMES) -> None:
        """Args: times: initial times, to which others are added."""
        self.times = times

    @contextmanager
    def decoding(self, num_samples: int) -> Iterator[None]:
        """Add the time of the block, which decodes samples."""
        started = thread_time()
        yield
        self.times = self.times.plus(PreparationTimes(decode_s=thread_time() - started, num_decoded=num_samples))

    @contextmanager
    def augmenting(self, num_samples: int) -> Iterator[None]:
        """Add the time of the block, which augments samples and makes a batch of them."""
        started = thread_time()
        yield
        self.times = self.times.plus(PreparationTimes(augment_s=thread_time() - started, num_augmented=num_samples))


class ReadClock:
    """Measures the wall time of reading, from its construction on."""

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now, self._started = now, now()

    def times(self, num_samples: int, num_bytes: int) -> PreparationTimes:
        """Return the time from the construction until now, with the numbers of samples and bytes that were read."""
        return PreparationTimes(read_s=self._now() - self._started, num_read=num_samples, read_bytes=num_bytes)
