"""Chart of a run's checks: the measurements of the trigger policy over stream time, and the score of the active model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from modyn.analysis.charts.bins import MAX_BINS, Bins, binned_triggers
from modyn.analysis.charts.figure import ACTIVE, NEUTRAL, Figure, dates, known
from modyn.analysis.check_table import checks_table, evidence_columns
from modyn.analysis.results import RunResults, composite_scores, series_cells
from modyn.supervisor.client import DETECTIONS, WARMING_UP, CheckRecord, EvidenceColumn, EvidenceKind

_NOTE: Final = (
    "Measurements of the trigger policy, with the thresholds they were compared with; red values are unusual. Vertical lines are "
    "triggers; the warm-up is grey. Below, the accuracy, or another metric, of the active model."
)
MAX_PANELS: Final = 12
"""Largest number of series that are drawn; series with verdicts come first."""
_PANEL_PX, _GAP_PX, _MARGIN_PX = 110, 34, 100
_UNUSUAL, _THRESHOLD, _SCORE = "#cf222e", "#d9822b", "#2da44e"
_BAND, _WARM_UP = "rgba(31, 111, 235, 0.16)", "#eaeef2"


@dataclass(frozen=True, slots=True)
class _Panel:
    """The columns of the table of checks that one panel draws. A field is None if the checks have no such column."""

    title: str
    value: str
    threshold: str | None
    unusual: str | None
    """Column of verdicts. In a column of numbers, more than 0 means unusual."""


def with_checks_of(results: RunResults, *, online: bool) -> RunResults:
    """Return the results with the checks of one trigger policy only. Args: online: true: the policy is `online.trigger`; false: `trigger`."""
    return replace(results, checks=[check for check in results.checks if check.online == online])


def checks_note(results: RunResults) -> str:
    """Describe the chart of `checks_figure`, with the number of series that it omits."""
    left_out = len(_panels(evidence_columns(_with_times(results.checks)))) - MAX_PANELS
    if left_out <= 0:
        return _NOTE
    return f"{_NOTE} {left_out} more series {'is' if left_out == 1 else 'are'} not drawn: Client.checks returns them all."


def checks_figure(results: RunResults) -> Figure | None:
    """Draw each series of evidence, with its threshold, over stream time. A panel below has the score of the currently active model.

    More than MAX_BINS checks are drawn as means of bins, with the range of their values. Returns None if no check has measured anything.
    """
    found = _with_times(results.checks)
    columns = evidence_columns(found)
    panels = _panels(columns)[:MAX_PANELS]
    if not panels:
        return None
    checks = checks_table(found)
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
    return Figure(traces, _layout(titles, _shapes(checks, _warm_up(columns, checks), results.triggers)))


def _with_times(checks: Sequence[CheckRecord]) -> list[CheckRecord]:
    return [check for check in checks if check.timestamp is not None]


def _panels(columns: Mapping[EvidenceColumn, str]) -> list[_Panel]:
    """Return the panels: for each series one per criterion and one per p-value, or one without verdicts. Panels with a limit come first.

    Args: columns: the table's column name for each column of evidence.
    """
    judged, others, unjudged = list[_Panel](), list[_Panel](), list[_Panel]()
    values = [one for one in columns if one.kind is EvidenceKind.VALUE and one.field == "value"]
    for value in values:
        verdicts = dict[str, dict[str, str]]()
        for one, name in columns.items():
            is_verdict = one.field in ("threshold", "unusual", "level")
            if is_verdict and (one.subtrigger, one.series, one.kind) == (value.subtrigger, value.series, value.kind):
                verdicts.setdefault(one.criterion, {})[one.field] = name
        for criterion, found in verdicts.items():
            title, threshold, unusual = value._replace(criterion=criterion).name, found.get("threshold"), found.get("unusual")
            if "level" in found:
                p_value = columns[value._replace(field="p_value")]
                judged.append(_Panel(f"{title}, p-value", p_value, found["level"], unusual))
            by_value = threshold is not None or "level" not in found
            (judged if by_value else others).append(_Panel(title, columns[value], threshold, unusual))
        if not verdicts:  # A detector judges no single input. Inputs are drawn as unusual if their check detects a change.
            detections = value._replace(series=DETECTIONS, kind=EvidenceKind.COUNT)
            unjudged.append(_Panel(value.name, columns[value], None, columns.get(detections)))
    return [panel for panels in (judged, others, unjudged) for panel in sorted(panels, key=lambda one: one.title)]


def _traces(panel: _Panel, checks: pd.DataFrame, bins: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """Return the lines of one panel, without the times of the points."""
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
    if panel.threshold is not None:
        threshold = known(checks[panel.threshold].astype("float64").groupby(bins).mean())
        dashed = {"color": _THRESHOLD, "width": 1.5, "dash": "dash"}
        hover = "threshold %{y:.4g}<extra></extra>"
        traces.append({**line, "y": threshold, "name": "threshold", "line": dashed, "hovertemplate": hover})
    if panel.unusual is not None:
        y = known(values.where(checks[panel.unusual].astype("float64") > 0).groupby(bins).mean())
        red = {"color": _UNUSUAL, "size": 6}
        traces.append({"type": "scatter", "mode": "markers", "y": y, "name": "unusual", "marker": red, "hoverinfo": "skip"})
    return traces


def _name_each_once(traces: list[dict[str, Any]]) -> None:
    """Show each line name once in the legend, not once for each panel."""
    named = set[str]()
    for trace in traces:
        if name := trace.get("name"):
            trace["showlegend"] = name not in named
            named.add(name)


def _score(results: RunResults) -> tuple[dict[str, Any], str] | None:
    """Return the scores of the currently active model for the run's first handler, dataset and metric, and the title of the panel. None: there are no
    scores.
    """
    for series, cells in series_cells(results.evaluations):
        table = composite_scores(cells, results.triggers, "active")
        title = f"{series.metric} of the active model on {series.dataset} ({series.handler})"
        hover = series.metric + " %{y:.4f}<extra></extra>"
        style = {"line": {"color": _SCORE, "width": 2}, "marker": {"size": 4}, "hovertemplate": hover, "showlegend": False}
        mode = "lines+markers" if len(table) <= MAX_BINS else "lines"
        return {"type": "scatter", "mode": mode, "x": dates(table["anchor"]), "y": known(table["value"]), **style}, title
    return None


def _warm_up(columns: Mapping[EvidenceColumn, str], checks: pd.DataFrame) -> pd.DataFrame:
    """Return the checks in the warm-up of the policy or of a subtrigger."""
    names = [name for column, name in columns.items() if column.kind is EvidenceKind.FLAG and column.series == WARMING_UP]
    return checks[checks[names].fillna(False).astype(bool).any(axis=1)] if names else checks[:0]


def _shapes(checks: pd.DataFrame, warming_up: pd.DataFrame, triggers: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the shapes of the warm-up and the triggers, over all panels."""
    shapes = []
    height = {"yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    if len(warming_up):
        start, end = dates(pd.Series([checks["timestamp"].min(), warming_up["timestamp"].max()]))
        shapes.append({"type": "rect", "x0": start, "x1": end, **height, "fillcolor": _WARM_UP, "line": {"width": 0}})
    if len(triggers):
        thin = {"color": NEUTRAL, "width": 1, "dash": "dot"}
        fired = dates(binned_triggers(triggers)["fired_at"])
        shapes += [{"type": "line", "x0": at, "x1": at, **height, "line": thin} for at in fired]
    return shapes


def _layout(titles: list[str], shapes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the layout of panels of equal height, one below the other, with titles and one time axis."""
    height = len(titles) * (_PANEL_PX + _GAP_PX) - _GAP_PX
    layout: dict[str, Any] = {"shapes": shapes, "annotations": [], "height": height + _MARGIN_PX}
    for number, title in enumerate(titles):
        top = 1 - number * (_PANEL_PX + _GAP_PX) / height
        axis = _axis_name(number)
        layout[axis.replace("y", "yaxis")] = {"domain": [max(0.0, top - _PANEL_PX / height), top], "nticks": 4}
        place = {"xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left", "yanchor": "bottom"}
        layout["annotations"].append({"text": title, "showarrow": False, "font": {"size": 12}, **place})
    # The time axis is below the last panel, and belongs to all panels.
    layout["xaxis"] = {"anchor": _axis_name(len(titles) - 1), "type": "date"}
    above_titles = 1 + 24 / height
    layout["legend"] = {"orientation": "h", "x": 0, "y": above_titles, "yanchor": "bottom", "traceorder": "normal"}
    layout["margin"] = {"l": 60, "r": 20, "t": _MARGIN_PX - 40, "b": 40}
    return layout


def _axis_name(number: int) -> str:
    """Return the name of an axis in plotly.js: y, y2, y3, …"""
    return "y" if number == 0 else f"y{number + 1}"
