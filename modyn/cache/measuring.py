"""How rates are measured within a budget of seconds, and the rates of what could hold a cache. By any clock: no rule here looks at the time itself.

`Budget` divides the seconds, `measure_rate` spends those of one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter
from typing import Final, NamedTuple, Protocol

import numpy as np

from modyn.cache.tier import Buffer
from modyn.errors import UnavailableError
from modyn.records import Int64Array

Clock = Callable[[], float]
"""Returns seconds; never goes back."""
_LEAST_S: Final = 1e-9
"""What a clock that did not move between two looks is taken to have moved."""


class MeasuredPart(NamedTuple):
    """A part of a measurement that begins now, and how long it may take."""

    name: str
    seconds: float


class Budget:
    """Divides seconds between parts that are measured one after the other: each gets its share of what is left when it begins, so that one that
    took longer than it should shortens those behind it."""

    def __init__(
        self,
        seconds: float,
        shares: Mapping[str, float],
        clock: Clock = perf_counter,
        progress: Callable[[MeasuredPart], object] = lambda _: None,
    ) -> None:
        """Args: seconds: in all, from now on. shares: by part, in the order in which they begin. progress: is told when a part begins."""
        self._started = clock()
        self._end = self._started + seconds
        self._shares = dict(shares)
        self._clock = clock
        self._progress = progress

    def begin(self, part: str) -> float:
        """The seconds of a part that begins now; each once. At least 0."""
        whole = sum(self._shares.values())
        seconds = max(0.0, (self._end - self._clock()) * self._shares.pop(part) / whole)
        self._progress(MeasuredPart(part, seconds))
        return seconds

    @property
    def seconds_used(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._started


def measure_rate(pieces: Iterator[float], seconds: float, clock: Clock = perf_counter, least: int = 1) -> float:
    """How much a second the work of `pieces` does: taking one does a piece of work, and what is taken is its amount.

    The first piece warms up and does not count. Of the others at least `least` count, where there are so many; no further one begins that, as
    long as the one before, would end after `seconds`. A single piece counts; of none the rate is 0.

    >>> times = iter([0.0, 5.0, 6.0, 7.0])
    >>> measure_rate(iter([100.0, 30.0, 10.0, 1.0]), seconds=7.0, clock=lambda: next(times))
    20.0
    """
    started = clock()
    warm_up = next(pieces, None)
    first = now = clock()
    amounts = []
    for amount in pieces:
        amounts.append(amount)
        before, now = now, clock()
        if len(amounts) >= least and 2 * now - before > started + seconds:
            break
    if not amounts:
        return (warm_up or 0.0) / max(first - started, _LEAST_S)
    return sum(amounts) / max(now - first, _LEAST_S)


def measure_together(workers: Sequence[Iterator[float]], seconds: float, clock: Clock = perf_counter) -> float:
    """What all `workers` do a second, each in a thread of its own."""
    with ThreadPoolExecutor(len(workers)) as pool:
        return sum(pool.map(lambda pieces: measure_rate(pieces, seconds, clock), workers))


class BufferStore(Protocol):
    """What could hold the values of a cache: the part of a `CacheTier` that is measured."""

    def get(self, keys: Int64Array) -> Sequence[Buffer | None]:
        """The buffers of `keys`, int64 (n,), in this order; None: it is not there."""

    def put(self, keys: Int64Array, buffers: Sequence[Buffer]) -> object:
        """Keep a buffer for each of `keys`, int64 (n,), in place of those before."""


class CopiesInMemory:
    """Buffers in the memory of this process, copied on their way in and out: what shared memory of the machine does at best."""

    def __init__(self) -> None:
        self._held: dict[int, bytearray] = {}

    def get(self, keys: Int64Array) -> list[bytes | None]:
        """As `BufferStore`."""
        found = map(self._held.get, keys.tolist())
        return [None if buffer is None else bytes(buffer) for buffer in found]

    def put(self, keys: Int64Array, buffers: Sequence[Buffer]) -> None:
        """As `BufferStore`."""
        self._held.update(zip(keys.tolist(), map(bytearray, buffers), strict=True))


@dataclass(frozen=True, slots=True)
class StoreRates:
    """How fast one process writes to a store and reads from it."""

    write_bytes_per_s: float
    read_bytes_per_s: float


def measure_store(
    store: BufferStore, values: Sequence[Buffer], batch_size: int, seconds: float, clock: Clock = perf_counter
) -> StoreRates:
    """Write `values` batch by batch for half of the time, and read them, each batch in an order drawn at random, for the other half.

    Args: values: at least one, of the size of samples; stored under the keys 0, 1, …
    Raises: UnavailableError: the store has lost values before they were read.
    """
    places = np.array_split(np.arange(len(values)), -(-len(values) // batch_size))

    def writes() -> Iterator[float]:
        for keys in cycle(places):
            buffers = [values[key] for key in keys.tolist()]
            store.put(keys, buffers)
            yield float(sum(map(len, buffers)))

    def reads() -> Iterator[float]:
        random = np.random.default_rng(0)
        for keys in cycle(places):
            found = store.get(random.permutation(keys))
            # A view of the store's memory is only read once it is copied; `bytes` returns what is bytes already as it is.
            read = [bytes(buffer) for buffer in found if buffer is not None]
            if len(read) < len(keys):
                raise UnavailableError(
                    f"of {len(keys)} values that were just stored {len(read)} were found: the store has no room for "
                    f"{sum(map(len, values)):,} bytes, or is cleared meanwhile; give it more memory, and measure again"
                )
            yield float(sum(map(len, read)))

    written = writes()
    rate = measure_rate(written, seconds / 2, clock)
    for keys in places:  # Time may have ended before each value was written once.
        store.put(keys, [values[key] for key in keys.tolist()])
    return StoreRates(rate, measure_rate(reads(), seconds / 2, clock))
