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

    Bins hold equal shares of the reference, by its quantiles, and the outer ones are open. A feature with at most `num_bins` distinct
    values in the reference has a bin for each of them, and one for all other values: so a label is compared as a category.

    Args: reference: (n,). current: (m,).
    """
    values = np.unique(reference)
    if len(values) <= num_bins:
        bins = [np.where(np.isin(part, values), np.searchsorted(values, part), len(values)) for part in (reference, current)]
        count = len(values) + 1
    else:
        edges = np.unique(np.quantile(reference, np.linspace(0, 1, num_bins + 1)[1:-1]))
        bins = [np.searchsorted(edges, part, side="right") for part in (reference, current)]
        count = len(edges) + 1
    p, q = (np.bincount(part, minlength=count) / len(part) for part in bins)
    return p, q
