"""Chart of the prequential error of a run that learns online."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd

from modyn.analysis.bins import MAX_BINS
from modyn.analysis.figure import ACTIVE, NEUTRAL, TRAINED, Figure, dates, known
from modyn.analysis.prequential import WINDOW

PREQUENTIAL_NOTE: Final = (
    "What the model said of each new sample before it was trained on: the mean over all so far, over the newest "
    f"{WINDOW:,}, and faded, which weighs an error less the more samples came after it. Vertical lines are trainings that are not online."
)


def prequential_figure(table: pd.DataFrame, retrained: pd.Series[Any]) -> Figure | None:
    """Draw the error, or the loss where labels are no classes, over the samples that were tested. None: none was.

    Args: table: of `prequential_table`. retrained: stream times of the trainings that were not online.
    """
    if table.empty:
        return None
    measure = "error" if table["error"].notna().any() else "loss"
    shown = table.iloc[np.unique(np.linspace(0, len(table) - 1, min(len(table), 10 * MAX_BINS)).astype(int))]
    lines = (("cumulated", ACTIVE), ("windowed", NEUTRAL), ("faded", TRAINED))
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "line": {"color": colour},
            "x": dates(shown["timestamp"]),
            "y": known(shown[f"{name}_{measure}"]),
            "customdata": known(shown["tested"]),
            "hovertemplate": "%{customdata:,} samples<br>%{y:.4f}<extra>" + name + "</extra>",
        }
        for name, colour in lines
    ]
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": NEUTRAL, "width": 1, "dash": "dot"}}
    shapes = [{**line, "x0": when, "x1": when} for when in dates(retrained.iloc[-MAX_BINS:])]
    axes = {"xaxis": {"title": {"text": "time of the stream"}}, "yaxis": {"title": {"text": measure}}}
    return Figure(traces, {"height": 320, "shapes": shapes, **axes})
