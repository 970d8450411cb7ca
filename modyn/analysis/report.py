"""The HTML report of a run: one file, no network needed."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from modyn.analysis.results import (
    LOSS_CURVES,
    STAGES,
    Cost,
    Kind,
    RunResults,
    Series,
    composite_performance,
    cost,
    evaluated_kinds,
    evaluation_matrix,
    scores,
    series_of,
)
from modyn.atomic_write import replacing
from modyn.config.durations import format_timestamp

ACTIVE, TRAINED, NEUTRAL = "#1f6feb", "#d9822b", "#6e7781"
_STAGE_COLOURS = dict(zip(STAGES, ("#8250df", ACTIVE, "#2da44e", TRAINED), strict=True))

_MODELS_NOTE = "Each bar spans the data that a model was trained on; the diamond is its trigger."
_LOSS_NOTE = (
    f"The newest {LOSS_CURVES} trainings in a row: means of epochs, and losses of batches that training.record_loss_every keeps."
)
_STAGES_NOTE = "Seconds of work per trigger. Evaluation overlaps the next training."

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2328; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin: 2.2rem 0 .3rem; font-size: 1.2rem; }
p.note { color: #59636e; margin: .2rem 0 .6rem; max-width: 75ch; }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.card { border: 1px solid #d1d9e0; border-radius: 8px; padding: .6rem 1rem; min-width: 8rem; }
.card b { display: block; font-size: 1.5rem; } .card span { color: #59636e; font-size: .85rem; }
table { border-collapse: collapse; font-size: .88rem; }
td, th { border-bottom: 1px solid #d1d9e0; padding: .25rem .7rem; text-align: right; }
th { font-weight: 600; } td:first-child, th:first-child { text-align: left; }
pre { background: #f6f8fa; padding: 1rem; overflow: auto; font-size: .82rem; }
.error { background: #ffebe9; border: 1px solid #cf222e; border-radius: 8px; padding: .6rem 1rem; white-space: pre-wrap; }
"""


def write_report(results: RunResults, path: Path) -> Path:
    """Write the report of a run, finished or not, and return its absolute path. An existing file is replaced atomically.

    Raises: OSError: it cannot be written, as where its folder is missing.
    """
    path = path.absolute()
    with replacing(path, path.with_name(path.name + ".tmp")) as file:
        file.write(render(results).encode())
    return path


def render(results: RunResults) -> str:
    """Return the whole HTML page."""
    spent = cost(results)
    parts = [_head(results, spent)]
    if results.evaluations.empty:
        parts.append(
            "<p class='note'>No evaluation results: the pipeline has no evaluation section, or none has finished yet.</p>"
        )
    for series in series_of(results.evaluations):
        parts += _series_sections(series, results)
    if len(results.triggers):
        parts += [
            _section("Models", _MODELS_NOTE, models_figure(results)),
            _section("Triggers", "Size of the trigger set over the time of the stream.", triggers_figure(results)),
            *([_section("Loss", _LOSS_NOTE, losses_figure(results.losses))] if len(results.losses) else []),
            _section("Time by stage", _STAGES_NOTE, stages_figure(results)),
            _triggers_table(results),
        ]
    parts.append(f"<h2>Pipeline</h2><pre>{html.escape(results.run.yaml)}</pre>")
    head = f"<meta charset='utf-8'><title>{html.escape(f'Modyn: {results.run.run_id}')}</title>"
    head += "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    body = "\n".join(parts)
    return f"<!doctype html><html lang='en'><head>{head}<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>{body}</body></html>"


def matrix_figure(matrix: pd.DataFrame, active: pd.DataFrame, series: Series) -> go.Figure:
    """Draw models × intervals as a heat map; the cells of the currently active composite model are outlined.

    Args: matrix: of `evaluation_matrix`. active: table of `composite_performance`, with the same intervals. series: what `matrix` shows.
    """
    columns = [_span(start, end) for start, end in zip(active["start"], active["end"], strict=True)]
    rows = [f"trigger {trigger}" for trigger in matrix.index]
    values = matrix.to_numpy(np.float64)
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=columns,
            y=rows,
            colorscale="Viridis",
            text=[["" if math.isnan(v) else f"{v:.2f}" for v in row] for row in values],
            texttemplate="%{text}" if values.size <= 600 else None,
            hovertemplate="%{y}<br>%{x}<br>" + series.metric + " %{z:.4f}<extra></extra>",
            colorbar={"title": series.metric},
        )
    )
    for column, trigger in enumerate(active["trigger_id"]):
        if not pd.isna(trigger) and trigger in matrix.index:
            row = int(matrix.index.get_loc(trigger))  # type: ignore[arg-type]
            figure.add_shape(
                type="rect", x0=column - 0.5, x1=column + 0.5, y0=row - 0.5, y1=row + 0.5, line={"color": "#ff3b30", "width": 2}
            )
    figure.update_layout(height=180 + 30 * max(4, len(rows)), yaxis={"autorange": "reversed"})
    return figure


def performance_figure(tables: Mapping[Kind, pd.DataFrame], metric: str) -> go.Figure:
    """Draw the scores of the composite models that were evaluated over the time of the stream.

    Args: tables: of `composite_performance`. metric: its name.
    """
    figure = go.Figure()
    for kind, table in tables.items():
        name, colour = f"currently {kind}", {"active": ACTIVE, "trained": TRAINED}[kind]
        figure.add_scatter(
            x=_dates(table["anchor"]),
            y=table["value"],
            name=name,
            mode="lines+markers",
            line={"color": colour},
            customdata=table["trigger_id"].astype("object").where(table["trigger_id"].notna(), "none"),
            hovertemplate="%{x}<br>" + metric + " %{y:.4f}<br>model of trigger %{customdata}<extra>" + name + "</extra>",
        )
    figure.update_layout(height=320, yaxis={"title": metric}, hovermode="x unified")
    return figure


def models_figure(results: RunResults) -> go.Figure:
    """Draw the data that each model was trained on over stream time."""
    triggers = results.triggers
    figure = go.Figure()
    rows = [f"trigger {t}" for t in triggers["trigger_id"]]
    starts, ends = _dates(triggers["first_timestamp"]), _dates(triggers["last_timestamp"])
    for row, start, end in zip(rows, starts, ends, strict=True):
        figure.add_scatter(
            x=[start, end], y=[row, row], mode="lines", line={"color": ACTIVE, "width": 12}, showlegend=False, hoverinfo="skip"
        )
    figure.add_scatter(
        x=_dates(triggers["fired_at"]),
        y=rows,
        mode="markers",
        marker={"symbol": "diamond", "size": 11, "color": TRAINED},
        name="trigger",
        customdata=triggers["num_keys"].astype("object"),
        hovertemplate="%{y}<br>fired at %{x}<br>%{customdata} keys<extra></extra>",
    )
    figure.update_layout(height=140 + 24 * max(4, len(rows)), yaxis={"autorange": "reversed"})
    return figure


def triggers_figure(results: RunResults) -> go.Figure:
    """Draw the size of each trigger set over the time of the stream."""
    triggers = results.triggers
    figure = go.Figure()
    keys = triggers["num_keys"].astype("float64")
    figure.add_scatter(
        x=_dates(triggers["fired_at"]),
        y=keys,
        error_y={
            "symmetric": False,
            "array": 0 * keys,
            "arrayminus": keys,
            "color": NEUTRAL,
            "width": 0,
        },  # a line down to the axis
        mode="markers",
        marker={"size": 10, "color": ACTIVE},
        text=[f"trigger {t}" for t in triggers["trigger_id"]],
        hovertemplate="%{text}<br>%{x}<br>%{y} keys<extra></extra>",
        showlegend=False,
    )
    figure.update_layout(height=280, yaxis={"title": "keys", "rangemode": "tozero"})
    return figure


def losses_figure(losses: pd.DataFrame) -> go.Figure:
    """Draw losses over the batches of trainings, put one behind the other. Args: losses: of `losses_table`."""
    figure = go.Figure()
    before = losses.groupby("trigger_id")["batch"].max().cumsum().shift(fill_value=0)
    for is_mean, name, mode, colour in (
        (False, "batches", "lines", NEUTRAL),
        (True, "mean of the epoch", "lines+markers", ACTIVE),
    ):
        curves = [curve for _, curve in losses[losses["is_mean"] == is_mean].groupby("trigger_id")]
        x, y, triggers = list[int | None](), list[float | None](), list[int | None]()
        for curve in curves:  # a gap behind each
            trigger_id = int(curve["trigger_id"].iloc[0])
            x += [*(int(before[trigger_id]) + curve["batch"]), None]
            y += [*curve["loss"], None]
            triggers += [trigger_id] * len(curve) + [None]
        hover = "trigger %{customdata}<br>batch %{x}<br>loss %{y:.4f}<extra>" + name + "</extra>"
        if curves:
            figure.add_scatter(x=x, y=y, customdata=triggers, name=name, mode=mode, line={"color": colour}, hovertemplate=hover)
    figure.update_layout(height=300, xaxis={"title": "batches, over all trainings shown"}, yaxis={"title": "loss"})
    return figure


def stages_figure(results: RunResults) -> go.Figure:
    """Draw seconds by stage, stacked, one bar a trigger."""
    triggers = results.triggers
    figure = go.Figure()
    ids = triggers["trigger_id"].astype("int64")
    for stage, colour in _STAGE_COLOURS.items():
        figure.add_bar(x=ids, y=triggers[f"{stage}_s"].fillna(0.0), name=stage, marker={"color": colour})
    figure.update_layout(barmode="stack", height=300, xaxis={"title": "trigger"}, yaxis={"title": "seconds"})
    return figure


def _head(results: RunResults, spent: Cost) -> str:
    run = results.run
    table = scores(results.triggers, results.evaluations, results.handlers)
    cards = [("state", run.state.value), ("triggers", f"{spent.num_triggers}"), ("samples seen", f"{run.num_samples:,}")]
    cards += [("samples trained on", f"{spent.num_samples:,}"), ("wall time", f"{spent.wall_s:.1f} s")]
    cards += [
        (f"{metric} · {dataset} · {handler} · currently active", f"{score:.3f}" if pd.notna(score) else "–")
        for metric, dataset, handler, score in table[["metric", "dataset", "handler", "active"]].itertuples(index=False)
    ]
    shown = "".join(
        f"<div class='card'><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>" for name, value in cards
    )
    notes = f"<p class='note'>{html.escape(run.message)}</p>" if run.message else ""
    error = f"<div class='error'>{html.escape(run.error)}</div>" if run.error else ""
    return (
        f"<h1>{html.escape(run.run_id)}</h1><p class='note'>{html.escape(run.pipeline_name)}, {run.mode.value} mode</p>"
        f"{error}{notes}<div class='cards'>{shown}</div>{_scores_table(table)}"
    )


def _series_sections(series: Series, results: RunResults) -> list[str]:
    matrix = evaluation_matrix(results.evaluations, series)
    active = composite_performance(matrix, results.triggers, "active")
    kinds = evaluated_kinds(results.handlers, series.handler)
    tables = {kind: composite_performance(matrix, results.triggers, kind) for kind in kinds}
    where = f"{series.metric} on {series.dataset} ({series.handler})"
    return [
        _section(
            f"Evaluation matrix: {where}",
            "Every model on every interval. Outlined: the model that is active there, the newest whose data ends before the interval's anchor.",
            matrix_figure(matrix, active, series),
        ),
        _section(
            f"Over time: {where}",
            "Currently active: what users of the model would have seen. Currently trained: the model after it, which knows such data.",
            performance_figure(tables, series.metric),
        ),
    ]


def _section(title: str, note: str, figure: go.Figure) -> str:
    figure.update_layout(
        template="plotly_white", margin={"l": 60, "r": 20, "t": 20, "b": 40}, legend={"orientation": "h", "y": 1.12}
    )
    plot = figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True})
    return f"<h2>{html.escape(title)}</h2><p class='note'>{html.escape(note)}</p>{plot}"


def _scores_table(table: pd.DataFrame) -> str:
    if table.empty:
        return ""
    rows = [
        [r.metric, r.dataset, r.handler, f"{r.active:.4f}", f"{r.trained:.4f}", f"{r.scored_intervals} of {r.intervals}"]
        for r in table.itertuples(index=False)
    ]
    note = "<p class='note'>Pipeline score: the mean of the composite model over all intervals that have one.</p>"
    header = ["metric", "dataset", "handler", "currently active", "currently trained", "scored"]
    return f"<h2>Scores</h2>{note}{_html_table(header, rows)}"


def _triggers_table(results: RunResults) -> str:
    rows = [
        [
            t["trigger_id"],
            format_timestamp(t["fired_at"]),
            t["num_keys"],
            t["model_id"],
            f"{t['loss']:.4f}" if pd.notna(t["loss"]) else "–",
            f"{t['total_s']:.2f}" if pd.notna(t["total_s"]) else "–",
            t["weights_sha256"][:12] if t["weights_sha256"] else "–",
        ]
        for t in results.triggers.to_dict("records")
    ]
    header = ["trigger", "fired at", "keys", "model", "loss", "seconds", "weights (SHA-256)"]
    return f"<h2>All triggers</h2>{_html_table(header, rows)}"


def _html_table(header: list[str], rows: list[list[Any]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _dates(timestamps: pd.Series[Any]) -> list[str]:
    return [format_timestamp(value) for value in timestamps]


def _span(start: int, end: int) -> str:
    first, last = format_timestamp(start), format_timestamp(end)
    if first.endswith(" 00:00:00") and last.endswith(" 00:00:00"):
        first, last = first[:10], last[:10]
    return f"{first} – {last}"
