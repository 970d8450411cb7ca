"""`modyn check`, `schema`, `explain`, `plugins`: commands on the pipeline file.

`check` and `plugins` ask the services. If no services run, both commands call the functions of the services in this process.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from modyn.cli.context import Json, connect, say, services_run
from modyn.cli.views.output import counted, print_json, print_table, printable

if TYPE_CHECKING:
    from modyn.config.base import Problem
    from modyn.config.yaml_source import YamlSource
    from modyn.registry import Registry


def check(file: Annotated[Path, typer.Argument(help="Pipeline file.", show_default=False)], json: Json = False) -> None:
    """Validate a pipeline file without running it. Print each mistake with its line. Exit code 1 if there are mistakes, 0 if only warnings."""
    from modyn.config.base import Severity
    from modyn.config.overrides import read_pipeline
    from modyn.config.pipeline import check_frame
    from modyn.config.published import pipeline_source
    from modyn.config.yaml_source import load_yaml, with_lines
    from modyn.models.names import with_sources

    source = pipeline_source(load_yaml(with_sources(read_pipeline(file), str(file)), str(file)))
    found = check_frame(source.data)
    asked_services = services_run()
    if asked_services:
        with connect() as client:
            found = client.check(file)
    elif not found:
        found = check_here(source)
    # Messages of the supervisor end with the line number. Here, the line number is printed at the start.
    found = [replace(p, message=p.message.removesuffix(f" (line {source.locate(p.path)})")) for p in found]
    errors = [problem for problem in found if problem.severity is Severity.ERROR]
    if json:
        print_json([{"path": p.path, "line": source.locate(p.path), "message": p.message, "severity": p.severity} for p in found])
    else:
        for line in with_lines(found, source):
            typer.echo(printable(line))
    if errors:
        say(counted(len(errors), "problem"))
        raise typer.Exit(1)
    if not json:
        warned = f", with {counted(len(found), 'warning')}" if found else ""
        say(
            f"{file} is valid{warned}"
            if asked_services
            else f"{file} is valid here{warned}; no services run, so datasets were not checked"
        )


def schema(json: Json = True) -> None:
    """Print the JSON schema of the pipeline file. Editors use it to complete and check the file. --json has no effect."""
    from modyn.reference.schema import pipeline_json_schema

    print_json(pipeline_json_schema())


def explain(
    field: Annotated[
        str,
        typer.Argument(help="Dotted path, e.g. training.batch_size or trigger. Default: list the sections.", show_default=False),
    ] = "",
    json: Json = False,
) -> None:
    """Explain a field of the pipeline file: meaning, type, bounds, default. With --json, print its JSON schema."""
    from modyn.reference.explain import explain as explain_field
    from modyn.reference.explain import find_fields

    if json:
        return print_json(find_fields(field))
    return typer.echo(explain_field(field))


def plugins(json: Json = False) -> None:
    """List every registered trigger, policy, model, metric and format with its package, and report why a plug-in is broken.

    The command asks the services. If no services run, the command lists the plug-ins that are installed here, and imports plug-ins to find broken
    ones.
    """
    if services_run():
        with connect() as client:
            found = client.list_plugins()
    else:
        found = [plugin for registry in registries() for plugin in registry.listed()]
    broken = {
        (registry.group, id_): problem
        for registry in registries()
        for id_, plugin in registry.plugins.items()
        if (plugin.problem or plugin.distribution != "modyn") and (problem := registry.problem(id_))
    }
    found = [replace(plugin, problem=plugin.problem or broken.get((plugin.group, plugin.id), "")) for plugin in found]
    found.sort(key=lambda plugin: (plugin.group, plugin.id))
    if json:
        return print_json(found)
    print_table(
        ["kind", "id", "package", "from"], [[p.group.removeprefix("modyn."), p.id, p.distribution, p.path] for p in found]
    )
    for plugin in found:
        if plugin.problem:
            say(f"broken: {plugin.problem}")
    return None


def check_here(source: YamlSource) -> list[Problem]:
    """Return every mistake that the services would find in a pipeline file. Imports torch, and the user packages that the file names."""
    from modyn.config.preprocessing import with_columns
    from modyn.config.published import pipeline_source
    from modyn.evaluator.config import check_evaluation
    from modyn.model_storage.section import validate_section
    from modyn.rpc.environment import look_here_last
    from modyn.rpc.wire import from_struct, to_struct
    from modyn.selector.history import check_history
    from modyn.selector.selection import asked_scores, validate_selection_section
    from modyn.supervisor.pipeline_checks.validation import find_problems
    from modyn.trainer_server.check import check as check_training

    source = pipeline_source(source)
    look_here_last()  # Services also find modules of the current folder, because they are started in it.
    received = from_struct(to_struct(with_columns(source.data)))  # Services receive numbers as doubles.
    found = [*validate_selection_section(received), *check_history(received)]
    found += [*validate_section(received), *check_evaluation(received)]
    # The trainer's check does not use its parameter for a connection.
    found += check_training(received, cast("Any", None), asked_scores(received))
    return find_problems(source, [lambda _: found])


def registries() -> tuple[Registry[Any], ...]:
    """Return the registries of all kinds of plug-ins."""
    from modyn.evaluator.drift import DRIFT_METRICS
    from modyn.evaluator.drift.projections import PROJECTIONS
    from modyn.evaluator.metrics.metrics import METRICS
    from modyn.model_storage.formats import MODEL_FORMATS
    from modyn.models import MODELS
    from modyn.preprocessing import COMPONENTS
    from modyn.selector.history import HISTORY
    from modyn.selector.presampling import PRESAMPLING
    from modyn.selector.selection import SELECTION
    from modyn.storage.formats import REGISTRY as FILE_FORMATS
    from modyn.supervisor.criteria import CRITERIA, PERFORMANCE_CRITERIA
    from modyn.supervisor.detectors import DETECTORS
    from modyn.supervisor.evaluation import EVALUATION_STRATEGIES
    from modyn.supervisor.triggers import TRIGGERS
    from modyn.trainer_server.downsampling.policies import DOWNSAMPLING
    from modyn.trainer_server.request.config import OPTIMIZERS, SCHEDULERS

    return (
        TRIGGERS, EVALUATION_STRATEGIES, SELECTION, PRESAMPLING, HISTORY, DOWNSAMPLING, COMPONENTS, MODELS, OPTIMIZERS, SCHEDULERS, METRICS,
        FILE_FORMATS, MODEL_FORMATS, DRIFT_METRICS, PROJECTIONS, CRITERIA, PERFORMANCE_CRITERIA, DETECTORS,
    )  # fmt: skip
