"""What is said of selection policies that fail without an error, by `modyn check` and by what shows their choices."""

from __future__ import annotations

from typing import Final

RHO_LOSS_FIRST: Final = (
    "the largest reducible losses are chosen once and trained on for a whole period, although they fall with its first steps, which cost 12 points "
    "of accuracy where it was tried (0.82 against 0.94): set sample_then_batch: false, as in its paper, or choose GradNorm or RS2"
)
"""Warns of RHOLoss with `sample_then_batch`."""
GDUMB_FULL: Final = (
    "once each class has its share of buffer_size, GDumb takes no sample of these classes any more, however long the stream: the same ones are "
    "trained on at each trigger. Choose ClassBalancedReservoir, which goes on taking new ones at equal shares, or Reservoir"
)
"""Warns of GDumb."""
