"""A distance for drift triggers: the distance between the medians of two sets of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from modyn.config.base import Section
from modyn.evaluator.drift import Drift, DriftMetric

if TYPE_CHECKING:
    import torch


class MedianDistanceConfig(Section):
    """Options of MedianDistance."""

    norm: Literal["l1", "l2"] = Field("l2", description="of the difference between the medians of all values")


class MedianDistance(DriftMetric):
    """The norm of the difference between the medians of each value. A few outliers do not change this norm."""

    Config: ClassVar[type[Section]] = MedianDistanceConfig
    has_test = False

    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """See `DriftMetric.compare`."""
        difference = reference.median(0).values - current.median(0).values
        return Drift(float(difference.norm(1 if self.config.norm == "l1" else 2)))
