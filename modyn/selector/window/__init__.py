"""Input and output of selection policies: windows of a run's stream, and samples drawn from windows."""

from modyn.selector.window.feedback import Feedback, FeedbackFiles
from modyn.selector.window.sampling import BLOCK, sample_positions
from modyn.selector.window.selection_window import (
    NO_KEYS,
    CancellableReader,
    LiveReader,
    SampleReader,
    Selection,
    SelectionContext,
    SelectionWindow,
    StatefulPolicy,
    StreamReader,
    trigger_before_window,
    uniform,
    whole,
    window_of_trigger,
)
from modyn.selector.window.state_files import StateFiles

__all__ = [
    "BLOCK",
    "NO_KEYS",
    "CancellableReader",
    "Feedback",
    "FeedbackFiles",
    "LiveReader",
    "SampleReader",
    "Selection",
    "SelectionContext",
    "SelectionWindow",
    "StateFiles",
    "StatefulPolicy",
    "StreamReader",
    "sample_positions",
    "trigger_before_window",
    "uniform",
    "whole",
    "window_of_trigger",
]
