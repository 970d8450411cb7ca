"""The drift metric CVMDriftMetric."""

from __future__ import annotations

from typing import ClassVar

from modyn.config.base import Section
from modyn.evaluator.drift.features import FeatureMetric, FeatureTestConfig, Floats


class CVMDriftMetric(FeatureMetric):
    """The Cramér-von Mises statistic of each feature: the squared difference between the two empirical distribution functions, summed.

    By `scipy.stats.cramervonmises_2samp`.
    """

    Config: ClassVar[type[Section]] = FeatureTestConfig
    in_unit_interval = False
    needs = ("scipy",)
    centred = False
    by_rank = True

    def compare_features(self, reference: Floats, current: Floats) -> tuple[Floats, Floats | None]:
        """See `FeatureMetric.compare_features`."""
        from scipy.stats import cramervonmises_2samp

        found = cramervonmises_2samp(reference, current, axis=0)
        return found.statistic, found.pvalue
