"""The drift metric KSDriftMetric."""

from __future__ import annotations

import warnings
from typing import ClassVar, Literal

from pydantic import Field

from modyn.config.base import Section
from modyn.evaluator.drift.features import FeatureMetric, FeatureTestConfig, Floats


class KSConfig(FeatureTestConfig):
    """Options of KSDriftMetric."""

    alternative_hypothesis: Literal["two-sided", "greater", "less"] = Field(
        "two-sided",
        description="which difference of the distribution functions counts: any, or that of the reference being above or below",
    )


class KSDriftMetric(FeatureMetric):
    """The Kolmogorov-Smirnov statistic of each feature: the largest difference between the two empirical distribution functions.

    By `scipy.stats.ks_2samp`: p-values are exact for small sets, asymptotic for larger ones.
    """

    Config: ClassVar[type[Section]] = KSConfig
    in_unit_interval = True
    needs = ("scipy",)
    centred = False
    by_rank = True

    def compare_features(self, reference: Floats, current: Floats) -> tuple[Floats, Floats | None]:
        """See `FeatureMetric.compare_features`."""
        from scipy.stats import ks_2samp

        with warnings.catch_warnings():  # where exact p-values round too far, SciPy takes asymptotic ones
            warnings.filterwarnings("ignore", "ks_2samp: Exact calculation unsuccessful", RuntimeWarning)
            found = ks_2samp(reference, current, alternative=self.config.alternative_hypothesis, axis=0)
        return found.statistic, found.pvalue
