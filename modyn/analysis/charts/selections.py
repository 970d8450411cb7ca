"""Charts of the samples that triggers chose: class shares, ages and overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd

from modyn.analysis.charts.figure import ACTIVE, NEUTRAL, Figure, known

MOST_CLASSES: Final = 20
"""Largest number of classes that are drawn: the classes with the largest shares."""
SHARES_NOTE: Final = (
    "Share of each class in the candidates of a trigger, in the chosen samples, and in the training after downsampling."
)
TRAINED_SHARES_NOTE: Final = (
    "Share of each class in the training, if its labels differ from those in the stream: before and after downsampling."
)
AGES_NOTE: Final = (
    "Median age of the candidates and of the chosen samples, relative to the newest candidate. Below: the share of the chosen "
    "samples that the previous trigger also chose."
)


def class_shares_figure(table: pd.DataFrame) -> Figure | None:
    """Draw class shares of each trigger as stacked bars: of the candidates, of the chosen samples, and of the training samples after downsampling.

    Args: table: from `class_shares_table`. Returns: None if there are no classes.
    """
    return _stacked(table, {"candidates_share": "there", "chosen_share": "chosen", "trained_share": "trained"})


def trained_shares_figure(table: pd.DataFrame) -> Figure | None:
    """Draw the class shares in the training of each trigger as stacked bars. Args: table: from `trained_shares_table`. Returns: None if there are no
    classes."""
    return _stacked(table, {"before_share": "before", "after_share": "after"})


def ages_figure(table: pd.DataFrame) -> Figure | None:
    """Draw ages and overlap over triggers. Args: table: from `selections_table`. Returns: None if there are fewer than two triggers."""
    if len(table) < 2:
        return None
    ages = [("candidates", "median_age_candidates", NEUTRAL, "dash"), ("chosen", "median_age", ACTIVE, "solid")]
    traces = [
        _line(table, name, table[column] / 86_400, colour, dash, "%{y:.1f} days", "y") for name, column, colour, dash in ages
    ]
    overlap = _line(table, "chosen before", table["chosen_before"], ACTIVE, "solid", "%{y:.1%}", "y2")
    layout = {
        "height": 380,
        "hovermode": "x unified",
        "xaxis": {"title": {"text": "trigger"}, "anchor": "y2", "tickformat": "d"},
        "yaxis": {"domain": [0.55, 1], "title": {"text": "age, days"}, "rangemode": "tozero"},
        "yaxis2": {"domain": [0, 0.42], "title": {"text": "chosen before"}, "tickformat": ".0%", "range": [-0.05, 1.05]},
    }
    return Figure([*traces, {**overlap, "showlegend": False}], layout)


def _line(table: pd.DataFrame, name: str, values: pd.Series[Any], colour: str, dash: str, text: str, axis: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": known(table["trigger_id"]),
        "y": known(values),
        "xaxis": "x",
        "yaxis": axis,
        "line": {"color": colour, "dash": dash},
        "hovertemplate": text + "<extra>" + name + "</extra>",
    }


def _stacked(table: pd.DataFrame, bars: dict[str, str]) -> Figure | None:
    """Return stacked bars of shares by class. Args: bars: title of the bar for each column of the table; columns without values are omitted."""
    if table.empty:
        return None
    shown = [column for column in bars if table[column].notna().any()]
    sizes = table.groupby("label")[shown[0]].sum().sort_values(ascending=False)
    long = table.melt(["trigger_id", "label"], shown).dropna(subset="value")
    names = long["variable"].map(bars)
    traces: list[dict[str, Any]] = []
    for label in sorted_labels(sizes.index[:MOST_CLASSES].to_list()):
        rows = long[long["label"] == label].sort_values("trigger_id", kind="stable")
        x = [[f"trigger {number}" for number in rows["trigger_id"]], names[rows.index].to_list()]
        hover = f"%{{x}}<br>class {label}: %{{y:.1%}}<extra></extra>"
        traces.append({"type": "bar", "name": f"class {label}", "x": x, "y": known(rows["value"]), "hovertemplate": hover})
    return Figure(traces, {"barmode": "stack", "height": 360, "yaxis": {"title": {"text": "share"}, "tickformat": ".0%"}})


def sorted_labels(labels: Sequence[Any]) -> list[Any]:
    """Sort labels that are numbers, and put other labels last.

    >>> sorted_labels(["10", "9", "others"])
    ['9', '10', 'others']
    """
    return sorted(labels, key=lambda label: (not str(label).lstrip("-").isdecimal(), len(str(label)), str(label)))
