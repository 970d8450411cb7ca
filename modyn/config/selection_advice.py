"""Warnings about selection policies that may choose badly without an error, for `modyn check` and the views of the choices of policies."""

from __future__ import annotations

from typing import Final

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
