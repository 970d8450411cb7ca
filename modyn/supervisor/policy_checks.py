"""What the policies of `modyn simulate` ask of others, checked before anything starts: drift metrics, projections, and what is evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from modyn.config.base import Problem, Severity
from modyn.config.yaml_source import with_lines
from modyn.errors import ConfigError
from modyn.evaluator.client import ComparedData
from modyn.supervisor.policy_file import PolicyFile, value_at
from modyn.supervisor.simulated_dataset import NO_DATA, NO_MODEL, NO_SECONDS
from modyn.supervisor.simulated_stream import SimulationClients, SimulationOptions
from modyn.supervisor.triggers import TRIGGERS, with_defaults
from modyn.supervisor.triggers.cost import CostTrigger
from modyn.supervisor.triggers.dynamic_schedule import DynamicScheduleTrigger

_AT_ONCE: Final = 500
"""Policies that the evaluator is asked about in one message."""
_DRIFT: Final = frozenset({"AutoDrift", "DataDriftTrigger"})
_BY_MODEL: Final = frozenset({"AvoidableMisclassificationCostTrigger", "PerformanceTrigger", "StreamDetectorTrigger"})


def check_policies(clients: SimulationClients, file: PolicyFile, options: SimulationOptions) -> None:
    """Refuse policies that would fail on the way.

    Raises: ConfigError: lists every mistake with file, line, path, and the nearest name that exists. InvalidArgumentError: the options contradict
    each other. NotFoundError: there is no such run.
    """
    options.check()
    policies = [(file.paths[name], section) for name, section in file.sections.items()]
    found = [Problem(path, message) for path, section in policies if (message := lacking(section, options))]
    if not found:
        pipeline: Mapping[str, Any] = {"data": {"dataset_id": options.dataset}}
        if options.run_id is not None:
            pipeline = clients.supervisor.run(options.run_id).pipeline
        for at in range(0, len(policies), _AT_ONCE):
            found += _asked(clients, pipeline, policies[at : at + _AT_ONCE])
    if found:
        raise ConfigError("\n".join(with_lines(found, file.source)))


def lacking(section: Mapping[str, Any], options: SimulationOptions) -> str:
    """Return what keeps a policy from being simulated with these options; empty: nothing. Args: section: a `trigger` section without mistakes."""
    if options.run_id is not None:
        return ""
    if isinstance(children := section.get("subtriggers"), Mapping):
        return "; ".join(dict.fromkeys(filter(None, (lacking(child, options) for child in children.values()))))
    found, compared = list[str](), _compared(section) if options.model_id is None else None
    if compared is not None and compared.needs_model:
        found.append(NO_MODEL)
    if compared is ComparedData.PAYLOAD and options.data is None:
        found.append(NO_DATA)
    if options.seconds is None and issubclass(TRIGGERS.get(section["id"]), (CostTrigger, DynamicScheduleTrigger)):
        found.append(NO_SECONDS)
    return "; ".join(found)


def _compared(section: Mapping[str, Any]) -> ComparedData | None:
    """What a policy looks at: predictions stand for all that a model says. None: at nothing but the stream."""
    watched = section.get("distance") or {} if section.get("on") == "distance" else section
    if section["id"] in _DRIFT or watched is not section:
        return ComparedData(watched.get("on", ComparedData.EMBEDDINGS))
    return ComparedData.PREDICTIONS if section["id"] in _BY_MODEL else None


def _asked(
    clients: SimulationClients, pipeline: Mapping[str, Any], policies: list[tuple[str, dict[str, Any]]]
) -> Iterator[Problem]:
    """What the evaluator finds in the policies, asked as the parts of one ensemble. Args: policies: each with its path in the file."""
    parts = {str(number): with_defaults(section) for number, (_, section) in enumerate(policies)}
    asked = {name: section for name, section in pipeline.items() if name != "evaluation"}
    asked["trigger"] = {"id": "EnsembleTrigger", "subtriggers": parts}
    prefix = "trigger.subtriggers."
    for problem in clients.evaluator.validate(asked):
        if problem.severity is not Severity.WARNING and problem.path.startswith(prefix):
            number, _, below = problem.path.removeprefix(prefix).partition(".")
            path, section = policies[int(number)]
            message = problem.message.replace(f"{prefix}{number}.", f"{path}.")
            if isinstance(value_at(section, below), list):
                message += "; to try several values in turn, write them as {grid: [...]}"
            yield replace(problem, path=f"{path}.{below}", message=message, severity=Severity.ERROR)
