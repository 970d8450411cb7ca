"""Warnings of windows that a dataset cannot fill, and of labels that are no classes: what policies that compare windows ask of what they look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modyn.config.base import Problem, Severity, check_section, load_section
from modyn.config.durations import format_duration
from modyn.config.online import ONLINE
from modyn.evaluator.client import ComparedData
from modyn.storage.client import DatasetInfo
from modyn.supervisor.triggers import with_defaults
from modyn.supervisor.triggers.windows import TimeWindowingStrategy

_BY_CLASS = "ChiSquaredDriftMetric"


def check_windows(pipeline: Mapping[str, Any], dataset: DatasetInfo) -> list[Problem]:
    """Return the warnings for the sections `trigger` and `online.trigger` of a pipeline. Args: dataset: the one that it streams."""
    online = pipeline.get(ONLINE)
    of_steps = online.get("trigger") if isinstance(online, Mapping) else None
    return [
        problem
        for path, section in (("trigger", pipeline.get("trigger")), (f"{ONLINE}.trigger", of_steps))
        for place, compared in (_compared(with_defaults(section), path) if isinstance(section, Mapping) else ())
        for problem in (*_too_short(compared, place, dataset), *_no_classes(compared, place, dataset))
    ]


def _compared(trigger: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The sections of a policy and of those within it that say which windows are compared, with their paths."""
    distance, children = trigger.get("distance"), trigger.get("subtriggers")
    for place, section in ((path, trigger), (f"{path}.distance", distance)):
        if isinstance(section, Mapping) and "windowing_strategy" in section:
            yield place, section
    for name, child in children.items() if isinstance(children, Mapping) else ():
        if isinstance(child, Mapping):
            yield from _compared(child, f"{path}.subtriggers.{name}")


def _too_short(compared: Mapping[str, Any], path: str, dataset: DatasetInfo) -> Iterator[Problem]:
    """Where the dataset does not reach over the seasons that are compared."""
    section = compared["windowing_strategy"]
    if not isinstance(section, Mapping) or section.get("season") is None or check_section(TimeWindowingStrategy, section, ""):
        return
    windows, start, end = load_section(TimeWindowingStrategy, section), dataset.min_timestamp, dataset.max_timestamp
    held = 0 if start is None or end is None else end - start + 1
    if held < windows.horizon:
        needed = "season and limit_cur reach" if windows.limit_ref is None else "limit_ref or limit_cur reaches"
        message = f"{needed} over {format_duration(windows.horizon)}, and the dataset '{dataset.name}' holds {held:,} s"
        consequence = "a replay of it compares nothing, and a run of live data nothing until there is so much"
        yield Problem(f"{path}.windowing_strategy.season", f"{message}: {consequence}", Severity.WARNING)


def _no_classes(compared: Mapping[str, Any], path: str, dataset: DatasetInfo) -> Iterator[Problem]:
    """Where classes are counted although labels are floating-point numbers."""
    if compared.get("on") != ComparedData.LABELS or not dataset.float_labels:
        return
    metrics = compared.get("metrics")
    named = {f"metrics.{name}": metric for name, metric in metrics.items()} if isinstance(metrics, Mapping) else {}
    for place, metric in {**named, "metric": compared.get("metric")}.items():
        if isinstance(metric, Mapping) and metric.get("id") == _BY_CLASS:
            message = f"{_BY_CLASS} counts classes, and labels of the dataset '{dataset.name}' are floating-point numbers"
            remedy = "if they are quantities, compare them by another metric, such as KSDriftMetric; else the run fails"
            yield Problem(f"{path}.{place}.id", f"{message}: {remedy}", Severity.WARNING)
