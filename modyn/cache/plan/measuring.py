"""Measure rates within a budget of seconds, and the rates of stores that could hold a cache. The caller provides the clock.

`Budget` divides the seconds between the parts of a measurement. `measure_rate` uses the seconds of one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np

from modyn.errors import UnavailableError
from modyn.records import BoolArray, Int64Array

Clock = Callable[[], float]
"""Returns seconds that never decrease."""
T = TypeVar("T")
_LEAST_S: Final = 1e-9
"""Seconds that are assumed to have passed if the clock shows the same time twice."""
_READ_AHEAD: Final = 2
"""Number of batches that each process of a DataLoader makes in advance."""
_BATCHES: Final = 4
"""Number of batches to measure for each process."""
_OVERTIME_S: Final = 1.0
"""Additional seconds if the start of the processes takes all of the time: this number for the batches made in advance, and the same number for the
measured batches."""


class MeasuredPart(NamedTuple):
    """A part of a measurement that begins now, and the seconds that this part may take."""

    name: str
    seconds: float


class Budget:
    """Divides seconds between parts that are measured one after the other. Each part gets its share of the remaining time, so a part that takes too
    long shortens the later parts."""

    def __init__(
        self,
        seconds: float,
        shares: Mapping[str, float],
        clock: Clock = perf_counter,
        progress: Callable[[MeasuredPart], object] = lambda _: None,
    ) -> None:
        """Args: seconds: total, from now on. shares: weight of each part, in the order in which the parts begin. progress: called when a part
        begins."""
        self._started = clock()
        self._end = self._started + seconds
        self._shares = dict(shares)
        self._clock = clock
        self._progress = progress

    def begin(self, part: str) -> float:
        """Begin a part, and return the seconds that it may take, at least 0. Call it once for each part."""
        whole = sum(self._shares.values())
        # If earlier parts took all of the time, this part still begins, with 0 seconds.
        seconds = max(0.0, (self._end - self._clock()) * self._shares.pop(part) / whole)
        self._progress(MeasuredPart(part, seconds))
        return seconds

    @property
    def seconds_used(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._started


def measure_rate(pieces: Iterator[float], seconds: float, clock: Clock = perf_counter, least: int = 1, enough: int = 1) -> float:
    """Return the work per second. Each step of the iterator `pieces` does a piece of work, and yields its amount.

    The first piece is a warm-up, which counts only if there is no other piece. The measurement continues until `least` other pieces are done and the
    next piece, at the speed of the previous piece, would end after `seconds`. While fewer than `enough` pieces are done, the measurement may take at
    least a second after the warm-up. Without pieces the rate is 0.

    >>> times = iter([0.0, 5.0, 6.0, 7.0])
    >>> measure_rate(iter([100.0, 30.0, 10.0, 1.0]), seconds=7.0, clock=lambda: next(times))
    20.0
    """
    started = clock()
    warm_up = next(pieces, None)
    first = now = clock()
    end, amounts = started + seconds, list[float]()
    for amount in pieces:
        amounts.append(amount)
        before, now = now, clock()
        # 2 * now - before: the time at which the next piece would end.
        if len(amounts) >= least and 2 * now - before > (end if len(amounts) >= enough else max(end, first + _OVERTIME_S)):
            break
    if not amounts:
        return (warm_up or 0.0) / max(first - started, _LEAST_S)
    return sum(amounts) / max(now - first, _LEAST_S)


def measure_together(workers: Sequence[Iterator[float]], seconds: float, clock: Clock = perf_counter) -> float:
    """Return the work per second of all `workers` together. Each worker has its own thread."""
    with ThreadPoolExecutor(len(workers)) as pool:
        return sum(pool.map(lambda pieces: measure_rate(pieces, seconds, clock), workers))


def measure_processes(
    batches: Iterator[T], amount: Callable[[T], float], num_processes: int, seconds: float, clock: Clock = perf_counter
) -> float:
    """Measure the work per second of the processes of a DataLoader. At least one batch for each process counts. Fast processes are measured with more
    batches, because batches arrive in bursts.

    Args: batches: the batches of all processes; the first batch that is taken starts the processes. amount: returns the work of a batch.
    """
    started, first = clock(), None
    for _ in range(_READ_AHEAD * num_processes):
        # While the last processes start, the first processes already make batches. These batches arrive at once, so they do not count.
        next(batches, None)
        first = clock() if first is None else first
        if clock() > max(started + seconds, first + _OVERTIME_S):
            break
    left_s = max(0.0, started + seconds - clock())
    return measure_rate(map(amount, batches), left_s, clock, least=num_processes, enough=_BATCHES * num_processes)


class ValueStore(Protocol):
    """A store that could hold the values of a cache."""

    def get(self, keys: Int64Array) -> Sequence[object]:
        """Return the values of `keys`, int64 (n,), in this order, ready for use; None for a missing value."""

    def put(self, keys: Int64Array, values: Sequence[object]) -> BoolArray:
        """Store a value for each of `keys`, int64 (n,). A new value replaces the earlier value of its key. Returns: bool (n,): whether each value was
        stored."""


@dataclass(frozen=True, slots=True)
class StoreRates:
    """Write rate of a store for one process, and read rate for all workers of a training together."""

    write_bytes_per_s: float
    read_bytes_per_s: float


def measure_writing(
    store: ValueStore, values: Sequence[object], mean_bytes: float, batch_size: int, seconds: float, clock: Clock = perf_counter
) -> float:
    """Write each of `values` at least once, batch by batch, and repeat this while there is time. Returns bytes/s.

    Args: values: at least one, stored under the keys 0, 1, … mean_bytes: mean size of a value in the store.
    Raises: UnavailableError: the store has kept fewer than half of the values.
    """
    places = np.array_split(np.arange(len(values)), -(-len(values) // batch_size))
    kept = np.zeros(len(values), np.bool_)

    def writes() -> Iterator[float]:
        for keys in cycle(places):
            kept[keys] = store.put(keys, [values[key] for key in keys.tolist()])
            yield float(mean_bytes * np.count_nonzero(kept[keys]))

    rate = measure_rate(writes(), seconds, clock, least=len(places) - 1)
    # A store that keeps few of the values would make the measured rate meaningless.
    if 2 * (num_kept := np.count_nonzero(kept)) < len(values):
        raise UnavailableError(
            f"of {len(values)} values {num_kept} were kept: the store has no room for {len(values) * mean_bytes:,.0f} bytes, or was "
            "too slow; give it more memory, and measure again"
        )
    return rate


def read_batches(store: ValueStore, num_values: int, batch_size: int) -> Iterator[int]:
    """Read the values of `measure_writing` batch by batch, endlessly, in random order. Yields the number of found values of each batch.

    Raises: UnavailableError: no value of a batch was found.
    """
    random = np.random.default_rng(0)
    for keys in cycle(np.array_split(np.arange(num_values), -(-num_values // batch_size))):
        num_found = sum(value is not None for value in store.get(random.permutation(keys)))
        if not num_found:
            raise UnavailableError(
                f"of {len(keys)} values that were just stored none was found: the store is cleared meanwhile, or was too slow; measure again"
            )
        yield num_found
