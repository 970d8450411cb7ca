"""The checks that Modyn's own policies pass, on this package's."""

from __future__ import annotations

from modyn_example_plugin.label_shift import LabelShiftTrigger

from modyn.testing.checks import check_trigger


def test_the_trigger_keeps_the_rules() -> None:
    check_trigger(LabelShiftTrigger, {"window": 10, "distance": 0.2})
