"""Check the policies of `modyn simulate` before the start, including the drift metrics, projections and evaluations that the evaluator computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from modyn.config.base import Problem, Severity
from modyn.config.preprocessing import with_columns
from modyn.config.trigger_parts import WINDOWS, ComparedData, Part, compared_data, each_part
from modyn.config.yaml_source import with_lines
from modyn.errors import ConfigError
from modyn.supervisor.simulation.dataset_evidence import NO_DATA, NO_MODEL, NO_SECONDS
from modyn.supervisor.simulation.policy_file import PolicyFile, value_at
from modyn.supervisor.simulation.stream import SimulationClients, SimulationOptions, reference_columns
from modyn.supervisor.triggers import TRIGGERS, with_defaults

_AT_ONCE: Final = 500
"""Number of policies that one message to the evaluator covers."""


def check_policies(clients: SimulationClients, file: PolicyFile, options: SimulationOptions) -> None:
    """Refuse policies that would fail during the simulation.

    Raises: ConfigError: lists every mistake with file, line, path, and the nearest name that exists. InvalidArgumentError: the options contradict
    each other. NotFoundError: the run or the model does not exist.
    """
    options.check()
    policies = [(file.paths[name], section) for name, section in file.sections.items()]
    found = [Problem(path, message) for path, section in policies if (message := missing_input(section, options))]
    if not found:
        pipeline: Mapping[str, Any] = {"data": {"dataset_id": options.dataset}}
        if options.run_id is not None:
            pipeline = clients.supervisor.run(options.run_id).pipeline
        columns = reference_columns(clients, options)
        for at in range(0, len(policies), _AT_ONCE):
            found += _asked(clients, pipeline, columns, policies[at : at + _AT_ONCE])
    if found:
        raise ConfigError("\n".join(with_lines(found, file.source)))


def missing_input(section: Mapping[str, Any], options: SimulationOptions) -> str:
    """Return why a policy cannot be simulated with these options, or an empty text. Args: section: a `trigger` section without mistakes."""
    if options.run_id is not None:
        return ""
    found = dict[str, None]()
    for _, part in each_part(with_defaults(section), ""):
        compared = _compared(part) if options.model_id is None else None
        if compared is not None and compared.needs_model:
            found[NO_MODEL] = None
        if compared is ComparedData.PAYLOAD and options.data is None:
            found[NO_DATA] = None
        if options.seconds is None and part.get("id") in TRIGGERS and TRIGGERS.get(part["id"]).weighs_seconds:
            found[NO_SECONDS] = None
    return "; ".join(found)


def _compared(part: Part) -> ComparedData | None:
    """Return the values that a part of a policy compares; `predictions` if the part evaluates a model; None if the part only reads the stream."""
    if WINDOWS in part:
        return ComparedData(str(compared_data(part)))
    return ComparedData.PREDICTIONS if isinstance(part.get("evaluation"), Mapping) else None


def _asked(
    clients: SimulationClients,
    pipeline: Mapping[str, Any],
    columns: Mapping[str, Any],
    policies: list[tuple[str, dict[str, Any]]],
) -> Iterator[Problem]:
    """Yield the mistakes that the evaluator finds in the policies, which it receives as one ensemble. Args: columns: see `reference_columns`.
    policies: (path, section).
    """
    parts = {str(number): with_defaults(section) for number, (_, section) in enumerate(policies)}
    asked = {name: section for name, section in pipeline.items() if name != "evaluation"}
    asked["trigger"] = with_columns({**columns, "trigger": {"id": "EnsembleTrigger", "subtriggers": parts}})["trigger"]
    prefix = "trigger.subtriggers."
    for problem in clients.evaluator.validate(asked):
        if problem.severity is not Severity.WARNING and problem.path.startswith(prefix):
            number, _, below = problem.path.removeprefix(prefix).partition(".")
            path, section = policies[int(number)]
            message = problem.message.replace(f"{prefix}{number}.", f"{path}.")
            if isinstance(value_at(section, below), list):
                message += "; to try several values in turn, write them as {grid: [...]}"
            yield replace(problem, path=f"{path}.{below}", message=message, severity=Severity.ERROR)
