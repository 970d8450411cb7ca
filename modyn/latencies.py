"""Histograms of latencies with fixed buckets, so that histograms of several servers, versions and times can be added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from modyn.records import Float64Array

_SHIFT: Final = 49
"""Number of dropped bits of a float64. The rest is the bucket: sign, exponent and 3 bits of the mantissa, so each power of two has eight buckets."""
MAX_BUCKET: Final = int(np.array(np.inf).view(np.int64)) >> _SHIFT
"""Upper bound of the bucket numbers."""


def histogram(seconds: Float64Array) -> dict[int, int]:
    """Count latencies by bucket, in ascending order of buckets. Args: seconds: float64 (n,), finite and at least 0.

    >>> histogram(np.array([0.25, 0.26, 1.0]))
    {8168: 2, 8184: 1}
    """
    buckets, counts = np.unique(np.asarray(seconds, np.float64).view(np.int64) >> _SHIFT, return_counts=True)
    return dict(zip(buckets.tolist(), counts.tolist(), strict=True))


def merged(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Add up histograms, in any order.

    >>> merged([{8184: 1}, {8168: 2, 8184: 1}])
    {8168: 2, 8184: 2}
    """
    total = Counter[int]()
    for counts in histograms:
        total.update(counts)
    return dict(sorted(total.items()))


def quantile(counts: Mapping[int, int], share: float) -> float:
    """Return the seconds within which a share of the requests were answered. The result is the middle of a bucket, so its relative error is at most
    1/16. NaN: there are no requests.

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
