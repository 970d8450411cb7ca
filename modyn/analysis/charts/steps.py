"""Charts of a run with online learning: the error over time with trainings, rollbacks and pauses, and the cost of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from modyn.analysis.charts.bins import MAX_BINS, Bins
from modyn.analysis.charts.figure import ACTIVE, NEUTRAL, TRAINED, Figure, dates, known, right_axis
from modyn.analysis.prequential import WINDOW
from modyn.analysis.results import triggers_of_models
from modyn.config.durations import format_timestamp
from modyn.model_storage.client import Promotion
from modyn.supervisor.client import TriggerState

PREQUENTIAL_NOTE: Final = (
    f"Test of each new sample before training on it: the mean over all samples so far, over the newest {WINDOW:,}, and "
    "faded: an error weighs less with each later sample. Dotted lines are models of other trainings; red ones are "
    "triggers whose steps were rolled back or left out. In grey periods, steps paused."
)
TRAINING_NOTE: Final = "Cumulated seconds of all trainings including steps, and cumulated number of steps, over stream time."
PROMOTION_COLUMNS: Final = ("time (UTC)", "action", "model", "trigger", "model before", "by", "reason", "conditions")
_ROLLED_BACK: Final = "#cf222e"


def prequential_figure(table: pd.DataFrame, triggers: pd.DataFrame) -> Figure | None:
    """Draw the error over the tested samples, or the loss if labels are not classes. Return None if no sample was tested.

    Args: table: from `prequential_table`. triggers: the table of `read_results`.
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
    axes = {"xaxis": {"title": {"text": "time of the stream"}}, "yaxis": {"title": {"text": measure}}}
    return Figure(traces, {"height": 320, "shapes": marks(triggers), **axes})


def marks(triggers: pd.DataFrame) -> list[dict[str, Any]]:
    """Return shapes of plotly.js for the newest pauses, rollbacks, and trainings of the policy `trigger`, at most MAX_BINS of each.

    Args: triggers: the table of `read_results`.
    """
    tall = {"yref": "paper", "y0": 0, "y1": 1}
    retrained = triggers.loc[~triggers["online"] & triggers["model_id"].notna(), "fired_at"].iloc[-MAX_BINS:]
    undone = triggers.loc[triggers["rollbacks"].fillna(0) > 0, "fired_at"].iloc[-MAX_BINS:]
    lines = ((retrained, NEUTRAL, "dot"), (undone, _ROLLED_BACK, "solid"))
    shapes: list[dict[str, Any]] = [
        {
            "type": "rect",
            **tall,
            "x0": begin,
            "x1": end,
            "fillcolor": NEUTRAL,
            "opacity": 0.15,
            "line": {"width": 0},
            "layer": "below",
        }
        for begin, end in zip(*map(dates, _pauses(triggers)), strict=True)
    ]
    for times, colour, dash in lines:
        line = {"type": "line", **tall, "line": {"color": colour, "width": 1, "dash": dash}}
        shapes += [{**line, "x0": when, "x1": when} for when in dates(times)]
    return shapes


def _pauses(triggers: pd.DataFrame) -> tuple[pd.Series[Any], pd.Series[Any]]:
    """Return begin and end of each pause as stream times, int64. In a pause, samples are tested without training."""
    paused = (triggers["state"] == str(TriggerState.TESTED)).to_numpy(bool)
    begins = np.flatnonzero(paused & ~np.append(False, paused[:-1]))
    ends = np.flatnonzero(paused & ~np.append(paused[1:], False))
    times = triggers["fired_at"].reset_index(drop=True)
    # A pause begins when the previous trigger fired.
    return times.iloc[np.maximum(begins - 1, 0)].iloc[-MAX_BINS:], times.iloc[ends].iloc[-MAX_BINS:]


def training_figure(triggers: pd.DataFrame) -> Figure | None:
    """Draw cumulated training seconds and number of steps over stream time. Return None if no trigger is online.

    Args: triggers: the table of `read_results`.
    """
    if not triggers["online"].any():
        return None
    bins = Bins(len(triggers))
    shown = pd.DataFrame(
        {
            "fired_at": triggers["fired_at"],
            "seconds": triggers["train_s"].fillna(0.0).cumsum(),
            "steps": triggers["num_steps"].where(triggers["online"]).fillna(0).astype("int64").cumsum(),
        }
    ).iloc[bins.ends]
    drawn = (("training", "seconds", ACTIVE, "y"), ("steps", "steps", TRAINED, "y2"))
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "line": {"color": colour, "shape": "hv"},
            "x": dates(shown["fired_at"]),
            "y": known(shown[column]),
            "yaxis": axis,
        }
        for name, column, colour, axis in drawn
    ]
    axes = {
        "xaxis": {"title": {"text": "time of the stream"}},
        "yaxis": {"title": {"text": "seconds"}, "rangemode": "tozero"},
        "yaxis2": right_axis("steps"),
    }
    return Figure(traces, {"height": 280, "margin": {"l": 60, "r": 60, "t": 20, "b": 40}, **axes})


def promotion_rows(promotions: Sequence[Promotion], triggers: pd.DataFrame) -> list[list[Any]]:
    """Return the audit trail of a run's versions, including refusals, newest last, as cells of PROMOTION_COLUMNS.

    Args: triggers: the table of `read_results`.
    """
    made_by = triggers_of_models(triggers)
    return [
        [
            format_timestamp(int(entry.made_at)),
            entry.action,
            entry.model_id,
            made_by.get(entry.model_id, "–"),
            "–" if entry.before_id is None else entry.before_id,
            entry.made_by,
            entry.reason,
            "; ".join(map(str, entry.verdicts)),
        ]
        for entry in promotions
    ]
