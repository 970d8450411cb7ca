"""Drift metrics that compare one feature at a time, and how their results become one."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from modyn.config.base import Section
from modyn.evaluator.drift.base import Drift, DriftMetric

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.floating[Any]]

NUM_COLUMNS: Final = 16
"""Features that are compared at once: a test of a feature takes many times its memory."""

BIN_SAMPLES: Final = 5
"""Samples of either set that a bin has at least, in the mean: with fewer, the histograms of one distribution differ by chance."""


class FeatureConfig(Section):
    """Options of metrics that compare one feature at a time."""

    reduction: Literal["mean", "max"] = Field(
        "mean", description="the distance is the mean, or the largest, of the features' distances"
    )


class FeatureTestConfig(FeatureConfig):
    """Options of tests of one feature at a time."""

    correction: Literal["bonferroni", "fdr"] = Field(
        "bonferroni",
        description="how the p-values of d tests become one: d · the least, or Benjamini-Hochberg's least adjusted one",
    )


class FeatureMetric(DriftMetric):
    """Compares one feature at a time, and reduces the features' distances to one number and their p-values to one."""

    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """See `DriftMetric.compare`."""
        found = [
            self.compare_features(*(part[:, first : first + NUM_COLUMNS].cpu().numpy() for part in (reference, current)))
            for first in range(0, reference.shape[1], NUM_COLUMNS)
        ]
        distances = np.concatenate([of_block for of_block, _ in found])
        of_tests = [p_values for _, p_values in found if p_values is not None]
        distance = distances.max() if self.config.reduction == "max" else distances.mean()
        return Drift(float(distance), combined(np.concatenate(of_tests), self.config.correction) if of_tests else None)

    @abstractmethod
    def compare_features(self, reference: Floats, current: Floats) -> tuple[Floats, Floats | None]:
        """Measure each of d features. Args: as of `DriftMetric.compare`. Returns: distances (d,) and p-values (d,), None: it has no test."""


def combined(p_values: Floats, correction: str) -> float:
    """One p-value for the hypothesis that no feature has drifted.

    Args: correction: `bonferroni`: d · min p. `fdr`: min over k of d/k · p₍ₖ₎ (Benjamini and Hochberg 1995, as a global test: Simes 1986).

    >>> float(combined(np.array([0.01, 0.02]), "bonferroni")), float(combined(np.array([0.011, 0.02]), "fdr"))
    (0.02, 0.02)
    """
    d = len(p_values)
    if correction == "bonferroni":
        return min(1.0, d * float(p_values.min()))
    return min(1.0, float((np.sort(p_values) * d / np.arange(1, d + 1)).min()))


def shares(reference: Floats, current: Floats, num_bins: int) -> tuple[Floats, Floats]:
    """The share of each set in each bin of one feature: two arrays that each add up to 1.

    Bins hold equal shares of the reference, by its quantiles, and the outer ones are open. There are fewer than `num_bins` where the smaller
    set has less than `BIN_SAMPLES` samples a bin, and at least two. A feature whose values repeat, as labels do, is compared as a category:
    if the reference has at most `num_bins` distinct values, and on average each of them twice, those that occur more than once have a bin
    each, and all others share one.

    Args: reference: (n,). current: (m,).
    """
    values, counts = np.unique(reference, return_counts=True)
    if len(values) <= min(num_bins, len(reference) / 2):
        values = values[counts > 1]
        bins = [np.where(np.isin(part, values), np.searchsorted(values, part), len(values)) for part in (reference, current)]
        count = len(values) + 1
    else:
        num_bins = max(2, min(num_bins, len(reference) // BIN_SAMPLES, len(current) // BIN_SAMPLES))
        edges = np.unique(np.quantile(reference, np.linspace(0, 1, num_bins + 1)[1:-1]))
        bins = [np.searchsorted(edges, part, side="right") for part in (reference, current)]
        count = len(edges) + 1
    p, q = (np.bincount(part, minlength=count) / len(part) for part in bins)
    return p, q
