"""Warn about policies that compare windows which the dataset cannot fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modyn.config.base import Problem, Severity, check_section, load_section
from modyn.config.durations import format_duration
from modyn.config.trigger_parts import WINDOWS, Part, compared_windows, trigger_sections
from modyn.storage.client import DatasetInfo
from modyn.supervisor.triggers import with_defaults
from modyn.supervisor.triggers.measures.windows import TimeWindowingStrategy


def check_windows(pipeline: Mapping[str, Any], dataset: DatasetInfo) -> list[Problem]:
    """Return the warnings for the sections `trigger` and `online.trigger` of a pipeline. Args: dataset: dataset of the stream."""
    return [
        problem
        for path, trigger in trigger_sections(pipeline).items()
        for place, compared in compared_windows(with_defaults(trigger), path)
        for problem in _too_short(compared, place, dataset)
    ]


def _too_short(compared: Part, path: str, dataset: DatasetInfo) -> Iterator[Problem]:
    """Warn if the dataset covers less time than the seasons that the policy compares."""
    section = compared[WINDOWS]
    if not isinstance(section, Mapping) or section.get("season") is None or check_section(TimeWindowingStrategy, section, ""):
        return
    windows, start, end = load_section(TimeWindowingStrategy, section), dataset.min_timestamp, dataset.max_timestamp
    held = 0 if start is None or end is None else end - start + 1
    if held < windows.horizon:
        needed = "season and limit_cur reach" if windows.limit_ref is None else "limit_ref or limit_cur reaches"
        message = f"{needed} over {format_duration(windows.horizon)}, and the dataset '{dataset.name}' holds {held:,} s"
        consequence = "a replay of it compares nothing, and a run of live data nothing until it has this much data"
        yield Problem(f"{path}.{WINDOWS}.season", f"{message}: {consequence}", Severity.WARNING)
