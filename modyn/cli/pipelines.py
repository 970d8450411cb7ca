"""`modyn check`, `schema`, `explain`, `plugins`: everything about the pipeline file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modyn.cli.context import Json, connect, say, services_run
from modyn.cli.output import print_json, print_table


def check(file: Annotated[Path, typer.Argument(help="Pipeline file.", show_default=False)], json: Json = False) -> None:
    """Validate a pipeline file without running anything in it. Exit code 1 if it has mistakes, each with its line."""
    from modyn.client import read_pipeline
    from modyn.config.base import Problem
    from modyn.config.pipeline import check_frame
    from modyn.config.yaml_source import load_yaml, with_lines

    text = read_pipeline(file)
    source = load_yaml(text, str(file))
    found = check_frame(source.data)
    asked_services = services_run()
    if asked_services:
        with connect() as client:
            found = client.check(file)
    elif not found:
        from modyn.cli.offline import check_here

        found = check_here(text, str(file))
    # The supervisor puts lines into its messages; here they are printed in front.
    found = [Problem(p.path, p.message.removesuffix(f" (line {source.locate(p.path)})")) for p in found]
    if json:
        print_json([{"path": p.path, "line": source.locate(p.path), "message": p.message} for p in found])
    else:
        for line in with_lines(found, source):
            typer.echo(line)
    if found:
        say(f"{len(found)} problem{'s' if len(found) != 1 else ''}")
        raise typer.Exit(1)
    if not json:
        say(f"{file} is valid" if asked_services else f"{file} is valid here; no services run, so no dataset was looked for")


def schema(json: Json = True) -> None:
    """Print the JSON schema of the pipeline file. Editors complete and check with it. It has no other form: --json changes nothing."""
    from modyn.reference.schema import pipeline_json_schema

    print_json(pipeline_json_schema())


def explain(
    field: Annotated[
        str,
        typer.Argument(help="Dotted path, e.g. training.batch_size or trigger. Without one: the sections.", show_default=False),
    ] = "",
    json: Json = False,
) -> None:
    """Explain a field of the pipeline file: meaning, type, bounds, default. With --json, its JSON schema."""
    from modyn.reference.explain import explain as explain_field
    from modyn.reference.explain import find_fields

    if json:
        return print_json(find_fields(field))
    return typer.echo(explain_field(field))


def plugins(json: Json = False) -> None:
    """List every registered trigger, policy, model, metric and format, and the package that brings it.

    Asks the services; where none run, lists what is installed here.
    """
    if services_run():
        with connect() as client:
            found = client.list_plugins()
    else:
        from modyn.cli.offline import plugins_here

        found = plugins_here()
    if json:
        return print_json(found)
    return print_table(
        ["kind", "id", "package", "from"], [[p.group.removeprefix("modyn."), p.id, p.distribution, p.path] for p in found]
    )
