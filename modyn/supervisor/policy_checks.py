"""What the policies of `modyn simulate` ask of others, checked before anything starts: drift metrics, projections, and what is evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from modyn.config.base import Problem, Severity
from modyn.config.yaml_source import load_yaml, with_lines
from modyn.errors import ConfigError
from modyn.supervisor.policy_file import expand
from modyn.supervisor.simulated_stream import SimulationClients, SimulationOptions

_AT_ONCE: Final = 500
"""Policies that the evaluator is asked about in one message."""
_LOOK_AT_DATA: Final = frozenset(
    {
        "AutoDrift",
        "AvoidableMisclassificationCostTrigger",
        "DataDriftTrigger",
        "PerformanceTrigger",
        "StreamDetectorTrigger",
    }
)


def check_policies(clients: SimulationClients, text: str, file_name: str, options: SimulationOptions) -> None:
    """Refuse policies that would fail on the way.

    Args: text, file_name: of a file that `load_policies` loads.
    Raises: ConfigError: lists every mistake with file, line, path, and the nearest name that exists. InvalidArgumentError: the options contradict
    each other. NotFoundError: there is no such run.
    """
    options.check()
    source = load_yaml(text, file_name)
    policies = [
        (f"policies.{name}", section)
        for name, written in source.data["policies"].items()
        for section in expand(name, written)[0].values()
    ]
    found = [
        Problem(path, "looks at samples or models: simulate it on a run of this dataset with --run RUN")
        for path, section in policies
        if needs_run(section, options)
    ]
    if not found:
        pipeline = {} if options.run_id is None else clients.supervisor.run(options.run_id).pipeline
        for at in range(0, len(policies), _AT_ONCE):
            found += _asked(clients, pipeline, policies[at : at + _AT_ONCE])
    if found:
        raise ConfigError("\n".join(with_lines(found, source)))


def needs_run(section: Mapping[str, Any], options: SimulationOptions) -> bool:
    """Whether a policy asks for what these options cannot answer. Args: section: a `trigger` section without mistakes."""
    children = section.get("subtriggers")
    nested = list(children.values()) if isinstance(children, Mapping) else []
    return options.run_id is None and (section["id"] in _LOOK_AT_DATA or any(needs_run(child, options) for child in nested))


def _asked(
    clients: SimulationClients, pipeline: Mapping[str, Any], policies: list[tuple[str, dict[str, Any]]]
) -> Iterator[Problem]:
    """What the evaluator finds in the policies, asked as the parts of one ensemble. Args: policies: each with its path in the file."""
    parts = {str(number): section for number, (_, section) in enumerate(policies)}
    asked = {name: section for name, section in pipeline.items() if name != "evaluation"}
    asked["trigger"] = {"id": "EnsembleTrigger", "subtriggers": parts}
    prefix = "trigger.subtriggers."
    for problem in clients.evaluator.validate(asked):
        if problem.severity is not Severity.WARNING and problem.path.startswith(prefix):
            number, _, below = problem.path.removeprefix(prefix).partition(".")
            path = policies[int(number)][0]
            message = problem.message.replace(f"{prefix}{number}.", f"{path}.")
            yield replace(problem, path=f"{path}.{below}", message=message, severity=Severity.ERROR)
