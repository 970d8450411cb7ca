"""Histograms of latencies with fixed buckets: those of servers, versions and times add up, and the sum has quantiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from modyn.records import Float64Array

_SHIFT: Final = 49
"""A bucket is sign, exponent and 3 bits of the mantissa of float64: eight of one width for each power of two."""
MAX_BUCKET: Final = int(np.array(np.inf).view(np.int64)) >> _SHIFT
"""Buckets are below it."""


def histogram(seconds: Float64Array) -> dict[int, int]:
    """Count latencies by bucket, ascending. Args: seconds: float64 (n,), finite and at least 0.

    >>> histogram(np.array([0.25, 0.26, 1.0]))
    {8168: 2, 8184: 1}
    """
    buckets, counts = np.unique(np.asarray(seconds, np.float64).view(np.int64) >> _SHIFT, return_counts=True)
    return dict(zip(buckets.tolist(), counts.tolist(), strict=True))


def merged(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Add up histograms, whatever their order.

    >>> merged([{8184: 1}, {8168: 2, 8184: 1}])
    {8168: 2, 8184: 2}
    """
    total = Counter[int]()
    for counts in histograms:
        total.update(counts)
    return dict(sorted(total.items()))


def quantile(counts: Mapping[int, int], share: float) -> float:
    """Return the seconds within which a share of the requests were answered: the middle of a bucket, within 1/16 of the latency itself. NaN: of none.

    Args: share: in [0, 1].

    >>> quantile({8168: 2, 8184: 1}, 0.5)
    0.265625
    """
    if not counts:
        return float("nan")
    buckets = np.array(sorted(counts), np.int64)
    ends = np.cumsum([counts[bucket] for bucket in buckets.tolist()])
    at = buckets[np.searchsorted(ends, share * (ends[-1] - 1), side="right")]
    return float(((np.array([at, at + 1]) << _SHIFT).view(np.float64)).mean())
