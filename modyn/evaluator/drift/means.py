"""The drift metric MeanDistanceDriftMetric."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from modyn.config.base import Section
from modyn.evaluator.drift.base import NEVER_NEGATIVE, Drift, DriftMetric, column_means

if TYPE_CHECKING:
    import torch


class MeanDistanceConfig(Section):
    """Options of MeanDistanceDriftMetric."""

    distance: Literal["euclidean", "cosine"] = Field("euclidean", description="distance between the means of both sets")


class MeanDistanceDriftMetric(DriftMetric):
    """The distance between the means of both sets: |a - b|, or 1 - cos(a, b). The metric detects no other change of a distribution.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = MeanDistanceDriftMetric(MeanDistanceConfig())
    >>> drift = compare(metric, torch.arange(20.0), torch.arange(20.0) + 10)
    >>> round(drift.distance, 3)
    10.0
    """

    Config: ClassVar[type[Section]] = MeanDistanceConfig
    distance_range = NEVER_NEGATIVE
    min_samples = 1
    has_test = False
    centred = False

    @classmethod
    def range_of(cls, config: Section) -> tuple[float, float] | None:
        """See `DriftMetric.range_of`."""
        assert isinstance(config, MeanDistanceConfig)
        return (0, 2) if config.distance == "cosine" else cls.distance_range

    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """See `DriftMetric.compare`. The cosine with a zero mean counts as 0; the cosine of two zero means counts as 1."""
        a, b = column_means(reference), column_means(current)
        if self.config.distance == "euclidean":
            return Drift(float((a - b).norm()))
        norms = a.norm(), b.norm()
        if min(norms) == 0:
            return Drift(0.0 if max(norms) == 0 else 1.0)
        return Drift(max(0.0, 1 - float((a / norms[0]) @ (b / norms[1]))))
