"""Number of samples that a check needs to see a rare class, by the binomial distribution and the power of the chi-squared test.

Prints the table of docs/how-to/rare-classes.md. All windows are of equal size; the other classes, `OTHERS` of them, share the rest equally.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from scipy import stats

SHARES: Final = (0.1, 0.03, 0.01, 0.003, 0.001)
OTHERS: Final = 9
LEVEL, POWER = 0.001, 0.9
"""False alarms of one check, and the probability that a change is found."""
RIGHT, FALLEN = 0.9, 0.5
"""The share of right answers of the rare class before and after a change; those of the other classes do not change."""
HEADER: Final = (
    "| share of the class | one sample (95 %) | own cell | share doubles | class vanishes | recall falls, recall watched | recall falls, "
    "accuracy watched |\n|---|---|---|---|---|---|---|"
)


def samples_to_hold_one(share: float) -> int:
    """The size of a window that holds a sample of the class with a probability of 95 %.

    >>> samples_to_hold_one(0.01)
    299
    """
    return math.ceil(math.log(0.05) / math.log1p(-share))


def samples_for_shares(share: float, later: float) -> int:
    """The size of both windows of which the chi-squared test finds that the share of the class has changed."""
    reference, current = (np.array([part, *[(1 - part) / OTHERS] * OTHERS]) for part in (share, later))
    effect = float((np.square(reference - current) / (reference + current)).sum())  # χ² = n · effect, in the mean

    def power(size: int) -> float:
        return float(stats.ncx2.sf(stats.chi2.isf(LEVEL, OTHERS), OTHERS, size * effect))

    return _first(lambda size: power(size) >= POWER)


def samples_for_recall(share: float) -> int:
    """The size of a window of which a threshold half-way finds that the recall of the class has fallen."""
    threshold = (RIGHT + FALLEN) / 2

    def decides(size: int) -> bool:
        below = math.ceil(threshold * size) - 1
        return bool(stats.binom.cdf(below, size, RIGHT) <= LEVEL and stats.binom.cdf(below, size, FALLEN) >= POWER)

    return math.ceil(_first(decides) / share)


def samples_for_accuracy(share: float) -> int:
    """The size of a window of whose accuracy the best threshold finds the same fall. By the normal approximation of the binomial distribution."""
    before, after = RIGHT, RIGHT - share * (RIGHT - FALLEN)
    deviations = stats.norm.isf(LEVEL) * math.sqrt(before * (1 - before)) + stats.norm.ppf(POWER) * math.sqrt(after * (1 - after))
    return math.ceil(float(deviations / (before - after)) ** 2)


def table() -> str:
    """Return the table in Markdown."""
    rows = [HEADER]
    for share in SHARES:
        numbers = (
            samples_to_hold_one(share),
            math.ceil(1 / share),
            samples_for_shares(share, 2 * share),
            samples_for_shares(share, 0.0),
            samples_for_recall(share),
            samples_for_accuracy(share),
        )
        rows.append(f"| {100 * share:g} % | " + " | ".join(f"{_rounded(number):,}" for number in numbers) + " |")
    return "\n".join(rows)


def main() -> None:
    """Print the table."""
    print(table())


def _first(holds: Callable[[int], bool]) -> int:
    """Return the first size, within a hundredth, from which the condition holds."""
    size = 1
    while not holds(size):
        size += max(1, size // 100)
    return size


def _rounded(number: int) -> int:
    """Round up to two digits."""
    unit = int(10 ** max(0, len(str(number)) - 2))
    return -(-number // unit) * unit
