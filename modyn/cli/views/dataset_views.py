"""Views of `modyn data`: progress and result of indexing, and the samples that a training chose."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer

from modyn.cli.context import say
from modyn.cli.views.output import counted, date, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from modyn.analysis.chosen_samples import ChosenTable
    from modyn.storage.client import DatasetInfo, FileProblem, IngestProgress

SHOWN_CLASSES: Final = 20
"""Number of classes that are printed after an ingestion."""
SHOWN_SAMPLES: Final = 1_000
"""Default number of samples of a trigger set that are printed."""


@contextmanager
def shown_progress() -> Iterator[Callable[[IngestProgress], None]]:
    """Show the progress of an ingestion on standard error within a `with` block. Yields the function that receives the progress."""
    from rich.console import Console
    from rich.status import Status

    with Status("looking for files", console=Console(stderr=True)) as shown:
        yield lambda p: shown.update(
            f"{p.files_indexed:,} of {p.files_seen:,} files, {p.samples_indexed:,} new samples, {counted(p.problems, 'problem')}"
        )


def say_what_is_indexed(info: DatasetInfo, problems: Sequence[FileProblem] = ()) -> None:
    """Print the size of a dataset, and the numbers of rejected files and skipped rows. Raises: typer.Exit, code 1: all files were rejected.

    Args: problems: the only problem of the dataset, if no file is indexed; otherwise empty.
    """
    times = f", from {date(info.min_timestamp)} to {date(info.max_timestamp)}" if info.num_samples else ""
    say(f"{info.name}: {counted(info.num_samples, 'sample')} in {counted(info.num_files, 'file')}{times}")
    if info.classes:
        more = " …" if len(info.classes) > SHOWN_CLASSES else ""
        say(f"classes: {', '.join(f'{number} {name}' for number, name in enumerate(info.classes[:SHOWN_CLASSES]))}{more}")
    if problems:
        say(problems[0].reason)
    for number, thing, left_out in ((info.num_problems, "file", "set aside"), (info.num_skipped, "row", "skipped")):
        if number and not problems:
            verb = "was" if number == 1 else "were"
            say(f"{counted(number, thing)} {verb} {left_out}; `modyn data problems {info.name}` lists the reasons")
    if info.num_problems and not info.num_samples:
        raise typer.Exit(1)


def show_chosen(found: ChosenTable, *, json: bool) -> None:
    """Print the samples that a training chose. The table omits empty columns, and the column `chosen` if all samples were chosen."""
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
