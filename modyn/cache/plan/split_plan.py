"""Choose the cache and the split for `split: auto`, and decide when to plan again. Pure functions over the performance model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from modyn.cache.plan.performance_model import PURE, CacheStore, Split, SplitPredictions, Workload, predict, storage_limits
from modyn.errors import InvalidArgumentError

LEAST_GAIN: Final = 0.03
"""Smallest predicted relative gain for which a cache is used, or for which a later cache replaces an earlier one in the list. The value is a choice,
because the cost of cache requests can be measured only when the cache exists."""
MOST_CHANGE: Final = 0.2
"""Largest relative change of a value for which a split is kept. After a larger change, the split is planned again."""

Record = TypeVar("Record", Workload, CacheStore)


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Result of `split: auto`."""

    cache: str | None
    """Name of the cache to use; None: no cache pays."""
    split: Split | None
    """Split of that cache."""
    samples_per_s: float
    """Predicted throughput with this cache."""
    without_cache_samples_per_s: float
    """Predicted throughput without a cache."""
    reason: str
    """Sentences for users."""
    predictions: Mapping[str, SplitPredictions] = field(default_factory=dict, repr=False)
    """Predictions of all splits, by name of the cache."""


def plan_cache(
    workload: Workload,
    caches: Mapping[str, CacheStore],
    num_trainings: int | None = None,
    least_gain: float = LEAST_GAIN,
    *,
    num_values_in_step: int = 0,
    by_times: bool = False,
) -> CachePlan:
    """Choose a cache, with its best split.

    A cache pays if its predicted throughput exceeds the throughput of storage alone by at least the fraction `least_gain`. The first cache that pays
    is chosen, unless another cache is faster by `least_gain`. For a smaller gain, the first cache is better, because trainings share samples only in
    the same store. If no cache pays, no cache is chosen.

    Args: caches: name → cache, the preferred one first. num_trainings, num_values_in_step, by_times: see `predict`.
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
    # A later cache replaces the chosen one only if it is clearly faster.
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
    """A value that differs from the value that the plan used."""

    name: str
    planned: float
    measured: float


def changes(planned: Record, measured: Record, most: float = MOST_CHANGE) -> list[ParameterChange]:
    """Return the values that differ from the planned values by more than the fraction `most`. After such a change, the split is planned again.

    Changes of sizes count like changes of rates, because a dataset grows and its samples change.
    """
    after = dict(_values(measured))
    return [
        ParameterChange(name, value, after[name])
        for name, value in _values(planned)
        # Each change from 0 counts, because it has no ratio.
        if value != after[name] and (value == 0 or not 1 - most <= after[name] / value <= 1 + most)
    ]


def _values(record: Any) -> Iterator[tuple[str, float]]:
    """Yield the names and numbers of a record's fields, including the fields of nested records."""
    for each in dataclasses.fields(record):
        value = getattr(record, each.name)
        if dataclasses.is_dataclass(value):
            yield from _values(value)
        else:
            yield each.name, float(value)


@dataclass(frozen=True, slots=True)
class ComparedSplit:
    """Prediction for one split, or for no cache."""

    name: str
    split: str
    """Text of the `Split`; empty: no cache."""
    samples_per_s: float
    regret: float
    """Relative loss of throughput against the best split; negative if no cache is better than the best split."""


def compare_splits(predictions: SplitPredictions, today: Split | None = None) -> list[ComparedSplit]:
    """Return rows for the best split, each pure split, the split in use (`today`) if there is one, and no cache."""
    named = {"best": predictions.best, **dict(zip(("encoded", "decoded", "augmented"), PURE, strict=True))}
    named |= {} if today is None else {"today": today}
    without = predictions.without_cache_samples_per_s
    return [
        *(ComparedSplit(name, str(split), predictions.of(split), predictions.regret(split)) for name, split in named.items()),
        ComparedSplit("no cache", "", without, 1 - without / predictions.best_samples_per_s),
    ]


def check_cache_size(size_bytes: int, memory_bytes: int, sample_bytes: float) -> None:
    """Check that a cache of this size can exist and holds at least one sample.

    Args: memory_bytes: memory of the machine. sample_bytes: size of an encoded sample, usually the smallest form. Raises: InvalidArgumentError:
    the cache is too large, or holds no sample.
    """
    if size_bytes > memory_bytes:
        raise InvalidArgumentError(
            f"a cache of {size_bytes:,} bytes is larger than the memory of this machine, {memory_bytes:,} bytes; give less, and leave room for "
            "trainings"
        )
    if size_bytes < sample_bytes:
        raise InvalidArgumentError(
            f"a cache of {size_bytes:,} bytes holds no sample: one has {sample_bytes:,.0f} bytes as stored; give more, for example 2GB"
        )
