"""Views of `modyn show` and of the end of `modyn run`: state and results of a run, checks of its trigger policy, and scores of its trainings."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from modyn.cli.context import say
from modyn.cli.views.check_lines import evidence_text, verdict_text
from modyn.cli.views.event_texts import kind_of, serving_text
from modyn.cli.views.output import clock, date, day, number, print_fields, print_table

if TYPE_CHECKING:
    import pandas as pd

    from modyn.analysis.results import RunResults
    from modyn.client import Client
    from modyn.supervisor.client import CheckRecord, Run, ServingStatus

SHOWN = 50
"""Largest number of triggers or intervals in a table. A table shows the newest ones."""
_MODEL_WIDTH, _GAP = 16, 3
"""Characters of the first column of a matrix on a terminal, and of the space between two columns."""


def print_checks(checks: Sequence[CheckRecord]) -> None:
    """Print the checks in which a trigger policy examined data: position, measurement, threshold, and decision.

    If there are many series, a terminal shows only a few series, unusual series first.
    """
    shown = {} if sys.stdout.isatty() else {"shown": None}
    of_steps = any(check.online for check in checks)
    print_table(
        ["after samples", *(["policy"] if of_steps else []), "time", "evidence", "verdict", "seconds"],
        [
            [
                check.position,
                *(["online.trigger" if check.online else "trigger"] if of_steps else []),
                date(check.timestamp),
                evidence_text(check.evidence, **shown),
                verdict_text(check.evidence, fires=check.fires),
                check.seconds,
            ]
            for check in checks
        ],
        empty="no checks: amount and time triggers do not look at data",
    )


def print_runs(runs: Sequence[Run]) -> None:
    """Print a table of runs. Missing evaluations are evaluations that failed, and were not repeated with success."""
    print_table(
        ["run", "pipeline", "mode", "state", "samples", "triggers", "submitted", "finished", "missing evaluations", "tags"],
        [
            [
                run.run_id,
                run.pipeline_name,
                run.mode.value,
                run.state.value,
                run.num_samples,
                run.num_triggers,
                clock(run.submitted_at),
                clock(run.finished_at),
                run.failed_evaluations or "",
                " ".join(run.tags),
            ]
            for run in runs
        ],
        empty="no runs yet; `modyn run pipeline.yaml` starts one",
    )


def print_run(run: Run, serving: ServingStatus) -> None:
    """Print the state and the numbers of a run, and the present work of the run's prediction servers."""
    of = f" of {run.total_samples:,}" if run.total_samples else ""
    print_fields(
        {
            "run": run.run_id,
            "pipeline": run.pipeline_name,
            "mode": run.mode.value,
            "state": run.state.value,
            "samples": f"{run.num_samples:,}{of}",
            **({"without labels": f"{run.num_waiting:,}, which wait for labels"} if run.num_waiting else {}),
            "triggers": run.num_triggers,
            "submitted": clock(run.submitted_at),
            "finished": clock(run.finished_at),
            **({"serving": serving_text(serving)} if serving.num_servers else {}),
            **({"tags": " ".join(run.tags)} if run.tags else {}),
            **{name: text for name, text in (("message", run.message), ("error", run.error)) if text},
            **({"evaluations": _failed_evaluations(run)} if run.failed_evaluations else {}),
        }
    )


def _failed_evaluations(run: Run) -> str:
    return f"{run.failed_evaluations} failed, see `modyn watch {run.run_id}`; `modyn evaluate {run.run_id}` repeats them"


def show_results(client: Client, run_id: str) -> None:
    """Print the results of a run, or say that pandas is not installed."""
    from modyn.errors import UnavailableError

    try:
        import modyn.analysis  # noqa: F401
    except UnavailableError as error:
        say(str(error))
    else:
        print_results(client.results(run_id))


def print_results(results: RunResults) -> None:
    """Print the newest triggers, the evaluation matrix of each metric, pipeline scores and cost."""
    from modyn.analysis.results import (
        CACHED_COLUMNS,
        LEARNED_COLUMNS,
        composite_scores,
        cost,
        evaluation_matrix,
        sample_notes,
        scores,
        series_cells,
        training_warnings,
    )

    triggers = results.triggers
    if triggers.empty:
        return
    newest = triggers.tail(SHOWN)
    left_out = f" (the newest {len(newest)} of {len(triggers)}; --json has all)" if len(newest) < len(triggers) else ""
    counted = [name for name in (*LEARNED_COLUMNS, *CACHED_COLUMNS) if newest[name].notna().any()]
    of_steps, late = bool(triggers["online"].any()), bool(newest["num_waiting"].any())
    typer.echo()
    print_table(
        [
            "trigger", *(["kind"] if of_steps else []), "fired at", "keys", *(["without labels"] if late else []), "skipped", "model", "loss",
            "train s", "total s", "weights", *counted,
        ],
        [
            [
                number(t["trigger_id"]), *([kind_of(online=t["online"])] if of_steps else []), date(t["fired_at"]), t["num_keys"],
                *([t["num_waiting"]] if late else []),
                t["num_skipped"], number(t["model_id"]), t["loss"], t["train_s"], t["total_s"], (t["weights_sha256"] or "–")[:12],
                *(t[name] for name in counted),
            ]
            for t in newest.to_dict("records")
        ],
        title=f"Triggers{left_out}",
    )  # fmt: skip
    bad = [(t["trigger_id"], s["key"], s["place"], s["reason"]) for t in newest.to_dict("records") for s in t["bad_samples"]]
    if bad:
        typer.echo()
        print_table(["trigger", "key", "place", "reason"], bad[-SHOWN:], title="Bad samples, left out")
    if warnings := training_warnings(newest):
        typer.echo()
        print_table(["trigger", "warning"], warnings[-SHOWN:], title="Warnings of trainings")
    for series, cells in series_cells(results.evaluations):
        performance = composite_scores(cells, triggers, "active").tail(SHOWN)
        active = performance.set_index(["start", "end", "anchor"])["trigger_id"].fillna(-1)
        shown = cells[cells["trigger_id"].isin(newest["trigger_id"])].merge(performance[["start", "end", "anchor"]])
        title = f"{series.metric} on {series.dataset} ({series.handler}); * = currently active model{left_out}"
        _print_matrix(evaluation_matrix(shown, series), active, title)
    table = scores(triggers, results.evaluations, results.handlers)
    print_table(
        ["metric", "dataset", "handler", "currently active", "currently trained"],
        [[r["metric"], r["dataset"], r["handler"], r["active"], r["trained"]] for r in table.to_dict("records")],
        title="Pipeline scores",
        empty="no evaluation results",
    )
    for note in sample_notes(results.evaluations, results.run.run_id):
        typer.echo(f"note: {note}")
    spent = cost(results)
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in spent.by_stage_s.items())
    typer.echo(f"cost: {spent.num_triggers} triggers, {spent.num_samples:,} samples, {spent.wall_s:.1f} s wall ({stages})")


def _print_matrix(matrix: pd.DataFrame, active: pd.Series[int], title: str) -> None:
    """Print scores of models on intervals. A terminal shows the newest intervals that fit, and only models with a score in one of these intervals."""
    days = [day(start) for start in matrix.columns.get_level_values("start")]
    rows = {
        row: [
            f"{value:.3f}{'*' if active[at] == row else ''}" if math.isfinite(value) else "–"
            for at, value in matrix.loc[row].items()
        ]
        for row in matrix.index
    }
    if sys.stdout.isatty():
        days = [text.replace("-", "-\n", 1) for text in days]  # Dates on two lines are half as wide, so more intervals fit.
        width = max(len(cell) for cells in [*rows.values(), ["0000-"]] for cell in cells)
        fits = max(1, (shutil.get_terminal_size().columns - _MODEL_WIDTH) // (width + _GAP))
        title += f" (the newest {fits} of {len(days)} intervals; `modyn report` draws all)" if fits < len(days) else ""
        days, rows = days[-fits:], {row: cells[-fits:] for row, cells in rows.items() if set(cells[-fits:]) != {"–"}}
    print_table(["model \\ from", *days], [[f"trigger {row}", *cells] for row, cells in rows.items()], title=title)


def print_score_summary(client: Client, run_id: str) -> None:
    """Print the scores of the newest trainings, one line for each epoch and score."""
    from modyn.analysis.feedback import feedback_summary

    table = feedback_summary(client.selector, run_id)
    # Number of the epoch of each line, from 0. An epoch has a line for each score.
    epochs = table.groupby(["trigger_id", "epoch"]).ngroup()
    total = epochs.nunique()
    title = f"Scores (the newest {SHOWN} of {total} epochs)" if total > SHOWN else None
    print_table(
        ["trigger", "epoch", "score", "samples", "mean", "least", "median", "greatest"],
        [
            [
                number(t["trigger_id"]),
                number(t["epoch"]),
                t["score"],
                t["num_samples"],
                t["mean"],
                t["least"],
                t["median"],
                t["greatest"],
            ]
            for t in table[epochs >= total - SHOWN].to_dict("records")
        ],
        title=title,
        empty="no scores: trainings keep none; set selection_strategy.keep_scores: true",
    )


def print_scores(client: Client, run_id: str, trigger_id: int) -> None:
    """Print the scores of a trigger's training in its last epoch, highest first. Scores that consist of several numbers are left out."""
    table = client.feedback(run_id, trigger_id)
    last = table[table["epoch"] == table["epoch"].max()]
    names = [str(name) for name in last.columns[3:] if "." not in str(name)]
    if names:
        last = last.sort_values(names[0], ascending=False, kind="stable")
    left_out = f" (the highest {SHOWN} of {len(last)}; --json has all)" if len(last) > SHOWN else ""
    print_table(
        ["key", "epoch", *names],
        [[number(t["key"]), number(t["epoch"]), *(t[name] for name in names)] for t in last.head(SHOWN).to_dict("records")],
        title=f"Scores of trigger {trigger_id}{left_out}",
        empty="the training saw no sample",
    )
