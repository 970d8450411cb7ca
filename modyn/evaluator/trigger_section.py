"""What the section `trigger` of a pipeline asks of the evaluator: drift metrics, projections, and a dataset to measure performance on. The
triggers themselves are checked by the supervisor. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Final

from modyn.config.base import Problem, Severity
from modyn.config.policy import check_policy
from modyn.evaluator.config import check_dataset
from modyn.evaluator.drift import DRIFT_METRICS
from modyn.evaluator.drift.projections import PROJECTIONS
from modyn.registry import Registry

CRITERION: Final = "decision_criterion"
"""The key of a metric's entry that the trigger acts on."""


def check_metrics(metrics: Mapping[str, object], path: str) -> list[Problem]:
    """Every mistake in drift metrics by name, with paths below `path`; what this machine lacks for one counts as unavailable."""
    entries = [(metric_options(section), f"{path}.{name}") for name, section in metrics.items()]
    return [problem for section, place in entries for problem in _check_policy(DRIFT_METRICS, section, place)]


def check_projection(section: object, path: str) -> list[Problem]:
    """Every mistake in a projection of what is compared; none for None."""
    return [] if section is None else _check_policy(PROJECTIONS, section, path)


def metric_options(section: object) -> object:
    """The entry of a metric without what the trigger acts on."""
    return {key: value for key, value in section.items() if key != CRITERION} if isinstance(section, Mapping) else section


def check_trigger(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Every mistake in what the section `trigger` of a whole pipeline asks of the evaluator; empty if it asks nothing."""
    return list(_problems(pipeline.get("trigger"), "trigger"))


def _problems(trigger: object, path: str) -> Iterator[Problem]:
    if not isinstance(trigger, Mapping):
        return
    if _has_drift_metrics(trigger):
        yield from check_metrics(trigger["metrics"], f"{path}.metrics")
        yield from check_projection(trigger.get("projection"), f"{path}.projection")
    evaluation = trigger.get("evaluation")
    if isinstance(evaluation, Mapping) and "dataset" in evaluation:
        yield from check_dataset(evaluation["dataset"], f"{path}.evaluation.dataset")
    yield from _problems(trigger.get("warmup_policy"), f"{path}.warmup_policy")
    children = trigger.get("subtriggers")
    for name, child in children.items() if isinstance(children, Mapping) else ():
        yield from _problems(child, f"{path}.subtriggers.{name}")


def _has_drift_metrics(trigger: Mapping[str, Any]) -> bool:
    """Whether `metrics` holds drift metrics by name: of a trigger of another package it may mean anything."""
    metrics = trigger.get("metrics")
    entries = list(metrics.values()) if isinstance(metrics, Mapping) else []
    return bool(entries) and (
        trigger.get("id") == "DataDriftTrigger" or all(isinstance(entry, Mapping) and "id" in entry for entry in entries)
    )


def _check_policy(registry: Registry[Any], section: object, path: str) -> list[Problem]:
    if not isinstance(section, Mapping):
        return [Problem(path, f"{section!r} is wrong: a section with the id of a {registry.kind} is expected")]
    if found := check_policy(registry, section, "id", path):
        return found
    missing = [module for module in getattr(registry.get(section["id"]), "needs", ()) if find_spec(module) is None]
    message = f"{section['id']} needs {' and '.join(missing)}, not installed here: pip install 'modyn[drift]'"
    return [Problem(f"{path}.id", message, Severity.UNAVAILABLE)] if missing else []
