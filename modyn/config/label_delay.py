"""Delay of labels after their samples, in stream time: `data.label_delay`, or the same option of a trigger policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from modyn.config.base import Problem, section_at
from modyn.config.durations import format_duration, parse_duration
from modyn.config.trigger_parts import each_part, trigger_sections

LABEL_DELAY: Final = "label_delay"


def label_delay(pipeline: Mapping[str, Any]) -> int:
    """Return the seconds between a sample and the arrival of its label. Args: pipeline: a valid pipeline.

    >>> label_delay({"data": {}, "trigger": {"id": "PerformanceTrigger", "label_delay": "1d"}})
    86400
    """
    return max((seconds for _, seconds in _written(pipeline)), default=0)


def check_label_delay(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return a problem for each delay that differs from the first delay, because a label arrives only once. Invalid durations are ignored."""
    first, found = None, list[Problem]()
    for path, seconds in _written(pipeline):
        first = first or (path, seconds)
        if seconds != first[1]:
            other = f"{first[0]} is {format_duration(first[1])}"
            found.append(
                Problem(
                    path,
                    f"is {format_duration(seconds)}, and {other}: a label comes once; write the delay in data.{LABEL_DELAY} alone",
                )
            )
    return found


def _written(pipeline: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the delays in the file, with their paths. The delay of section `data` comes first."""
    yield from _of(section_at(pipeline, "data"), "data")
    for path, trigger in trigger_sections(pipeline).items():
        for place, part in each_part(trigger, path):
            yield from _of(part, place)


def _of(section: Mapping[str, Any], path: str) -> Iterator[tuple[str, int]]:
    value = section.get(LABEL_DELAY)
    try:
        seconds = 0 if value is None else parse_duration(value)
    except ValueError:
        return
    if seconds > 0 or (value is not None and path == "data"):
        yield f"{path}.{LABEL_DELAY}", seconds
