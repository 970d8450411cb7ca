"""The drift metric KSDriftMetric."""

from __future__ import annotations

import warnings
from typing import ClassVar, Literal

from pydantic import Field

from modyn.config.base import Section
from modyn.evaluator.drift.base import UNIT
from modyn.evaluator.drift.features import FeatureMetric, FeatureTestConfig, Floats


class KSConfig(FeatureTestConfig):
    """Options of KSDriftMetric."""

    alternative_hypothesis: Literal["two-sided", "greater", "less"] = Field(
        "two-sided",
        description="differences of the distribution functions that count: all, or only where the reference is above or below",
    )


class KSDriftMetric(FeatureMetric):
    """The Kolmogorov-Smirnov statistic of each feature: the largest difference between the two empirical distribution functions.

    `scipy.stats.ks_2samp` computes the test: p-values are exact for small sets, and asymptotic for larger sets.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = KSDriftMetric(KSConfig())
    >>> drift = compare(metric, torch.arange(20.0), torch.arange(20.0) + 10)
    >>> round(drift.distance, 3), round(drift.p_value, 3)
    (0.5, 0.012)
    """

    Config: ClassVar[type[Section]] = KSConfig
    distance_range = UNIT
    needs = ("scipy",)
    centred = False
    by_rank = True

    def compare_features(self, reference: Floats, current: Floats) -> tuple[Floats, Floats | None]:
        """See `FeatureMetric.compare_features`."""
        from scipy.stats import ks_2samp

        with warnings.catch_warnings():  # SciPy returns asymptotic p-values if exact p-values are not accurate enough.
            warnings.filterwarnings("ignore", "ks_2samp: Exact calculation unsuccessful", RuntimeWarning)
            found = ks_2samp(reference, current, alternative=self.config.alternative_hypothesis, axis=0)
        return found.statistic, found.pvalue
