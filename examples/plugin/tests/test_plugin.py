"""Run the checks of Modyn's own policies on the policies of this package."""

from __future__ import annotations

import pytest
import torch
from modyn_example_plugin.label_shift import LabelShiftTrigger
from modyn_example_plugin.median_distance import MedianDistance, MedianDistanceConfig

from modyn.evaluator.drift import compare
from modyn.testing.checks import check_trigger


def test_the_trigger_keeps_the_rules() -> None:
    check_trigger(LabelShiftTrigger, {"window": 10, "distance": 0.2})


def test_the_distance_is_that_of_the_medians() -> None:
    reference = torch.tensor([[0.0, 0.0], [1.0, 1.0], [200.0, 2.0]])
    for norm, expected in (("l1", 7.0), ("l2", 5.0)):
        metric = MedianDistance(MedianDistanceConfig(norm=norm))
        assert compare(metric, reference, reference + torch.tensor([3.0, -4.0])).distance == pytest.approx(expected, rel=1e-5)
