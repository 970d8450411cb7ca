"""The drift metric MeanDistanceDriftMetric."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from modyn.config.base import Section
from modyn.evaluator.drift.base import Drift, DriftMetric, column_means

if TYPE_CHECKING:
    import torch


class MeanDistanceConfig(Section):
    """Options of MeanDistanceDriftMetric."""

    distance: Literal["euclidean", "cosine"] = Field("euclidean", description="between the means of both sets")


class MeanDistanceDriftMetric(DriftMetric):
    """The distance between the means of both sets: |a - b|, or 1 - cos(a, b). It sees no other change of a distribution."""

    Config: ClassVar[type[Section]] = MeanDistanceConfig
    in_unit_interval = False
    min_samples = 1
    has_test = False
    centred = False

    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """See `DriftMetric.compare`; the cosine with a mean of 0 counts as 0, that of two such means as 1."""
        a, b = column_means(reference), column_means(current)
        if self.config.distance == "euclidean":
            return Drift(float((a - b).norm()))
        norms = a.norm(), b.norm()
        if min(norms) == 0:
            return Drift(0.0 if max(norms) == 0 else 1.0)
        return Drift(max(0.0, 1 - float((a / norms[0]) @ (b / norms[1]))))
