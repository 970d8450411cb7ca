"""How rates are measured within a budget of seconds, and the rates of what could hold a cache. By any clock: no rule here looks at the time itself.

`Budget` divides the seconds, `measure_rate` spends those of one part.
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
"""Returns seconds; never goes back."""
T = TypeVar("T")
_LEAST_S: Final = 1e-9
"""What a clock that did not move between two looks is taken to have moved."""
_READ_AHEAD: Final = 2
"""Batches that a process of a DataLoader makes ahead."""
_BATCHES: Final = 4
"""Batches of each process that are measured."""
_OVERTIME_S: Final = 1.0
"""For the batches that processes made ahead, and again for those that count, where starting them has taken all of the time."""


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


def measure_rate(pieces: Iterator[float], seconds: float, clock: Clock = perf_counter, least: int = 1, enough: int = 1) -> float:
    """How much a second the work of `pieces` does: taking one does a piece of work, and what is taken is its amount.

    The first piece warms up and does not count. Of the others at least `least` count, if there are enough, and `enough` if they take no more
    than a second; no further one begins that, as long as the one before, would end after `seconds`. A single piece counts; of none the rate is 0.

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
        if len(amounts) >= least and 2 * now - before > (end if len(amounts) >= enough else max(end, first + _OVERTIME_S)):
            break
    if not amounts:
        return (warm_up or 0.0) / max(first - started, _LEAST_S)
    return sum(amounts) / max(now - first, _LEAST_S)


def measure_together(workers: Sequence[Iterator[float]], seconds: float, clock: Clock = perf_counter) -> float:
    """What all `workers` do a second, each in a thread of its own."""
    with ThreadPoolExecutor(len(workers)) as pool:
        return sum(pool.map(lambda pieces: measure_rate(pieces, seconds, clock), workers))


def measure_processes(
    batches: Iterator[T], amount: Callable[[T], float], num_processes: int, seconds: float, clock: Clock = perf_counter
) -> float:
    """What the processes of a DataLoader do a second. A batch of each counts at least, and a few more unless they are slow: batches come in bursts.

    Args: batches: of all processes; taking the first one starts them. amount: of a batch that counts.
    """
    started, first = clock(), None
    for _ in range(_READ_AHEAD * num_processes):
        # Those that the first processes made while the last ones started have waited, and come at once.
        next(batches, None)
        first = clock() if first is None else first
        if clock() > max(started + seconds, first + _OVERTIME_S):
            break
    left_s = max(0.0, started + seconds - clock())
    return measure_rate(map(amount, batches), left_s, clock, least=num_processes, enough=_BATCHES * num_processes)


class ValueStore(Protocol):
    """What could hold the values of a cache."""

    def get(self, keys: Int64Array) -> Sequence[object]:
        """The values of `keys`, int64 (n,), in this order, made ready for use; None: it is not there."""

    def put(self, keys: Int64Array, values: Sequence[object]) -> BoolArray:
        """Keep a value for each of `keys`, int64 (n,), in place of those before. Returns: bool (n,): which were kept."""


@dataclass(frozen=True, slots=True)
class StoreRates:
    """How fast a store is written to, by one process, and read from, by all workers of a training together."""

    write_bytes_per_s: float
    read_bytes_per_s: float


def measure_writing(
    store: ValueStore, values: Sequence[object], mean_bytes: float, batch_size: int, seconds: float, clock: Clock = perf_counter
) -> float:
    """Write `values` batch by batch, again and again, each at least once. Returns bytes/s.

    Args: values: at least one, stored under the keys 0, 1, … mean_bytes: of one as the store keeps it.
    Raises: UnavailableError: the store has kept fewer than half of them.
    """
    places = np.array_split(np.arange(len(values)), -(-len(values) // batch_size))
    kept = np.zeros(len(values), np.bool_)

    def writes() -> Iterator[float]:
        for keys in cycle(places):
            kept[keys] = store.put(keys, [values[key] for key in keys.tolist()])
            yield float(mean_bytes * np.count_nonzero(kept[keys]))

    rate = measure_rate(writes(), seconds, clock, least=len(places) - 1)
    if 2 * (num_kept := np.count_nonzero(kept)) < len(values):
        raise UnavailableError(
            f"of {len(values)} values {num_kept} were kept: the store has no room for {len(values) * mean_bytes:,.0f} bytes, or was "
            "too slow; give it more memory, and measure again"
        )
    return rate


def read_batches(store: ValueStore, num_values: int, batch_size: int) -> Iterator[int]:
    """Read what `measure_writing` wrote, batch by batch without end, each in an order drawn at random. Yields how many were found.

    Raises: UnavailableError: of a batch nothing was found.
    """
    random = np.random.default_rng(0)
    for keys in cycle(np.array_split(np.arange(num_values), -(-num_values // batch_size))):
        num_found = sum(value is not None for value in store.get(random.permutation(keys)))
        if not num_found:
            raise UnavailableError(
                f"of {len(keys)} values that were just stored none was found: the store is cleared meanwhile, or was too slow; measure again"
            )
        yield num_found
