"""Charts of a run that learns online: the error over time with what was done about it, and the training that it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from modyn.analysis.bins import MAX_BINS, Bins
from modyn.analysis.figure import ACTIVE, NEUTRAL, TRAINED, Figure, dates, known, right_axis
from modyn.analysis.prequential import WINDOW
from modyn.analysis.results import triggers_of_models
from modyn.config.durations import format_timestamp
from modyn.model_storage.client import Promotion
from modyn.supervisor.client import TriggerState

PREQUENTIAL_NOTE: Final = (
    "What the model said of each new sample before it was trained on: the mean over all so far, over the newest "
    f"{WINDOW:,}, and faded, which weighs an error less the more samples came after it. Dotted lines are models of trainings that are not "
    "online, red ones triggers whose steps went back to a snapshot or were left out; steps paused where it is grey."
)
TRAINING_NOTE: Final = "Seconds of all trainings so far, of steps too, and steps so far, over the time of the stream."
PROMOTION_COLUMNS: Final = ("time (UTC)", "action", "model", "trigger", "model before", "by", "reason", "conditions")
_ROLLED_BACK: Final = "#cf222e"


def prequential_figure(table: pd.DataFrame, triggers: pd.DataFrame) -> Figure | None:
    """Draw the error, or the loss where labels are no classes, over the samples that were tested. None: none was.

    Args: table: of `prequential_table`. triggers: table of `read_results`.
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
    """The newest models of trainings that are not online, rollbacks and pauses as shapes of plotly.js, MAX_BINS of each at most.

    Args: triggers: table of `read_results`.
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
    """When the samples begin and end that were only tested in a row: stream times, int64."""
    paused = (triggers["state"] == str(TriggerState.TESTED)).to_numpy(bool)
    begins = np.flatnonzero(paused & ~np.append(False, paused[:-1]))
    ends = np.flatnonzero(paused & ~np.append(paused[1:], False))
    times = triggers["fired_at"].reset_index(drop=True)
    # A stretch begins where the trigger before it fired.
    return times.iloc[np.maximum(begins - 1, 0)].iloc[-MAX_BINS:], times.iloc[ends].iloc[-MAX_BINS:]


def training_figure(triggers: pd.DataFrame) -> Figure | None:
    """Draw the seconds of training so far, and the steps so far, over the time of the stream. None: no trigger is online.

    Args: triggers: table of `read_results`.
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
    """The audit trail of a run's versions, also of what was refused, the newest last, as cells of PROMOTION_COLUMNS.

    Args: triggers: table of `read_results`.
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
