"""What `modyn show --selections` prints: what the triggers of a run chose from, and what they chose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from modyn.cli.output import number, print_table
from modyn.cli.run_tables import SHOWN

if TYPE_CHECKING:
    import pandas as pd

    from modyn.analysis.selections import SelectionTables


def print_selections(tables: SelectionTables) -> None:
    """Print the newest triggers of a run, and their class shares where there are few classes."""
    from modyn.analysis.selection_rows import DOWNSAMPLING_CELLS, SELECTION_CELLS, cells_of, downsampled, selection_notes

    table = tables.selections.tail(SHOWN)
    print_table(
        list(SELECTION_CELLS), cells_of(SELECTION_CELLS, table), title="Selections", empty="no trigger has a trigger set yet"
    )
    if len(chosen := downsampled(table)):
        title = (
            "Downsampling: samples of the trigger sets and those trained on, summed over epochs, with the 5, 50 and 95 % quantiles of the weights, "
            "the largest, and how many samples of equal weight these count as"
        )
        print_table(list(DOWNSAMPLING_CELLS), cells_of(DOWNSAMPLING_CELLS, chosen), title=title)
    for note in selection_notes(table):
        typer.echo(f"\n{note}")
    triggers = table["trigger_id"].to_list()
    _print_shares(
        tables.class_shares,
        triggers,
        ["candidates_share", "chosen_share", "trained_share"],
        "Class shares: among the candidates → chosen → trained on after downsampling",
    )
    _print_shares(
        tables.other_shares,
        triggers,
        ["before_share", "after_share"],
        "Class shares in the training, which has other labels: before downsampling → after",
    )


def _print_shares(table: pd.DataFrame, triggers: list[int], names: list[str], title: str) -> None:
    """Print shares by trigger and class where there are few classes. Args: names: of the columns."""
    from modyn.analysis.selection_charts import MOST_CLASSES, sorted_labels
    from modyn.analysis.selection_rows import rows_of, shares_text

    table = table[table["trigger_id"].isin(triggers)]
    labels = sorted_labels(table["label"].unique().tolist())
    if not 0 < len(labels) <= MOST_CLASSES:
        return
    cells = {(row["trigger_id"], row["label"]): shares_text(*(row[name] for name in names)) for row in rows_of(table)}
    print_table(
        ["trigger", *(f"class {label}" for label in labels)],
        [
            [number(trigger), *(cells.get((trigger, label), "–") for label in labels)]
            for trigger in triggers
            if any((trigger, label) in cells for label in labels)
        ],
        title=title,
    )
