"""`modyn data label`: labels that come after the records that they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modyn.cli.context import Json, connect, say
from modyn.cli.output import print_json

SHOWN_KEYS = 10


def label(
    name: Annotated[str, typer.Argument(help="Name of the dataset.", show_default=False)],
    file: Annotated[Path, typer.Argument(help="File of JSON lines, one label each.", show_default=False)],
    json: Json = False,
) -> None:
    """Give records that were appended without a label their labels. Repeating it sets only what is missing: a record keeps its first label.

    A line: {"key": "ID", "label": 1}, with the key that the record was appended with. Runs in production mode train on a sample once its label has
    come.
    """
    from modyn.cli.record_lines import read_labels

    counts, differing = {"labelled": 0, "duplicates": 0, "differing": 0}, list[str]()
    with connect(start=True) as client:
        for labels in read_labels(file):
            answers = client.set_labels(name, labels)
            counts["labelled"] += sum(not answer.is_duplicate for answer in answers)
            counts["duplicates"] += sum(answer.is_duplicate for answer in answers)
            differing += [key for key, answer in zip(labels, answers, strict=True) if answer.differs]
    counts["differing"] = len(differing)
    if json:
        return print_json({**counts, "differing_keys": differing[:SHOWN_KEYS]})
    say(f"{name}: {counts['labelled']:,} records labelled, {counts['duplicates']:,} had a label")
    if differing:
        say(f"{len(differing):,} of those have another label there, which stays; keys: {', '.join(differing[:SHOWN_KEYS])}")
    return None
