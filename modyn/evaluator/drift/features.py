"""Drift metrics that compare one feature at a time, and the reduction of all features' results to one result."""

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
"""Number of features that are compared together. A test of a feature needs many times the memory of the feature."""

BIN_SAMPLES: Final = 5
"""Smallest average number of samples of either set in a bin. With fewer samples, histograms of the same distribution differ by chance."""


class FeatureConfig(Section):
    """Options of metrics that compare one feature at a time."""

    reduction: Literal["mean", "max"] = Field(
        "mean", description="the distance is the mean or the maximum of the distances of features"
    )


class FeatureTestConfig(FeatureConfig):
    """Options of tests of one feature at a time."""

    correction: Literal["bonferroni", "fdr"] = Field(
        "bonferroni",
        description="combination of the p-values of d tests: `bonferroni` takes d times the smallest p-value, `fdr` the smallest adjusted one "
        "(Benjamini-Hochberg)",
    )


class FeatureMetric(DriftMetric):
    """A metric that compares one feature at a time, and reduces the distances of all features to one distance and the p-values to one p-value."""

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
        """Measure each of d features.

        Args: see `DriftMetric.compare`.
        Returns: distances (d,), and p-values (d,); the p-values are None if the metric has no test.
        """


def combined(p_values: Floats, correction: str) -> float:
    """Combine the p-values of all features into one, for the hypothesis that no feature has drifted.

    Args: correction: `bonferroni`: d · min p. `fdr`: min over k of d/k · p₍ₖ₎ (Benjamini and Hochberg 1995, as a global test: Simes 1986).

    >>> float(combined(np.array([0.01, 0.02]), "bonferroni")), float(combined(np.array([0.011, 0.02]), "fdr"))
    (0.02, 0.02)
    """
    d = len(p_values)
    if correction == "bonferroni":
        return min(1.0, d * float(p_values.min()))
    return min(1.0, float((np.sort(p_values) * d / np.arange(1, d + 1)).min()))


def shares(reference: Floats, current: Floats, num_bins: int) -> tuple[Floats, Floats]:
    """Return the share of each set in each bin of one feature: two arrays whose sums are 1.

    The edges are quantiles of the reference, so that each bin contains an equal share of the reference; the outer bins are open. If the smaller set
    has less than `BIN_SAMPLES` samples for each bin, there are fewer than `num_bins` bins, but at least two. A feature with repeated values, such as
    a label, is compared as a category. Values are repeated if the reference has at most `num_bins` distinct values, and each value occurs twice or
    more on average. Then every value that occurs more than once has its own bin, and all other values share one bin.

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
