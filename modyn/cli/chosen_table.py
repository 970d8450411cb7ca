"""The samples that a training chose, as `modyn data show --run` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from modyn.cli.context import say
from modyn.cli.output import print_json, print_table

if TYPE_CHECKING:
    from modyn.analysis.chosen_samples import ChosenTable

SHOWN_SAMPLES: Final = 1_000
"""Samples of a trigger set that are printed if no other number is asked for."""


def show_chosen(found: ChosenTable, *, json: bool) -> None:
    """Print the samples that a training chose; as a table without columns that are empty, or that say of all that they were chosen."""
    from modyn.analysis.times import with_times

    table = with_times(found.table)
    if len(table) < found.total:
        say(f"the first {len(table):,} of {found.total:,} samples; --limit shows more, --json all")
    if found.note:
        say(found.note)
    if json:
        return print_json(table)
    shown = table.dropna(axis="columns", how="all") if len(table) else table
    if "chosen" in shown and shown["chosen"].all():
        shown = shown.drop(columns="chosen")
    missing = shown.isna().to_dict("records")
    rows = zip(shown.to_dict("records"), missing, strict=True)
    return print_table(
        [str(name) for name in shown.columns],
        [
            ["–" if lacks[name] else f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in row.items()]
            for row, lacks in rows
        ],
        empty="the training chose no sample",
    )
