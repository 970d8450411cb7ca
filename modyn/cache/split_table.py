"""The splits of a cache that a user compares: the best, those with one form, the one in use, and no cache."""

from __future__ import annotations

from dataclasses import dataclass

from modyn.cache.performance_model import PURE, Split, SplitPredictions
from modyn.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class ComparedSplit:
    """What one way to use a cache is predicted to reach."""

    name: str
    split: str
    """As `Split` is written; empty: no cache."""
    samples_per_s: float
    regret: float
    """Which part of the best split's throughput it misses; below 0 where no cache is better than the best split."""


def compare_splits(predictions: SplitPredictions, today: Split | None = None) -> list[ComparedSplit]:
    """The best split, each pure one, the one in use if there is one, and no cache."""
    named = {"best": predictions.best, **dict(zip(("encoded", "decoded", "augmented"), PURE, strict=True))}
    named |= {} if today is None else {"today": today}
    without = predictions.without_cache_samples_per_s
    return [
        *(ComparedSplit(name, str(split), predictions.of(split), predictions.regret(split)) for name, split in named.items()),
        ComparedSplit("no cache", "", without, 1 - without / predictions.best_samples_per_s),
    ]


def check_cache_size(size_bytes: int, memory_bytes: int, sample_bytes: float) -> None:
    """Check that a cache of this size can be made and holds anything.

    Args: memory_bytes: of the machine. sample_bytes: of an encoded sample, the smallest form as a rule.
    Raises: InvalidArgumentError: it cannot, or holds no sample.
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
