"""Which cache and which split `split: auto` comes to, and when it is planned again. Pure functions over the performance model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from modyn.cache.performance_model import CacheStore, Split, SplitPredictions, Workload, predict, storage_limits

LEAST_GAIN: Final = 0.03
"""A cache that is predicted to bring a smaller part than this more than no cache does not pay, nor does another cache than the first by as much.
Chosen, and not measured: what asking a cache costs is known when there is one."""
MOST_CHANGE: Final = 0.2
"""A split is planned again when a value has changed by a larger part than this."""

Record = TypeVar("Record", Workload, CacheStore)


@dataclass(frozen=True, slots=True)
class CachePlan:
    """What `split: auto` comes to."""

    cache: str | None
    """Name of the cache to use; None: no cache pays."""
    split: Split | None
    """Of that cache."""
    samples_per_s: float
    """Predicted throughput with it."""
    without_cache_samples_per_s: float
    """Predicted throughput without any."""
    reason: str
    """In sentences for users."""
    predictions: Mapping[str, SplitPredictions] = field(default_factory=dict, repr=False)
    """Of all splits of each cache that was planned for, by name."""


def plan_cache(
    workload: Workload,
    caches: Mapping[str, CacheStore],
    num_trainings: int | None = None,
    least_gain: float = LEAST_GAIN,
    *,
    num_values_in_step: int = 0,
    by_times: bool = False,
) -> CachePlan:
    """Choose a cache, with its best split: the first, unless it does not pay or another is predicted to bring the part `least_gain` more, for what is
    about as good is no reason to leave the store in which others look for the same samples. None where no cache brings that more than storage.

    Args: caches: by name, the one to take where they are alike first. num_trainings, num_values_in_step, by_times: as of
    `predict`.
    """
    limits = storage_limits(workload, None)
    slowest = min(limits, key=lambda name: limits[name])
    without = limits[slowest]
    found = {
        name: predict(workload, cache, num_trainings, num_values_in_step=num_values_in_step, by_times=by_times)
        for name, cache in caches.items()
    }
    if not found:
        return CachePlan(None, None, without, without, "There is no cache to plan.")
    reached = {name: predictions.best_samples_per_s for name, predictions in found.items()}
    paying = [name for name in found if reached[name] / without - 1 >= least_gain]
    name = paying[0] if paying else max(reached, key=lambda other: reached[other])
    for other in paying:
        if reached[other] / reached[name] - 1 >= least_gain:
            name = other
    best, gain = found[name], reached[name] / without - 1
    numbers = f"{best.best} of {name} would reach {reached[name]:,.0f} samples/s, and no cache reaches {without:,.0f}"
    limited = f"which {slowest} limits"
    if not paying:
        reason = f"No cache pays: {numbers}, {limited}; less than {least_gain:.0%} is gained."
        return CachePlan(None, None, without, without, reason, found)
    others = "".join(f" {other} would reach {reached[other]:,.0f}." for other in paying if other != name)
    reason = f"A cache pays: {numbers}, {limited}; {gain:.0%} is gained.{others}"
    return CachePlan(name, best.best, best.of(best.best), without, reason, found)


class ParameterChange(NamedTuple):
    """A value that differs from the one that was planned with."""

    name: str
    planned: float
    measured: float


def changes(planned: Record, measured: Record, most: float = MOST_CHANGE) -> list[ParameterChange]:
    """Name what differs by a part of more than `most` from what was planned with: if there is anything, the split is planned again.

    Sizes count like rates, for a dataset grows and its samples change.
    """
    after = dict(_values(measured))
    return [
        ParameterChange(name, value, after[name])
        for name, value in _values(planned)
        if value != after[name] and (value == 0 or not 1 - most <= after[name] / value <= 1 + most)
    ]


def _values(record: Any) -> Iterator[tuple[str, float]]:
    """Names and values of a record and of those inside it."""
    for each in dataclasses.fields(record):
        value = getattr(record, each.name)
        if dataclasses.is_dataclass(value):
            yield from _values(value)
        else:
            yield each.name, float(value)
