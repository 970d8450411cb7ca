"""HTML page of a simulation, with charts of the triggers of all policies on one time axis, and of scores over cost."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from modyn.analysis.charts.figure import ACTIVE, NEUTRAL, TRAINED, Figure
from modyn.analysis.page import html_table, page, section
from modyn.analysis.simulation import ESTIMATE, cost_of, pareto_front
from modyn.atomic_write import replacing
from modyn.config.durations import format_timestamp

MAX_MARKS: Final = 400
"""Largest number of marks of one policy on the time axis. With more triggers, several successive triggers share a mark."""
MAX_NAMES: Final = 40
"""Largest number of points of one kind that show the names of their policies. With more points, a point shows its name only under the pointer."""

_SCORE_NOTE = (
    "This is an estimate: for each interval of the run's evaluation matrix, the run's nearest earlier model replaces the model of the policy's "
    "newest trigger. Policies on the line are optimal: no other policy has a better score at the same or a lower cost."
)


def write_simulation_report(table: pd.DataFrame, title: str, path: Path) -> Path:
    """Write the page of a simulation, and return its absolute path. An existing file is replaced atomically.

    Args: table: from `simulation_table`. title: name of the stream.
    Raises: OSError: the file cannot be written.
    """
    path = path.absolute()
    with replacing(path, path.with_name(path.name + ".tmp")) as file:
        file.write(render_simulation(table, title).encode())
    return path


def render_simulation(table: pd.DataFrame, title: str) -> str:
    """Return the complete HTML page. Args: see `write_simulation_report`."""
    parts = [f"<h1>Simulated trigger policies</h1><p class='note'>{html.escape(title)}; nothing was trained.</p>"]
    parts.append(
        section("Times of triggers", "One row for each policy; each mark is a trigger, in stream time.", times_figure(table))
    )
    whole = table[table["failed"] == ""]  # A failed policy has a low cost that is not comparable.
    for name in [column for column in map(str, table.columns) if column.startswith(ESTIMATE)]:
        notes = " ".join(note for note in table.attrs.get("notes", ()) if note.startswith(f"{name}:"))
        higher_is_better = name not in table.attrs.get("lower_is_better", ())
        figure = cost_figure(whole, name, higher_is_better=higher_is_better)
        parts.append(section(f"Cost and {name}", f"{_SCORE_NOTE} {notes}", figure))
    note = (
        "Waiting time of a sample for the trigger that trains on it, in days of stream time. Low cost and short waiting are best."
    )
    waiting = whole.assign(**{"mean waiting in days": whole["mean_waiting_s"] / 86_400})
    parts.append(section("Cost and waiting", note, cost_figure(waiting, "mean waiting in days", higher_is_better=False)))
    shown = table.drop(columns=["positions", "times"])
    parts.append("<h2>All policies</h2>")
    for note in (note for note in table.attrs.get("notes", ()) if note.startswith("training_s:")):
        parts.append(f"<p class='note'>{html.escape(note)}</p>")
    parts.append(
        html_table([*map(str, shown.columns)], [[_cell(value) for value in row] for row in shown.itertuples(index=False)])
    )
    return page(f"Modyn: simulation on {title}", parts)


def times_figure(table: pd.DataFrame) -> Figure:
    """Draw the triggers of all policies on one time axis. Args: table: from `simulation_table`."""
    x, y, numbers = list[str](), list[str](), list[int]()
    for name, times in zip(table["policy"], table["times"], strict=True):
        for marks in np.array_split(np.asarray(times, np.int64), min(len(times), MAX_MARKS) or 1):
            if len(marks):
                x.append(format_timestamp(int(marks[-1])))
                y.append(name)
                numbers.append(len(marks))
    triggers = {
        "type": "scatter",
        "x": x,
        "y": y,
        "customdata": numbers,
        "mode": "markers",
        "marker": {"symbol": "line-ns-open", "size": 10, "color": ACTIVE},
        "hovertemplate": "%{y}<br>%{x}<br>%{customdata} triggers<extra></extra>",
    }
    counts = [f"{name}: {len(times)}" for name, times in zip(table["policy"], table["times"], strict=True)]
    order = {"type": "category", "autorange": "reversed", "categoryorder": "array", "categoryarray": table["policy"].to_list()}
    layout = {"height": 120 + 22 * max(4, len(table)), "yaxis": order, "xaxis": {"type": "date"}}
    return Figure([triggers], layout, f"Each policy with its number of triggers: {_listed(counts)}")


def cost_figure(table: pd.DataFrame, column: str, *, higher_is_better: bool) -> Figure:
    """Draw the values of a column over the cost of each policy, with the Pareto front.

    Args: table: from `simulation_table`, with the column. higher_is_better: high values are good; false: low values are good.
    """
    cost, values = cost_of(table), table[column].astype("float64")
    score = np.asarray(values if higher_is_better else -values, np.float64)
    front = pareto_front(np.asarray(cost, np.float64), score)
    points = {"type": "scatter", "hovertemplate": "%{text}<br>%{x}, %{y}<extra></extra>", "textposition": "top center"}
    data, words = list[dict[str, Any]](), list[str]()
    for name, chosen, colour in (("beaten", ~front, NEUTRAL), ("not beaten", front, TRAINED)):
        order = np.argsort(cost.to_numpy(np.float64), kind="stable")
        rows = order[chosen[order]]
        line = {"line": {"shape": "hv", "width": 1}} if name == "not beaten" else {}
        mode = ("lines+" if line else "") + "markers" + ("+text" if len(rows) <= MAX_NAMES else "")
        where = {"x": _known(cost.iloc[rows]), "y": _known(values.iloc[rows]), "text": table["policy"].iloc[rows].to_list()}
        data.append({**points, **line, **where, "mode": mode, "name": name, "marker": {"size": 9, "color": colour}})
        words += [
            f"{policy}: {x:g}, {y:g}, {name}"
            for policy, x, y in zip(where["text"], where["x"], where["y"], strict=True)
            if x is not None and y is not None
        ]
    unit = "training time in s" if cost.name == "training_s" else "samples trained on"
    axes = {"xaxis": {"title": {"text": unit}, "rangemode": "tozero"}, "yaxis": {"title": {"text": column}}}
    return Figure(data, {"height": 420, **axes}, f"Each policy with {unit} and {column}: {_listed(words)}")


def _listed(words: list[str]) -> str:
    more = [f"and {len(words) - MAX_NAMES} more, in the table of all policies"] if len(words) > MAX_NAMES else []
    return "; ".join(words[:MAX_NAMES] + more)


def _known(values: pd.Series[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
