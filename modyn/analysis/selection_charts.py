"""The charts of what triggers chose: class shares, ages and overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd

from modyn.analysis.figure import ACTIVE, NEUTRAL, Figure, known

MOST_CLASSES: Final = 20
"""Classes that are drawn, those with the greatest shares."""
SHARES_NOTE: Final = (
    "Share of each class among the candidates of a trigger, among those that it chose, and after downsampling in the trainer."
)
TRAINED_SHARES_NOTE: Final = (
    "Share of each class in the training, where its labels differ from those in the stream: before downsampling in the "
    "trainer, and after."
)
AGES_NOTE: Final = (
    "Median age of the candidates and of the chosen samples, before the newest candidate. Below it the share of the chosen samples that the "
    "trigger before chose too."
)


def class_shares_figure(table: pd.DataFrame) -> Figure | None:
    """Draw class shares, stacked, by trigger: of the candidates, of what was chosen, and of what was trained on after downsampling.

    Args: table: of `class_shares_table`. None: there are no classes.
    """
    return _stacked(table, {"candidates_share": "there", "chosen_share": "chosen", "trained_share": "trained"})


def trained_shares_figure(table: pd.DataFrame) -> Figure | None:
    """Draw the class shares of trainings, stacked, by trigger. Args: table: of `trained_shares_table`. None: there are no classes."""
    return _stacked(table, {"before_share": "before", "after_share": "after"})


def ages_figure(table: pd.DataFrame) -> Figure | None:
    """Draw ages and overlap over triggers. Args: table: of `selections_table`. None: there are not two triggers to draw a line between."""
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
    """Shares by class, stacked. Args: bars: column → name of its bar of a trigger; those that are nowhere known are left out."""
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
    """Labels in the order of their numbers, what is no number behind them.

    >>> sorted_labels(["10", "9", "others"])
    ['9', '10', 'others']
    """
    return sorted(labels, key=lambda label: (not str(label).lstrip("-").isdecimal(), len(str(label)), str(label)))
