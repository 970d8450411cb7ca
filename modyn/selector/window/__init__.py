"""What selection policies get and give: windows of a run's stream, and how samples are drawn from them."""

from modyn.selector.window.sampling import BLOCK, sample_positions
from modyn.selector.window.selection_window import (
    NO_KEYS,
    CancellableReader,
    LiveReader,
    SampleReader,
    Selection,
    SelectionContext,
    SelectionWindow,
    trigger_before_window,
    uniform,
    whole,
    window_of_trigger,
)
from modyn.selector.window.stateful_policy import StatefulPolicy

__all__ = [
    "BLOCK",
    "NO_KEYS",
    "CancellableReader",
    "LiveReader",
    "SampleReader",
    "Selection",
    "SelectionContext",
    "SelectionWindow",
    "StatefulPolicy",
    "sample_positions",
    "trigger_before_window",
    "uniform",
    "whole",
    "window_of_trigger",
]
