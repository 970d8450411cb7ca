"""The drift metrics HellingerDriftMetric, JensenShannonDriftMetric and PSIDriftMetric: distances between histograms of each feature."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from pydantic import Field

from modyn.config.base import Section
from modyn.evaluator.drift.base import NEVER_NEGATIVE, UNIT
from modyn.evaluator.drift.features import FeatureConfig, FeatureMetric, Floats, shares


class HistogramConfig(FeatureConfig):
    """Options of metrics that compare histograms."""

    num_bins: int = Field(
        10,
        ge=2,
        le=10_000,
        description="largest number of bins of a feature, which hold equal shares of the reference; fewer if a set has less than 5 samples for "
        "each bin. A feature with at most this number of repeated values is compared as a category",
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
        return f"it joins neighbours into one bin if there are more than num_bins = {config.num_bins} classes (set it to the number of classes)"

    def compare_features(self, reference: Floats, current: Floats) -> tuple[Floats, Floats | None]:
        """See `FeatureMetric.compare_features`."""
        columns = zip(reference.T, current.T, strict=True)
        return np.array([self._distance(*shares(r, c, self.config.num_bins), len(r), len(c)) for r, c in columns]), None

    @abstractmethod
    def _distance(self, p: Floats, q: Floats, n: int, m: int) -> float:
        """Compute the distance between the shares p and q of the samples in each bin. n, m: number of reference and of current samples."""


class HellingerDriftMetric(_HistogramMetric):
    """The Hellinger distance of each feature, sqrt(Σ (√p - √q)² / 2), in [0, 1].

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = HellingerDriftMetric(HistogramConfig(num_bins=5))
    >>> drift = compare(metric, torch.arange(20.0), torch.arange(20.0) + 10)
    >>> round(drift.distance, 3)
    0.563
    """

    distance_range = UNIT

    def _distance(self, p: Floats, q: Floats, n: int, m: int) -> float:
        return float(np.sqrt(np.square(np.sqrt(p) - np.sqrt(q)).sum() / 2))


class JensenShannonDriftMetric(_HistogramMetric):
    """The Jensen-Shannon distance of each feature, with base 2, in [0, 1]: the square root of the mean relative entropy to (p + q) / 2.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = JensenShannonDriftMetric(HistogramConfig(num_bins=5))
    >>> drift = compare(metric, torch.arange(20.0), torch.arange(20.0) + 10)
    >>> round(drift.distance, 3)
    0.587
    """

    distance_range = UNIT

    def _distance(self, p: Floats, q: Floats, n: int, m: int) -> float:
        middle = (p + q) / 2
        entropy = sum(float((part[part > 0] * np.log2(part[part > 0] / middle[part > 0])).sum()) for part in (p, q))
        return float(np.sqrt(max(entropy, 0.0) / 2))


class PSIDriftMetric(_HistogramMetric):
    """The population stability index of each feature, Σ (q - p) ln(q / p). By convention, 0.1 is a noticeable change and 0.25 is a large change. Half
    a sample is added to each bin, so that an empty bin does not make the index infinite.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = PSIDriftMetric(HistogramConfig(num_bins=5))
    >>> drift = compare(metric, torch.arange(20.0), torch.arange(20.0) + 10)
    >>> round(drift.distance, 3)
    1.561
    """

    distance_range = NEVER_NEGATIVE

    def _distance(self, p: Floats, q: Floats, n: int, m: int) -> float:
        p, q = ((part * count + 0.5) / (count + 0.5 * len(part)) for part, count in ((p, n), (q, m)))
        return float(((q - p) * np.log(q / p)).sum())
