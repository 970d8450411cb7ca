"""The drift metrics WassersteinDriftMetric and SlicedWassersteinDriftMetric."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from modyn.config.base import Section
from modyn.evaluator.drift.base import NEVER_NEGATIVE, Drift, DriftMetric
from modyn.evaluator.drift.features import NUM_COLUMNS, FeatureConfig, FeatureMetric, Floats

if TYPE_CHECKING:
    import torch


class WassersteinConfig(FeatureConfig):
    """Options of WassersteinDriftMetric."""

    normalize: bool = Field(True, description="divide the distance of each feature by its standard deviation in the reference")


class WassersteinDriftMetric(FeatureMetric):
    """The Wasserstein-1 distance of each feature: the average distance by which values of one set must move to become the other set.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = WassersteinDriftMetric(WassersteinConfig())
    >>> drift = compare(metric, torch.arange(20.0), torch.arange(20.0) + 10)
    >>> round(drift.distance, 3)
    1.734
    """

    Config: ClassVar[type[Section]] = WassersteinConfig
    distance_range = NEVER_NEGATIVE
    has_test = False

    def compare_features(self, reference: Floats, current: Floats) -> tuple[Floats, Floats | None]:
        """See `FeatureMetric.compare_features`."""
        distances = wasserstein(reference, current)
        if self.config.normalize:
            deviations = reference.std(0)
            distances = distances / np.where(deviations > 0, deviations, 1)
        return distances, None


class SlicedWassersteinConfig(Section):
    """Options of SlicedWassersteinDriftMetric."""

    num_projections: int = Field(100, ge=1, le=100_000, description="number of random directions")


class SlicedWassersteinDriftMetric(DriftMetric):
    """The mean Wasserstein-1 distance of both sets projected on random directions (Rabin and others 2011).

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = SlicedWassersteinDriftMetric(SlicedWassersteinConfig())
    >>> drift = compare(metric, torch.arange(20.0), torch.arange(20.0) + 10)
    >>> round(drift.distance, 3)
    10.0
    """

    Config: ClassVar[type[Section]] = SlicedWassersteinConfig
    distance_range = NEVER_NEGATIVE
    has_test = False

    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """See `DriftMetric.compare`."""
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        directions = torch.randn(reference.shape[1], self.config.num_projections, generator=generator)
        directions = (directions / directions.norm(dim=0)).to(reference.device)
        distances = [
            wasserstein(*((rows @ some).cpu().numpy() for rows in (reference, current)))
            for some in directions.split(NUM_COLUMNS, 1)
        ]
        return Drift(float(np.concatenate(distances).mean()))


def wasserstein(reference: Floats, current: Floats) -> Floats:
    """Return the Wasserstein-1 distance of each column, (d,): the area between the two empirical distribution functions.

    Args: reference: (n, d). current: (m, d).
    """
    rows = np.concatenate([reference, current]).astype(np.float64)
    order = np.argsort(rows, axis=0, kind="stable")
    widths = np.diff(np.take_along_axis(rows, order, 0), axis=0)
    of_reference = order[:-1] < len(reference)
    heights = np.cumsum(of_reference, 0) / len(reference) - np.cumsum(~of_reference, 0) / len(current)
    distances: Floats = (np.abs(heights) * widths).sum(0)
    return distances
