"""The drift metric ChiSquaredDriftMetric."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from modyn.config.base import Section
from modyn.evaluator.drift.base import UNIT, TooFewSamplesError
from modyn.evaluator.drift.features import FeatureMetric, FeatureTestConfig, Floats
from modyn.records import Int64Array

LEAST_EXPECTED: Final = 1.0
"""Smallest expected count of the smaller set in a cell, if there is no drift. Tables of two rows need no larger count (Lewontin and Felsenstein: The
Robustness of Homogeneity Tests in 2 × N Tables, 1965)."""


class ChiSquaredDriftMetric(FeatureMetric):
    """Pearson's chi-squared test of each feature. Features must be categories, such as labels. The distance is Cramér's V = sqrt(χ² / (n + m)), in
    [0, 1].

    Every distinct value is a category with its own cell, unless the category is rare. A category is rare if the smaller set is expected to contain
    less than one sample of the category. Rare categories share one cell. If this cell still has too few samples, the next rarest category joins the
    cell. If all categories are rare, no distance is measured. The test is computed by `scipy.stats.chi2_contingency` without Yates's correction.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = ChiSquaredDriftMetric(FeatureTestConfig())
    >>> drift = compare(metric, torch.tensor([0.0, 0, 0, 1]).repeat(10), torch.tensor([0.0, 1, 1, 1]).repeat(10))
    >>> round(drift.distance, 3), round(drift.p_value, 3)
    (0.5, 0.0)
    """

    Config: ClassVar[type[Section]] = FeatureTestConfig
    distance_range = UNIT
    needs = ("scipy",)
    centred = False
    by_rank = True
    by_category = True

    def compare_features(self, reference: Floats, current: Floats) -> tuple[Floats, Floats | None]:
        """See `FeatureMetric.compare_features`. Raises: TooFewSamplesError: all categories of all features are rare."""
        found = [self._test(r, c) for r, c in zip(reference.T, current.T, strict=True)]
        measured = np.array([test for test in found if test is not None])
        if not len(measured):
            raise TooFewSamplesError(
                f"no category has enough of the {len(reference)} reference and {len(current)} current samples: use larger windows"
            )
        return measured[:, 0], measured[:, 1]

    def _test(self, reference: Floats, current: Floats) -> tuple[float, float] | None:
        from scipy.stats import chi2_contingency

        values, category = np.unique(np.concatenate([reference, current]), return_inverse=True)
        if len(values) == 1:
            return 0.0, 1.0
        counts = [np.bincount(part, minlength=len(values)) for part in np.split(category, [len(reference)])]
        cells = pooled(np.stack(counts))
        if cells.shape[1] == 1:
            return None
        test = chi2_contingency(cells, correction=False)
        return float(np.sqrt(test.statistic / len(category))), float(test.pvalue)


def pooled(counts: Int64Array) -> Int64Array:
    """Group the counts into cells: categories in ascending order of count, with all rare categories in the first cell.

    The counts of both sets together decide which categories are rare, so that pooling favours neither set.

    Args: counts: counts of both sets, at least one sample in each, int64 (2, categories). Returns: (2, cells).

    >>> pooled(np.array([[50, 1, 30, 1], [46, 0, 35, 1]])).tolist()  # the second is rare, and the fourth joins it
    [[2, 30, 50], [1, 35, 46]]
    """
    totals = counts.sum(0)
    ordered = counts[:, np.argsort(totals, kind="stable")]
    expected = np.sort(totals) * counts.sum(1).min() / totals.sum()
    num_rare = int((expected < LEAST_EXPECTED).sum())
    if not num_rare:
        return ordered
    num_pooled = max(num_rare, int(np.searchsorted(np.cumsum(expected), LEAST_EXPECTED)) + 1)
    return np.concatenate([ordered[:, :num_pooled].sum(1, keepdims=True), ordered[:, num_pooled:]], 1)
