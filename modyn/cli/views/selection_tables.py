"""View of `modyn show --selections`: candidates and choices of a run's triggers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from modyn.cli.views.output import number, print_table
from modyn.cli.views.run_tables import SHOWN

if TYPE_CHECKING:
    import pandas as pd

    from modyn.analysis.selections import SelectionTables


def print_selections(tables: SelectionTables) -> None:
    """Print the newest triggers of a run, and their class shares if there are few classes."""
    from modyn.analysis.selection_rows import DOWNSAMPLING_CELLS, SELECTION_CELLS, cells_of, downsampled, selection_notes

    table = tables.selections.tail(SHOWN)
    print_table(
        list(SELECTION_CELLS), cells_of(SELECTION_CELLS, table), title="Selections", empty="no trigger has a trigger set yet"
    )
    if len(chosen := downsampled(table)):
        title = (
            "Downsampling: samples of the trigger sets and samples trained on, summed over epochs; 5, 50 and 95 % quantiles of the weights, the "
            "largest weight, and the number of samples of equal weight with the same effect"
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
        "Class shares in the training, whose classes are not the labels of the stream: before downsampling → after",
    )


def _print_shares(table: pd.DataFrame, triggers: list[int], names: list[str], title: str) -> None:
    """Print shares by trigger and class if there are few classes. Args: names: names of the columns."""
    from modyn.analysis.charts.selections import MOST_CLASSES, sorted_labels
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
