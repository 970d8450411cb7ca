"""What the samples of a batch took to be read, decoded and augmented, measured where that is done. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import add
from time import perf_counter, thread_time
from typing import Final, NamedTuple


class PreparationTimes(NamedTuple):
    """Of the samples of one batch or of many, by one worker or by many: seconds add up over workers that run side by side."""

    read_s: float = 0.0
    """Reading files, which waits for disks: seconds of a clock on the wall. What comes over Flight is not counted."""
    num_read: int = 0
    read_bytes: int = 0
    decode_s: float = 0.0
    """Of the worker's processor: what other processes and threads do beside it does not count."""
    num_decoded: int = 0
    augment_s: float = 0.0
    """The same. Making a batch is part of it."""
    num_augmented: int = 0

    def plus(self, other: PreparationTimes) -> PreparationTimes:
        """Both together."""
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
        """Args: times: to which others are added."""
        self.times = times

    @contextmanager
    def decoding(self, num_samples: int) -> Iterator[None]:
        """The block decodes samples."""
        started = thread_time()
        yield
        self.times = self.times.plus(PreparationTimes(decode_s=thread_time() - started, num_decoded=num_samples))

    @contextmanager
    def augmenting(self, num_samples: int) -> Iterator[None]:
        """The block augments samples, and makes a batch of them."""
        started = thread_time()
        yield
        self.times = self.times.plus(PreparationTimes(augment_s=thread_time() - started, num_augmented=num_samples))


class ReadClock:
    """Seconds of reading, from its beginning on."""

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now, self._started = now, now()

    def times(self, num_samples: int, num_bytes: int) -> PreparationTimes:
        """What was read until now."""
        return PreparationTimes(read_s=self._now() - self._started, num_read=num_samples, read_bytes=num_bytes)
