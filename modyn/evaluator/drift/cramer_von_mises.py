"""The drift metric CVMDriftMetric."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from modyn.config.base import Section
from modyn.evaluator.drift.base import NEVER_NEGATIVE
from modyn.evaluator.drift.features import FeatureMetric, FeatureTestConfig, Floats
from modyn.records import Int64Array

EXACT_SAMPLES: Final = 20
"""Largest size of a set for exact p-values, as in SciPy by default."""


class CVMDriftMetric(FeatureMetric):
    """The Cramér-von Mises statistic of each feature: the squared difference between the two empirical distribution functions, summed.

    Statistic and p-values equal the results of `scipy.stats.cramervonmises_2samp`. P-values are exact if neither set has more than 20 samples, and
    asymptotic otherwise. The exact distribution is computed once for all features.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = CVMDriftMetric(FeatureTestConfig())
    >>> drift = compare(metric, torch.arange(20.0), torch.arange(20.0) + 10)
    >>> round(drift.distance, 3), round(drift.p_value, 3)
    (1.669, 0.0)
    """

    Config: ClassVar[type[Section]] = FeatureTestConfig
    distance_range = NEVER_NEGATIVE
    needs = ("scipy",)
    centred = False
    by_rank = True

    def compare_features(self, reference: Floats, current: Floats) -> tuple[Floats, Floats | None]:
        """See `FeatureMetric.compare_features`."""
        from scipy.stats import cramervonmises_2samp

        # SciPy sums squares of ranks in the dtype of the samples: with 50,000 samples in float32, the statistic is off by 0.5 %.
        sets = (rows.astype(np.float64) for rows in (reference, current))
        found = cramervonmises_2samp(*sets, method="asymptotic", axis=0)
        n, m = len(reference), len(current)
        return found.statistic, found.pvalue if max(n, m) > EXACT_SAMPLES else exact_p_values(found.statistic, n, m)


def exact_p_values(statistics: Floats, n: int, m: int) -> Floats:
    """Return for each statistic the share of all orders of n and m samples whose statistic is at least this large.

    Args: statistics: (d,). Ties may give a value that no order of the samples has. In this case ζ is rounded down to an integer, as in SciPy.

    >>> exact_p_values(np.array([0.375]), 2, 2).tolist()  # 2 of the 6 orders do not mix the sets
    [0.3333333333333333]
    """
    first, step, at_least = _upper_tail(min(n, m), max(n, m))
    # The statistic is ζ · nm / (lcm(n, m) (n + m))². ζ is computed as an integer, because ranks are multiples of 1/2.
    quarters = np.rint(4 * n * m * ((n + m) * statistics + (4 * n * m - 1) / 6)).astype(np.int64)
    scaled = math.lcm(n, m) ** 2 * (n + m) * (6 * quarters - 4 * n * m * (4 * n * m - 1))
    zeta = scaled // (24 * (n * m) ** 2)
    found: Floats = at_least[np.clip(-((first - zeta) // step), 0, len(at_least) - 1)]
    return found


@lru_cache(maxsize=64)
def _upper_tail(n: int, m: int) -> tuple[int, int, NDArray[np.float64]]:
    """Return the distribution of ζ: the first value, the step between values, and the probability of first + i · step or more for each i.

    An order of all samples is a path from (0, 0) to (n, m), and ζ is the sum of (a v - b u)² over its points (v, u). A swap of two neighbouring
    samples changes one point, and changes ζ by a multiple of a + b. Therefore each point has an array that counts the orders up to this point by
    their sum. (Xiao, Gordon and Yakovlev: A C++ Program for the Cramér-von Mises Two-Sample Test, J. Stat. Soft. 2006, algorithm 1.)
    """
    a, b = math.lcm(n, m) // n, math.lcm(n, m) // m
    step = a + b
    column: list[tuple[int, Int64Array]] = [(0, np.ones(1, np.int64))]
    for u in range(m + 1):
        for v in range(n + 1):
            # The counts of a point are the sums of the counts of its two previous points.
            ways = column[v - 1 : v + 1] if v else column[:1]
            lowest = min(value for value, _ in ways)
            ends = [(value - lowest) // step + len(counts) for value, counts in ways]
            total = np.zeros(max(ends), np.int64)
            for (_, counts), end in zip(ways, ends, strict=True):
                total[end - len(counts) : end] += counts
            column[v : v + 1] = [(lowest + (a * v - b * u) ** 2, total)]
    first, counts = column[n]
    return first, step, np.append(np.cumsum(counts[::-1])[::-1] / math.comb(n + m, n), 0.0)
