"""The drift metric ChiSquaredDriftMetric."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from modyn.config.base import Section
from modyn.evaluator.drift.features import FeatureMetric, FeatureTestConfig, Floats


class ChiSquaredDriftMetric(FeatureMetric):
    """Pearson's chi-squared test of each feature as a category, for labels. The distance is Cramér's V = sqrt(χ² / (n + m)), in [0, 1].

    By `scipy.stats.chi2_contingency`, without Yates's correction. Every distinct value is a category.
    """

    Config: ClassVar[type[Section]] = FeatureTestConfig
    in_unit_interval = True
    needs = ("scipy",)
    centred = False
    by_rank = True

    def compare_features(self, reference: Floats, current: Floats) -> tuple[Floats, Floats | None]:
        """See `FeatureMetric.compare_features`."""
        found = np.array([self._test(r, c) for r, c in zip(reference.T, current.T, strict=True)])
        return found[:, 0], found[:, 1]

    def _test(self, reference: Floats, current: Floats) -> tuple[float, float]:
        from scipy.stats import chi2_contingency

        values, category = np.unique(np.concatenate([reference, current]), return_inverse=True)
        if len(values) == 1:
            return 0.0, 1.0
        counts = [np.bincount(part, minlength=len(values)) for part in np.split(category, [len(reference)])]
        test = chi2_contingency(np.stack(counts), correction=False)
        return float(np.sqrt(test.statistic / len(category))), float(test.pvalue)
