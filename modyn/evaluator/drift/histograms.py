"""The drift metrics HellingerDriftMetric, JensenShannonDriftMetric and PSIDriftMetric: distances between histograms of each feature."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from pydantic import Field

from modyn.config.base import Section
from modyn.evaluator.drift.features import FeatureConfig, FeatureMetric, Floats, shares


class HistogramConfig(FeatureConfig):
    """Options of metrics that compare histograms."""

    num_bins: int = Field(
        10,
        ge=2,
        le=10_000,
        description="bins of each feature at most, with equal shares of the reference: fewer where a set has less than 5 samples a bin; "
        "repeated values, at most so many, are categories",
    )


class _HistogramMetric(FeatureMetric):
    Config: ClassVar[type[Section]] = HistogramConfig
    has_test = False
    centred = False
    by_rank = True

    @classmethod
    def blind_to_classes(cls, config: Section) -> str:
        """See `DriftMetric.blind_to_classes`."""
        assert isinstance(config, HistogramConfig)
        if config.num_bins != HistogramConfig.model_fields["num_bins"].default:
            return ""
        return f"of more than num_bins = {config.num_bins} classes it puts neighbours into one bin (write as many as there are classes)"

    def compare_features(self, reference: Floats, current: Floats) -> tuple[Floats, Floats | None]:
        """See `FeatureMetric.compare_features`."""
        columns = zip(reference.T, current.T, strict=True)
        return np.array([self._distance(*shares(r, c, self.config.num_bins), len(r), len(c)) for r, c in columns]), None

    @abstractmethod
    def _distance(self, p: Floats, q: Floats, n: int, m: int) -> float:
        """Between the shares of n reference samples and m current ones in each bin."""


class HellingerDriftMetric(_HistogramMetric):
    """The Hellinger distance of each feature, sqrt(Σ (√p - √q)² / 2), in [0, 1]."""

    in_unit_interval = True

    def _distance(self, p: Floats, q: Floats, n: int, m: int) -> float:
        return float(np.sqrt(np.square(np.sqrt(p) - np.sqrt(q)).sum() / 2))


class JensenShannonDriftMetric(_HistogramMetric):
    """The Jensen-Shannon distance of each feature, to the base 2, in [0, 1]: the root of the mean relative entropy to (p + q) / 2."""

    in_unit_interval = True

    def _distance(self, p: Floats, q: Floats, n: int, m: int) -> float:
        middle = (p + q) / 2
        entropy = sum(float((part[part > 0] * np.log2(part[part > 0] / middle[part > 0])).sum()) for part in (p, q))
        return float(np.sqrt(max(entropy, 0.0) / 2))


class PSIDriftMetric(_HistogramMetric):
    """The population stability index of each feature, Σ (q - p) ln(q / p). By custom, 0.1 is noticeable and 0.25 large.

    Half a sample is added to each bin, so that an empty one does not make it infinite.
    """

    in_unit_interval = False

    def _distance(self, p: Floats, q: Floats, n: int, m: int) -> float:
        p, q = ((part * count + 0.5) / (count + 0.5 * len(part)) for part, count in ((p, n), (q, m)))
        return float(((q - p) * np.log(q / p)).sum())
