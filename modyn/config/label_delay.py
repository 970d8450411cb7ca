"""How long after its sample a label comes, in stream time: `data.label_delay`, or the same option of a trigger policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from modyn.config.base import Problem
from modyn.config.durations import format_duration, parse_duration
from modyn.config.online import ONLINE

LABEL_DELAY: Final = "label_delay"


def label_delay(pipeline: Mapping[str, Any]) -> int:
    """Return the seconds that labels come after their samples. Args: pipeline: whole, without mistakes.

    >>> label_delay({"data": {}, "trigger": {"id": "PerformanceTrigger", "label_delay": "1d"}})
    86400
    """
    return max((seconds for _, seconds in _written(pipeline)), default=0)


def check_label_delay(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return a mistake for each place that contradicts another one: a label comes once. What is no duration is left to others."""
    first, found = None, list[Problem]()
    for path, seconds in _written(pipeline):
        first = first or (path, seconds)
        if seconds != first[1]:
            other = f"{first[0]} is {format_duration(first[1])}"
            found.append(
                Problem(
                    path, f"is {format_duration(seconds)}, and {other}: a label comes once; write it in data.{LABEL_DELAY} alone"
                )
            )
    return found


def _written(pipeline: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The delays that are written, by path; that of `data` first."""
    data, online = pipeline.get("data"), pipeline.get(ONLINE)
    if isinstance(data, Mapping):
        yield from _of(data, "data")
    yield from _of_trigger(pipeline.get("trigger"), "trigger")
    if isinstance(online, Mapping):
        yield from _of_trigger(online.get("trigger"), f"{ONLINE}.trigger")


def _of_trigger(section: object, path: str) -> Iterator[tuple[str, int]]:
    if not isinstance(section, Mapping):
        return
    yield from _of(section, path)
    children = section.get("subtriggers")
    for name, child in children.items() if isinstance(children, Mapping) else ():
        yield from _of_trigger(child, f"{path}.subtriggers.{name}")


def _of(section: Mapping[str, Any], path: str) -> Iterator[tuple[str, int]]:
    value = section.get(LABEL_DELAY)
    try:
        seconds = 0 if value is None else parse_duration(value)
    except ValueError:
        return
    if seconds > 0 or (value is not None and path == "data"):
        yield f"{path}.{LABEL_DELAY}", seconds
