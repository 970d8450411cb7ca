"""View of `modyn show --scores`: the scores of a run's trainings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modyn.cli.views.output import number, print_table
from modyn.cli.views.run_tables import SHOWN

if TYPE_CHECKING:
    from modyn.client import Client

_EMPTY = "no scores: trainings keep none; set selection_strategy.keep_scores: true"


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
        empty=_EMPTY,
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
