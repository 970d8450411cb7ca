"""`modyn data scrub`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from modyn.cli.context import Json, connect, say
from modyn.cli.output import print_json

if TYPE_CHECKING:
    from modyn.storage.client import ScrubProgress


def scrub(name: Annotated[str, typer.Argument(help="Name of the dataset.", show_default=False)], json: Json = False) -> None:
    """Read all of a dataset's index and data files, compare them with their checksums, and refuse the samples of those that differ. Exit code 1 if
    a file is damaged, was rewritten or cannot be read.

    The first scrub that reads a data file compares a part of it and computes its checksum, which the next ones compare: a file that was rewritten
    with the size and the time that it had is found from the second scrub on. Storage scrubs by itself, slowly, every storage.scrub_every_s
    seconds. Objects in buckets are not read.
    """
    from rich.console import Console
    from rich.status import Status

    steps: list[ScrubProgress] = []

    def show(step: ScrubProgress) -> None:
        steps[:] = [step]
        shown.update(f"{step.files_compared:,} of {step.files_seen:,} data files compared")

    with connect() as client, Status("reading the index", console=Console(stderr=True)) as shown:
        damaged = client.storage.scrub_dataset(name, show)
    if json:
        print_json(damaged)
    else:
        for problem in damaged:
            say(problem.reason)
        if not damaged:
            say(
                f"{name}: all files of its index match their checksums, {steps[-1].files_compared:,} data files are as they were indexed"
            )
        if first := steps[-1].files_first:
            say(
                f"{first:,} data files were read for the first time: what is rewritten in them from now on is found by the next scrub"
            )
    if damaged:
        raise typer.Exit(1)
