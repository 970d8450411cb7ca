"""HTML report of a run, in one file that needs no network."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from modyn.analysis.charts.bins import MAX_BINS, Bins, binned_cells, binned_triggers, label
from modyn.analysis.charts.checks import checks_figure, checks_note, with_checks_of
from modyn.analysis.charts.figure import ACTIVE, NEUTRAL, TRAINED, Figure, dates, known
from modyn.analysis.charts.sample_sources import sources_figure, sources_note
from modyn.analysis.charts.selections import (
    AGES_NOTE,
    SHARES_NOTE,
    TRAINED_SHARES_NOTE,
    ages_figure,
    class_shares_figure,
    trained_shares_figure,
)
from modyn.analysis.charts.serving import SERVING_COLUMNS, SERVING_NOTE, aligned, serving_figure, serving_rows
from modyn.analysis.charts.steps import (
    PREQUENTIAL_NOTE,
    PROMOTION_COLUMNS,
    TRAINING_NOTE,
    prequential_figure,
    promotion_rows,
    training_figure,
)
from modyn.analysis.page import html_table, page, section
from modyn.analysis.results import (
    LEARNED_COLUMNS,
    LOSS_CURVES,
    STAGES,
    Cost,
    Kind,
    RunResults,
    Series,
    composite_scores,
    cost,
    evaluated_kinds,
    sample_notes,
    scores,
    series_cells,
    training_warnings,
)
from modyn.analysis.selection_rows import (
    DOWNSAMPLING_CELLS,
    DOWNSAMPLING_NOTE,
    SELECTION_CELLS,
    SELECTION_NOTE,
    cells_of,
    downsampled,
    selection_notes,
)
from modyn.analysis.selections import SelectionTables
from modyn.atomic_write import replacing
from modyn.config.durations import format_timestamp

_STAGE_COLOURS = dict(zip(STAGES, ("#8250df", ACTIVE, "#2da44e", TRAINED), strict=True))

MATRIX_COLOURS = ("#f7fbff", "#c6dbef", "#9ecae1", "#6baed6")
"""Colours from low to high scores. `MATRIX_TEXT` is readable on all these colours."""
MATRIX_TEXT = "#1f2328"
MAX_NUMBERED = 32
"""Largest number of columns of a matrix that shows numbers in its cells. With more columns, the numbers would be unreadable."""
_MODELS_NOTE = "Each bar spans the data that a model was trained on; the diamond marks its trigger."
_LOSS_NOTE = (
    f"The newest {LOSS_CURVES} trainings, one after the other: means of epochs and of samples held out for validation, and losses of batches that "
    "training.record_loss_every keeps."
)
_LOSSES = (
    ("batch", "batches", "lines", NEUTRAL),
    ("epoch", "mean of the epoch", "lines+markers", ACTIVE),
    ("validation", "validation", "lines+markers", TRAINED),
)
"""Losses to draw: name in `losses_table`, title, style and colour."""
_BINNED_NOTE = " There are too many to show each one: neighbours are combined into their mean."
_TABLE_ROWS = 500
_STAGES_NOTE = "Seconds of work per trigger. Evaluation overlaps the next training."


def write_report(results: RunResults, path: Path, selections: SelectionTables | None = None) -> Path:
    """Write the report of a run, finished or not, and return its absolute path. An existing file is replaced atomically.

    Args: selections: choices of the run's triggers; None: the report has no choices. Raises: OSError: the file cannot be written, for example because
    the folder is missing.
    """
    path = path.absolute()
    with replacing(path, path.with_name(path.name + ".tmp")) as file:
        file.write(render(results, selections).encode())
    return path


def render(results: RunResults, selections: SelectionTables | None = None) -> str:
    """Return the complete HTML page. Args: selections: see `write_report`."""
    spent = cost(results)
    parts = [_head(results, spent)]
    if results.evaluations.empty:
        parts.append(
            "<p class='note'>No evaluation results: the pipeline has no evaluation section, or none has finished yet.</p>"
        )
    for series, cells in series_cells(results.evaluations):
        parts += _series_sections(series, cells, results)
    for title, online in (("Checks of the trigger policy", False), ("Checks of the policy of steps", True)):
        of_policy = with_checks_of(results, online=online)
        if (checks := checks_figure(of_policy)) is not None:
            binned = f"{_BINNED_NOTE} The band is the range of these values." if len(of_policy.checks) > MAX_BINS else ""
            parts.append(section(title, checks_note(of_policy) + binned, checks))
    parts += _online_sections(results)
    if len(results.triggers):
        triggers = binned_triggers(results.triggers)
        binned = _BINNED_NOTE if len(results.triggers) > MAX_BINS else ""
        parts += [
            section("Models", _MODELS_NOTE + binned, models_figure(triggers)),
            section("Triggers", "Size of the trigger set over stream time." + binned, triggers_figure(triggers)),
            *([] if selections is None else _selection_sections(selections)),
            *([section("Loss", _LOSS_NOTE, losses_figure(results.losses))] if len(results.losses) else []),
            section("Time by stage", _STAGES_NOTE + binned, stages_figure(triggers)),
            *(
                [section("Cache", sources_note(results.triggers) + binned, served)]
                if (served := sources_figure(results.triggers))
                else []
            ),
            _warnings(results.triggers),
            _triggers_table(results),
        ]
    parts.append(f"<h2>Pipeline</h2><pre>{html.escape(results.run.yaml)}</pre>")
    return page(f"Modyn: {results.run.run_id}", parts)


def matrix_figure(cells: pd.DataFrame, active: pd.DataFrame, series: Series) -> Figure:
    """Draw the scores of models on intervals as a heat map, with bins if there are many models or intervals. Cells of the currently active composite
    model are outlined.

    Args: cells: from `series_cells`. active: table of `composite_scores` for the same cells. series: the series of the cells.
    """
    triggers = np.unique(cells["trigger_id"].to_numpy(np.int64))
    intervals = pd.MultiIndex.from_frame(active[["start", "end", "anchor"]])
    rows, columns = Bins(len(triggers)), Bins(len(intervals))
    at_row = np.searchsorted(triggers, cells["trigger_id"].to_numpy(np.int64))
    at_column = intervals.get_indexer(pd.MultiIndex.from_frame(cells[["start", "end", "anchor"]])).astype(np.int64)
    values = binned_cells(at_row, at_column, cells["value"].to_numpy(np.float64), rows, columns)
    spans = zip(active["start"].iloc[columns.starts], active["end"].iloc[columns.ends], strict=True)
    firsts, lasts = triggers[rows.starts], triggers[rows.ends]
    heatmap = {
        "type": "heatmap",
        "z": [known(row) for row in values],
        "x": [_span(start, end) for start, end in spans],
        "y": [label("trigger", str(first), str(last)) for first, last in zip(firsts, lasts, strict=True)],
        "colorscale": [[at / (len(MATRIX_COLOURS) - 1), colour] for at, colour in enumerate(MATRIX_COLOURS)],
        "hovertemplate": "%{y}<br>%{x}<br>" + series.metric + " %{z:.4f}<extra></extra>",
        "colorbar": {"title": {"text": series.metric}},
    }
    if values.size <= 600 and columns.number <= MAX_NUMBERED:
        heatmap["text"] = [["" if math.isnan(v) else f"{v:.2f}" for v in row] for row in values]
        heatmap |= {"texttemplate": "%{text}", "textfont": {"color": MATRIX_TEXT}}
    answers = active["trigger_id"].fillna(-1).to_numpy(np.int64)
    evaluated = np.flatnonzero(np.isin(answers, triggers))
    outlined = np.unique(
        np.stack([rows.of(np.searchsorted(triggers, answers[evaluated])), columns.of(evaluated)], axis=1), axis=0
    )
    outline = {"type": "rect", "line": {"color": "#ff3b30", "width": 2}}
    shapes = [{**outline, "x0": c - 0.5, "x1": c + 0.5, "y0": r - 0.5, "y1": r + 0.5} for r, c in outlined.tolist()]
    return Figure([heatmap], {"shapes": shapes, "height": 180 + 30 * max(4, rows.number), "yaxis": {"autorange": "reversed"}})


def performance_figure(tables: Mapping[Kind, pd.DataFrame], metric: str) -> Figure:
    """Draw the scores of the evaluated composite models over stream time. Args: tables: from `composite_scores`. metric: name of the metric."""
    traces = []
    for kind, table in tables.items():
        name, colour = f"currently {kind}", {"active": ACTIVE, "trained": TRAINED}[kind]
        traces.append(
            {
                "type": "scatter",
                "x": dates(table["anchor"]),
                "y": known(table["value"]),
                "name": name,
                "mode": "lines+markers" if len(table) <= MAX_BINS else "lines",
                "line": {"color": colour},
                "customdata": ["none" if trigger_id is None else trigger_id for trigger_id in known(table["trigger_id"])],
                "hovertemplate": "%{x}<br>" + metric + " %{y:.4f}<br>model of trigger %{customdata}<extra>" + name + "</extra>",
            }
        )
    return Figure(traces, {"height": 320, "yaxis": {"title": {"text": metric}}, "hovermode": "x unified"})


def models_figure(triggers: pd.DataFrame) -> Figure:
    """Draw the training data of models over stream time. Args: triggers: from `binned_triggers`."""
    rows = triggers["label"].to_list()
    x, y = list[str | None](), list[str | None]()
    for row, start, end in zip(rows, dates(triggers["first_timestamp"]), dates(triggers["last_timestamp"]), strict=True):
        # All bars are one line with gaps, because plotly.js would compute the range of all earlier lines again for each separate line.
        x += [start, end, None]
        y += [row, row, None]
    data = {"type": "scatter", "x": x, "y": y, "mode": "lines", "line": {"color": ACTIVE, "width": 12}}
    fired = {
        "type": "scatter",
        "x": dates(triggers["fired_at"]),
        "y": rows,
        "mode": "markers",
        "marker": {"symbol": "diamond", "size": 11, "color": TRAINED},
        "name": "trigger",
        "customdata": known(triggers["num_keys"]),
        "hovertemplate": "%{y}<br>fired at %{x}<br>%{customdata} keys<extra></extra>",
    }
    order = {"autorange": "reversed", "categoryorder": "array", "categoryarray": rows}
    return Figure(
        [{**data, "showlegend": False, "hoverinfo": "skip"}, fired], {"height": 140 + 24 * max(4, len(rows)), "yaxis": order}
    )


def triggers_figure(triggers: pd.DataFrame) -> Figure:
    """Draw the size of trigger sets over stream time. Args: triggers: from `binned_triggers`."""
    keys = known(triggers["num_keys"])
    sizes = {
        "type": "scatter",
        "x": dates(triggers["fired_at"]),
        "y": keys,
        # A vertical line connects each point with the axis.
        "error_y": {"symmetric": False, "array": [0] * len(keys), "arrayminus": keys, "color": NEUTRAL, "width": 0},
        "mode": "markers",
        "marker": {"size": 10, "color": ACTIVE},
        "text": triggers["label"].to_list(),
        "hovertemplate": "%{text}<br>%{x}<br>%{y} keys<extra></extra>",
        "showlegend": False,
    }
    return Figure([sizes], {"height": 280, "yaxis": {"title": {"text": "keys"}, "rangemode": "tozero"}})


def losses_figure(losses: pd.DataFrame) -> Figure:
    """Draw losses over the batches of trainings, one training after the other. Args: losses: from `losses_table`."""
    traces = []
    before = losses.groupby("trigger_id")["batch"].max().cumsum().shift(fill_value=0)
    for of, name, mode, colour in _LOSSES:
        curves = [curve for _, curve in losses[losses["of"] == of].groupby("trigger_id")]
        x, y, triggers = list[int | None](), list[float | None](), list[int | None]()
        for curve in curves:  # The None makes a gap after each training.
            trigger_id = int(curve["trigger_id"].iloc[0])
            x += [*(int(before[trigger_id]) + curve["batch"]).to_list(), None]
            y += [*known(curve["loss"]), None]
            triggers += [trigger_id] * len(curve) + [None]
        hover = "trigger %{customdata}<br>batch %{x}<br>loss %{y:.4f}<extra>" + name + "</extra>"
        if curves:
            shown = {"type": "scatter", "name": name, "mode": mode, "line": {"color": colour}, "hovertemplate": hover}
            traces.append({**shown, "x": x, "y": y, "customdata": triggers})
    axes = {"xaxis": {"title": {"text": "batches, over all trainings shown"}}, "yaxis": {"title": {"text": "loss"}}}
    return Figure(traces, {"height": 300, **axes})


def stages_figure(triggers: pd.DataFrame) -> Figure:
    """Draw seconds by stage as stacked bars, one for each trigger or bin of triggers. Args: triggers: from `binned_triggers`."""
    shared = {"type": "bar", "x": known(triggers["trigger_id"]), "hovertext": triggers["label"].to_list()}
    bars = [
        {**shared, "y": known(triggers[f"{stage}_s"]), "name": stage, "marker": {"color": colour}}
        for stage, colour in _STAGE_COLOURS.items()
    ]
    axes = {"xaxis": {"title": {"text": "trigger"}}, "yaxis": {"title": {"text": "seconds"}}}
    return Figure(bars, {"barmode": "stack", "height": 300, **axes})


def _head(results: RunResults, spent: Cost) -> str:
    run = results.run
    table = scores(results.triggers, results.evaluations, results.handlers)
    cards = [("state", run.state.value), ("triggers", f"{spent.num_triggers}"), ("samples seen", f"{run.num_samples:,}")]
    cards += [("samples that wait for labels", f"{run.num_waiting:,}")] if run.num_waiting else []
    cards += [("samples trained on", f"{spent.num_samples:,}"), ("wall time", f"{spent.wall_s:.1f} s")]
    cards += [
        (f"{metric} · {dataset} · {handler} · currently active", f"{score:.3f}" if pd.notna(score) else "–")
        for metric, dataset, handler, score in table[["metric", "dataset", "handler", "active"]].itertuples(index=False)
    ]
    shown = "".join(
        f"<div class='card'><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>" for name, value in cards
    )
    notes = "".join(
        f"<p class='note'>{html.escape(note)}</p>"
        for note in (run.message, *sample_notes(results.evaluations, run.run_id))
        if note
    )
    error = f"<div class='error'>{html.escape(run.error)}</div>" if run.error else ""
    return (
        f"<h1>{html.escape(run.run_id)}</h1><p class='note'>{html.escape(run.pipeline_name)}, {run.mode.value} mode</p>"
        f"{error}{notes}<div class='cards'>{shown}</div>{_scores_table(table)}"
    )


def _series_sections(series: Series, cells: pd.DataFrame, results: RunResults) -> list[str]:
    active = composite_scores(cells, results.triggers, "active")
    kinds = evaluated_kinds(results.handlers, series.handler)
    tables = {kind: active if kind == "active" else composite_scores(cells, results.triggers, kind) for kind in kinds}
    binned = _BINNED_NOTE if max(cells["trigger_id"].nunique(), len(active)) > MAX_BINS else ""
    mixed = "".join(f" {note}." for note in sample_notes(cells, results.run.run_id))
    where = f"{series.metric} on {series.dataset} ({series.handler})"
    return [
        section(
            f"Evaluation matrix: {where}",
            "Every model on every interval. The active model is outlined: the newest whose data ends before the interval's anchor."
            + binned
            + mixed,
            matrix_figure(cells, active, series),
        ),
        section(
            f"Over time: {where}",
            "Currently active: the model that users would have used. Currently trained: the next model, which was trained on this data."
            + mixed,
            performance_figure(tables, series.metric),
        ),
    ]


def _online_sections(results: RunResults) -> list[str]:
    """Return the charts of online training and of serving, with a common time range, and the table of promotions."""
    over_time = {
        ("Prequential error", PREQUENTIAL_NOTE): prequential_figure(results.prequential, results.triggers),
        ("Training over time", TRAINING_NOTE): training_figure(results.triggers),
        ("Served predictions", SERVING_NOTE): serving_figure(results.served),
    }
    charts = {title: figure for title, figure in over_time.items() if figure is not None}
    figures = list(charts.values())
    parts = [section(*t, figure) for t, figure in zip(charts, aligned(figures) if results.served else figures, strict=True)]
    if results.served:
        rows = serving_rows(results.served, results.triggers)
        more = f"<p class='note'>The newest {_TABLE_ROWS} of {len(rows)}.</p>" if len(rows) > _TABLE_ROWS else ""
        parts.append(f"<h2>Versions served</h2>{more}{html_table(list(SERVING_COLUMNS), rows[-_TABLE_ROWS:])}")
    if results.promotions:
        rows = promotion_rows(results.promotions, results.triggers)
        parts.append(f"<h2>Promotions</h2>{html_table(list(PROMOTION_COLUMNS), rows)}")
    return parts


def _scores_table(table: pd.DataFrame) -> str:
    if table.empty:
        return ""
    rows = [
        [r.metric, r.dataset, r.handler, _number(r.active), _number(r.trained), f"{r.scored_intervals} of {r.intervals}"]
        for r in table.itertuples(index=False)
    ]
    note = "<p class='note'>Pipeline score: the mean of the composite model over all intervals with a score.</p>"
    header = ["metric", "dataset", "handler", "currently active", "currently trained", "scored"]
    return f"<h2>Scores</h2>{note}{html_table(header, rows)}"


def _number(value: Any, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if pd.notna(value) else "–"


def _triggers_table(results: RunResults) -> str:
    of_steps, late = bool(results.triggers["online"].any()), bool(results.triggers["num_waiting"].any())
    counted = [name for name in LEARNED_COLUMNS if results.triggers[name].notna().any()]
    rows = [
        [
            t["trigger_id"],
            *(["steps" if t["online"] else "training"] if of_steps else []),
            format_timestamp(t["fired_at"]),
            t["num_keys"],
            *([t["num_waiting"]] if late else []),
            t["num_skipped"],
            t["model_id"],
            _number(t["loss"]),
            _number(t["total_s"], 2),
            t["weights_sha256"][:12] if t["weights_sha256"] else "–",
            *(t[name] if pd.notna(t[name]) else 0 for name in counted),
        ]
        for t in results.triggers.tail(_TABLE_ROWS).to_dict("records")
    ]
    more = len(results.triggers) - len(rows)
    note = f"<p class='note'>The newest {len(rows)}; `modyn show --json` also has the {more} earlier ones.</p>" if more else ""
    kind = ["kind"] if of_steps else []
    header = ["trigger", *kind, "fired at", "keys", *(["without labels"] if late else []), "skipped", "model"]
    header += ["loss", "seconds", "weights (SHA-256)", *(name.replace("_", " ") for name in counted)]
    return f"<h2>All triggers</h2>{note}{html_table(header, rows)}"


def _warnings(triggers: pd.DataFrame) -> str:
    """Return the newest warnings of trainings; empty without warnings."""
    found = [list(row) for row in training_warnings(triggers)[-_TABLE_ROWS:]]
    return f"<h2>Warnings of trainings</h2>{html_table(['trigger', 'warning'], found)}" if found else ""


def _span(start: int, end: int) -> str:
    first, last = format_timestamp(start), format_timestamp(end)
    if first.endswith(" 00:00:00") and last.endswith(" 00:00:00"):
        first, last = first[:10], last[:10]
    return f"{first} – {last}"


def _selection_sections(tables: SelectionTables) -> list[str]:
    """Return the sections about the choices of triggers: tables, notes on probably unintended choices, and charts."""
    parts = []
    for title, note, cells, table in (
        ("Selections", SELECTION_NOTE, SELECTION_CELLS, tables.selections),
        ("Downsampling", DOWNSAMPLING_NOTE, DOWNSAMPLING_CELLS, downsampled(tables.selections)),
    ):
        if len(table):
            parts.append(
                f"<h2>{title}</h2><p class='note'>{html.escape(note)}</p>{html_table(list(cells), cells_of(cells, table))}"
            )
    parts += [f"<p class='note'>{html.escape(note)}</p>" for note in selection_notes(tables.selections)]
    charts = (
        ("Ages and overlap", AGES_NOTE, ages_figure(tables.selections)),
        ("Classes", SHARES_NOTE, class_shares_figure(tables.class_shares)),
        ("Classes of the training", TRAINED_SHARES_NOTE, trained_shares_figure(tables.other_shares)),
    )
    return parts + [section(title, note, figure) for title, note, figure in charts if figure is not None]
