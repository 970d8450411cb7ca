"""What triggers chose from and what they chose: summaries of the selector and records of trainings as tables, and a picture of class shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd

from modyn.analysis.figure import Figure, known
from modyn.records import RunId, SelectionSummary
from modyn.selector.client import SelectorClient
from modyn.supervisor.client import SupervisorClient, TriggerRecord

NEWEST: Final = 100
"""Triggers of a run that are looked at: counting a trigger for the first time reads all of its samples."""
MOST_CLASSES: Final = 20
"""Classes that the picture shows by themselves, those with the most samples."""
SHARES_NOTE: Final = (
    "Share of each class among the candidates of a trigger, among those that it chose, and after downsampling in the trainer."
)
_STACKS: Final = (("there", "candidates_share"), ("chosen", "chosen_share"), ("trained", "trained_share"))
"""Names of the bars of a trigger in the picture, and the columns that they show."""
_COLUMNS: Final = {
    "trigger_id": "Int64",
    "num_candidates": "Int64",
    "num_chosen": "Int64",
    "chosen_before": "float64",
    "num_classes": "Int64",
    "median_age": "float64",
    "median_age_candidates": "float64",
    "least_weight": "float64",
    "median_weight": "float64",
    "most_weight": "float64",
    "downsampling": "object",
    "downsampling_turn": "Int64",
    "downsampling_score": "float64",
    "downsampling_candidates": "Int64",
    "downsampling_chosen": "Int64",
    "score_s": "float64",
    "choose_s": "float64",
    "effective_epochs": "float64",
}
"""Columns of the table of selections, each with its type."""


def read_selections(
    supervisor: SupervisorClient, selector: SelectorClient, run_id: str
) -> tuple[Sequence[SelectionSummary], Sequence[TriggerRecord]]:
    """Read what the newest triggers of a run with a trigger set chose, and their records. Raises: NotFoundError: there is no such run."""
    triggers = [trigger for trigger in supervisor.triggers(run_id, with_losses=False) if trigger.num_keys is not None][-NEWEST:]
    return [selector.summary(RunId(run_id), trigger.trigger_id) for trigger in triggers], triggers


def selections_table(summaries: Sequence[SelectionSummary], triggers: Sequence[TriggerRecord]) -> pd.DataFrame:
    """Return one row a trigger, missing where there is none: counts; `chosen_before`, the share of the chosen samples that the trigger before chose
    too; ages in seconds before the newest candidate; weights; of downsampling its strategy, its position in `downsampling_list` and the score that
    decided for it, if one did, counts, seconds, and `effective_epochs`: samples trained on by samples of the trigger set.

    Args: triggers: of the same triggers, in the same order.
    """
    rows = [
        [
            summary.trigger_id,
            summary.num_candidates,
            summary.num_chosen,
            summary.num_shared / summary.num_chosen if summary.num_chosen else None,
            summary.num_classes,
            *(values[2] if values else None for values in (summary.ages, summary.candidate_ages)),
            *((summary.weights[at] if summary.weights else None) for at in (0, 2, 4)),
            *_of_downsampling(trigger, summary),
        ]
        for summary, trigger in zip(summaries, triggers, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)


def _of_downsampling(trigger: TriggerRecord, summary: SelectionSummary) -> list[Any]:
    record = trigger.training_result.get("downsampling")
    turn = [trigger.downsampling_turn, trigger.downsampling_score]
    if record is None:
        trained = trigger.num_trained
        epochs = None if trained is None or not summary.num_chosen else trained / summary.num_chosen
        return [None, *turn, None, None, None, None, epochs]
    seconds = record.get("seconds", {})
    counts = (record.get("num_candidates"), record.get("num_chosen"))
    return [record.get("strategy"), *turn, *counts, seconds.get("score"), seconds.get("choose"), record.get("effective_epochs")]


def class_shares_table(summaries: Sequence[SelectionSummary], triggers: Sequence[TriggerRecord]) -> pd.DataFrame:
    """Return one row for each trigger and class: trigger_id, label, candidates, chosen, their shares, and `trained_share`, that after
    downsampling, missing without.

    Args: triggers: of the same triggers, in the same order.
    """
    rows = []
    for summary, trigger in zip(summaries, triggers, strict=True):
        after = trigger.training_result.get("downsampling", {}).get("class_shares", {}).get("after", {})
        for found in summary.classes:
            shares = (found.candidates / summary.num_candidates, found.chosen / max(1, summary.num_chosen))
            trained = after.get(str(found.label), 0.0) if after else None
            rows.append([summary.trigger_id, found.label, found.candidates, found.chosen, *shares, trained])
    columns = ["trigger_id", "label", "candidates", "chosen", "candidates_share", "chosen_share", "trained_share"]
    table = pd.DataFrame(rows, columns=columns)
    return table.astype({**dict.fromkeys(columns[:4], "int64"), **dict.fromkeys(columns[4:], "float64")})


def class_shares_figure(table: pd.DataFrame) -> Figure | None:
    """Draw class shares, stacked, by trigger: of the candidates, of what was chosen, and of what was trained on after downsampling.

    Args: table: of `class_shares_table`. None: there are no classes.
    """
    if table.empty:
        return None
    sizes = table.groupby("label")["candidates"].sum().sort_values(ascending=False)
    stacks = [(name, column) for name, column in _STACKS if table[column].notna().any()]
    long = table.melt(["trigger_id", "label"], [column for _, column in stacks]).dropna(subset="value")
    names = long["variable"].map({column: name for name, column in stacks})
    traces: list[dict[str, Any]] = []
    for label in sorted(sizes.index[:MOST_CLASSES].to_list()):
        rows = long[long["label"] == label].sort_values("trigger_id", kind="stable")
        x = [[f"trigger {number}" for number in rows["trigger_id"]], names[rows.index].to_list()]
        hover = f"%{{x}}<br>class {label}: %{{y:.1%}}<extra></extra>"
        traces.append({"type": "bar", "name": f"class {label}", "x": x, "y": known(rows["value"]), "hovertemplate": hover})
    return Figure(traces, {"barmode": "stack", "height": 360, "yaxis": {"title": {"text": "share"}, "tickformat": ".0%"}})
