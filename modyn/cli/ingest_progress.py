"""What the commands that index files show: progress, and what came of it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from modyn.cli.context import say
from modyn.cli.output import counted, date

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from modyn.storage.client import DatasetInfo, FileProblem, IngestProgress


@contextmanager
def shown_progress() -> Iterator[Callable[[IngestProgress], None]]:
    """Show the progress of an ingestion on standard error inside the block; yields what takes it."""
    from rich.console import Console
    from rich.status import Status

    with Status("looking for files", console=Console(stderr=True)) as shown:
        yield lambda p: shown.update(
            f"{p.files_indexed:,} of {p.files_seen:,} files, {p.samples_indexed:,} new samples, {counted(p.problems, 'problem')}"
        )


def say_what_is_indexed(info: DatasetInfo, problems: Sequence[FileProblem] = ()) -> None:
    """Print the extent of a dataset and what was left out. Raises: typer.Exit, code 1: all files were set aside.

    Args: problems: the only one, if that keeps all files from being indexed.
    """
    times = f", from {date(info.min_timestamp)} to {date(info.max_timestamp)}" if info.num_samples else ""
    say(f"{info.name}: {counted(info.num_samples, 'sample')} in {counted(info.num_files, 'file')}{times}")
    if problems:
        say(problems[0].reason)
    for number, thing, left_out in ((info.num_problems, "file", "set aside"), (info.num_skipped, "row", "skipped")):
        if number and not problems:
            verb = "was" if number == 1 else "were"
            say(f"{counted(number, thing)} {verb} {left_out}; `modyn data problems {info.name}` lists the reasons")
    if info.num_problems and not info.num_samples:
        raise typer.Exit(1)
