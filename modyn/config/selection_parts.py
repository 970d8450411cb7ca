"""Parts of sections `selection_strategy` that several services use: the options `ratio` and `ratio_max` of presampling and downsampling, how each of
them rounds, and warnings about policies that may choose badly without an error.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field, ValidationInfo, field_validator

from modyn.config.base import Section

RHO_LOSS_FIRST: Final = (
    "the samples with the largest reducible losses are chosen once for a whole period, although these losses fall with its "
    "first steps; this cost 12 points of accuracy in an experiment (0.82 instead of 0.94): set sample_then_batch: false, as "
    "in its paper, or choose GradNorm or RS2"
)
"""Warning about RHOLoss with `sample_then_batch`."""
GDUMB_FULL: Final = (
    "when each class has its share of buffer_size, GDumb takes no more samples of these classes, so each trigger trains on the "
    "same samples. Choose ClassBalancedReservoir, which continues to take new samples at equal shares, or Reservoir"
)
"""Warning about GDumb."""


class RatioConfig(Section):
    """Options of a policy that keeps a share of the samples."""

    ratio_max: int = Field(100, ge=1, description="denominator of `ratio`")
    ratio: int = Field(ge=1, description="share of the samples to keep, in units of 1 / `ratio_max`")

    @field_validator("ratio")
    @classmethod
    def _is_a_share(cls, value: int, info: ValidationInfo) -> int:
        if value > info.data.get("ratio_max", value):
            raise ValueError(f"{value} is more than the whole; it must be at most ratio_max, {info.data['ratio_max']}")
        return value


def presampled_size(num_samples: int, ratio: int, ratio_max: int) -> int:
    """Return num_samples · ratio / ratio_max, rounded down, but at least 1 for a window that is not empty.

    >>> [presampled_size(n, 30, 100) for n in (0, 1, 3, 4, 10)]
    [0, 1, 1, 1, 3]
    """
    return max(num_samples * ratio // ratio_max, min(num_samples, 1))


def downsampled_size(num_samples: int, ratio: int, ratio_max: int) -> int:
    """Return num_samples · ratio / ratio_max, rounded to the nearest integer, but at least 1 for a trigger set that is not empty.

    >>> [downsampled_size(n, 30, 100) for n in (0, 1, 5, 1000)]
    [0, 1, 2, 300]
    """
    return min(num_samples, max(1, (2 * num_samples * ratio + ratio_max) // (2 * ratio_max)))
