"""The chart of a run's checks: what its trigger policy measured over stream time, and how good the model was meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from modyn.analysis.bins import MAX_BINS, Bins, binned_triggers
from modyn.analysis.checks import NUM_COLUMNS
from modyn.analysis.figure import ACTIVE, NEUTRAL, Figure, dates, known
from modyn.analysis.results import RunResults, composite_scores, series_cells
from modyn.supervisor.client import DETECTIONS, explain_check, is_warming_up

_NOTE: Final = (
    "What the trigger policy measured, with the threshold that it was compared with; red: unusual. Vertical lines are triggers, grey is the "
    "warm-up. Below it the accuracy, or another metric, of the model that was active."
)
MAX_PANELS: Final = 12
"""Series that are drawn; those that were judged come first."""
_PANEL_PX, _GAP_PX, _MARGIN_PX = 110, 34, 100
_UNUSUAL, _THRESHOLD, _SCORE = "#cf222e", "#d9822b", "#2da44e"
_BAND, _WARM_UP = "rgba(31, 111, 235, 0.16)", "#eaeef2"


@dataclass(frozen=True, slots=True)
class _Series:
    """Columns of the table of checks that one panel draws; those that are not there are left out."""

    title: str
    value: str
    threshold: str
    unusual: str
    """A column of numbers is read as well: more than 0 is unusual."""


def with_checks_of(results: RunResults, *, online: bool) -> RunResults:
    """The results with the checks of one trigger policy alone. Args: online: that of `online.trigger`, else that of `trigger`."""
    checks = results.checks[results.checks["online"] == online]
    measured = checks.iloc[:, NUM_COLUMNS:].dropna(axis=1, how="all")
    return replace(results, checks=pd.concat([checks.iloc[:, :NUM_COLUMNS], measured], axis=1))


def checks_note(results: RunResults) -> str:
    """What the chart of `checks_figure` shows, and how many series it leaves out."""
    left_out = len(_panels(_with_times(results.checks))) - MAX_PANELS
    if left_out <= 0:
        return _NOTE
    return f"{_NOTE} {left_out} more series {'is' if left_out == 1 else 'are'} not drawn: Client.checks returns them all."


def checks_figure(results: RunResults) -> Figure | None:
    """Draw each series of evidence over stream time, with its threshold if it has one, and below them the score of the currently active model.

    More than MAX_BINS checks are drawn as means of bins, with the range of their values. None: no check has measured anything.
    """
    checks = _with_times(results.checks)
    panels = _panels(checks)[:MAX_PANELS]
    if not panels:
        return None
    bins = Bins(len(checks)).of(np.arange(len(checks)))
    times = dates(checks.groupby(bins)["timestamp"].last())
    traces, titles = list[dict[str, Any]](), list[str]()
    for number, panel in enumerate(panels):
        axis = {"yaxis": _axis_name(number), "xaxis": "x"}
        traces += [{**trace, **axis, "x": times} for trace in _traces(panel, checks, bins)]
        titles.append(panel.title)
    _name_each_once(traces)
    if (score := _score(results)) is not None:
        trace, title = score
        traces.append({**trace, "yaxis": _axis_name(len(titles)), "xaxis": "x"})
        titles.append(title)
    return Figure(traces, _layout(titles, _shapes(checks, results.triggers)))


def _with_times(checks: pd.DataFrame) -> pd.DataFrame:
    return checks[checks["timestamp"].notna()].reset_index(drop=True)


def _panels(checks: pd.DataFrame) -> list[_Series]:
    """All series, those that were judged before what was measured beside them; none of no checks."""
    if not len(checks):
        return []
    found = explain_check(dict.fromkeys((str(name) for name in checks.columns[NUM_COLUMNS:]), 0.0)).series
    judged, others = list[_Series](), list[_Series]()
    for one in found:
        threshold, unusual = f"{one.name}.threshold", f"{one.name}.unusual"
        if one.level is not None:
            judged.append(_Series(f"{one.name}, p-value", f"{one.series}.p_value", f"{one.name}.p_value.threshold", unusual))
        if one.series is None:
            continue
        if one.threshold is not None or (one.unusual is not None and one.level is None):
            judged.append(_Series(one.name, one.series, threshold, unusual))
        elif one.level is not None:
            others.append(_Series(one.name, one.series, threshold, unusual))
        else:  # What a detector watches is unusual where it finds a change.
            path = one.name[: one.name.rfind("/") + 1]
            others.append(_Series(one.name, one.series, threshold, f"{path}{DETECTIONS}"))
    return judged + others


def _traces(panel: _Series, checks: pd.DataFrame, bins: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """The lines of one panel, without their times."""
    values = checks[panel.value].astype("float64")
    binned = values.groupby(bins)
    line = {"type": "scatter", "mode": "lines"}
    silent = {"showlegend": False, "hoverinfo": "skip"}
    traces: list[dict[str, Any]] = []
    if len(checks) > MAX_BINS:
        edge = {**line, **silent, "line": {"width": 0}}
        traces += [{**edge, "y": known(binned.min())}, {**edge, "y": known(binned.max()), "fill": "tonexty", "fillcolor": _BAND}]
    hover = panel.title + " %{y:.4g}<extra></extra>"
    blue = {"color": ACTIVE, "width": 2}
    traces.append({**line, "y": known(binned.mean()), "name": "measured", "line": blue, "hovertemplate": hover})
    if panel.threshold in checks:
        threshold = known(checks[panel.threshold].astype("float64").groupby(bins).mean())
        dashed = {"color": _THRESHOLD, "width": 1.5, "dash": "dash"}
        hover = "threshold %{y:.4g}<extra></extra>"
        traces.append({**line, "y": threshold, "name": "threshold", "line": dashed, "hovertemplate": hover})
    if panel.unusual in checks:
        y = known(values.where(checks[panel.unusual].astype("float64") > 0).groupby(bins).mean())
        red = {"color": _UNUSUAL, "size": 6}
        traces.append({"type": "scatter", "mode": "markers", "y": y, "name": "unusual", "marker": red, "hoverinfo": "skip"})
    return traces


def _name_each_once(traces: list[dict[str, Any]]) -> None:
    """Show what a kind of line means in the legend once, not for each panel."""
    named = set[str]()
    for trace in traces:
        if name := trace.get("name"):
            trace["showlegend"] = name not in named
            named.add(name)


def _score(results: RunResults) -> tuple[dict[str, Any], str] | None:
    """The line of the currently active model by the run's first handler, dataset and metric, and its title; None: there is no evaluation."""
    for series, cells in series_cells(results.evaluations):
        table = composite_scores(cells, results.triggers, "active")
        title = f"{series.metric} of the active model on {series.dataset} ({series.handler})"
        hover = series.metric + " %{y:.4f}<extra></extra>"
        style = {"line": {"color": _SCORE, "width": 2}, "marker": {"size": 4}, "hovertemplate": hover, "showlegend": False}
        mode = "lines+markers" if len(table) <= MAX_BINS else "lines"
        return {"type": "scatter", "mode": mode, "x": dates(table["anchor"]), "y": known(table["value"]), **style}, title
    return None


def _shapes(checks: pd.DataFrame, triggers: pd.DataFrame) -> list[dict[str, Any]]:
    """The warm-up and the triggers, over all panels."""
    shapes = []
    height = {"yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    names = [str(name) for name in checks.columns if is_warming_up({str(name): 1.0})]
    warming_up = checks[checks[names].fillna(False).astype(bool).any(axis=1)] if names else checks[:0]
    if len(warming_up):
        start, end = dates(pd.Series([checks["timestamp"].min(), warming_up["timestamp"].max()]))
        shapes.append({"type": "rect", "x0": start, "x1": end, **height, "fillcolor": _WARM_UP, "line": {"width": 0}})
    if len(triggers):
        thin = {"color": NEUTRAL, "width": 1, "dash": "dot"}
        fired = dates(binned_triggers(triggers)["fired_at"])
        shapes += [{"type": "line", "x0": at, "x1": at, **height, "line": thin} for at in fired]
    return shapes


def _layout(titles: list[str], shapes: list[dict[str, Any]]) -> dict[str, Any]:
    """Panels of one height, one below the other, each with its title above it, on one time axis."""
    height = len(titles) * (_PANEL_PX + _GAP_PX) - _GAP_PX
    layout: dict[str, Any] = {"shapes": shapes, "annotations": [], "height": height + _MARGIN_PX}
    for number, title in enumerate(titles):
        top = 1 - number * (_PANEL_PX + _GAP_PX) / height
        axis = _axis_name(number)
        layout[axis.replace("y", "yaxis")] = {"domain": [max(0.0, top - _PANEL_PX / height), top], "nticks": 4}
        place = {"xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left", "yanchor": "bottom"}
        layout["annotations"].append({"text": title, "showarrow": False, "font": {"size": 12}, **place})
    # Below the last panel, for all.
    layout["xaxis"] = {"anchor": _axis_name(len(titles) - 1), "type": "date"}
    above_titles = 1 + 24 / height
    layout["legend"] = {"orientation": "h", "x": 0, "y": above_titles, "yanchor": "bottom", "traceorder": "normal"}
    layout["margin"] = {"l": 60, "r": 20, "t": _MARGIN_PX - 40, "b": 40}
    return layout


def _axis_name(number: int) -> str:
    """Names of plotly.js: y, y2, y3, …"""
    return "y" if number == 0 else f"y{number + 1}"
