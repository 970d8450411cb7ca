"""Parts of `trigger` sections that several services check. Services find these parts by keys, so policies of other packages may contain these
parts too.

Before the supervisor sends a section, it adds defaults, and the declarations of criteria and detectors (`modyn.supervisor.triggers.with_defaults`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from modyn.config.base import section_at, sections_in
from modyn.config.online import ONLINE

Part = Mapping[str, Any]
"""A section that has not been checked."""
WINDOWS: Final = "windowing_strategy"
"""Key that identifies a part that compares windows."""
CRITERION: Final = "decision_criterion"
"""Key of the criterion in the section of a drift metric. The trigger policy uses the criterion; the evaluator only checks it."""
DECLARED: Final = "declared"
"""Key that `with_defaults` adds to the section of a criterion or a detector, with the declarations of its class."""


def trigger_sections(pipeline: Mapping[str, Any]) -> dict[str, Part]:
    """Return the trigger sections of a pipeline by their paths.

    >>> trigger_sections({"trigger": {"id": "AutoDrift"}, "online": {"trigger": 3}})
    {'trigger': {'id': 'AutoDrift'}}
    """
    return sections_in({"trigger": pipeline.get("trigger"), f"{ONLINE}.trigger": section_at(pipeline, ONLINE).get("trigger")})


def each_part(section: object, path: str) -> Iterator[tuple[str, Part]]:
    """Yield a section and every section within it, with their paths; nothing if the value is not a section.

    >>> [place for place, _ in each_part({"id": "Mine", "inner": {"deep": {}}, "n": 3}, "trigger")]
    ['trigger', 'trigger.inner', 'trigger.inner.deep']
    """
    if isinstance(section, Mapping):
        yield path, section
        for name, part in section.items():
            yield from each_part(part, f"{path}.{name}")


def compared_windows(section: object, path: str) -> Iterator[tuple[str, Part]]:
    """Yield each part of a section that compares windows, with its path."""
    return ((place, part) for place, part in each_part(section, path) if WINDOWS in part)


def drift_metrics(compared: Part) -> dict[str, object]:
    """Return the drift metrics of a part that compares windows, by their paths below the part: the entries of `metrics`, and `metric`.

    >>> drift_metrics({"metrics": {"mmd": {"id": "MMDDriftMetric"}}})
    {'metrics.mmd': {'id': 'MMDDriftMetric'}}
    """
    found = {f"metrics.{name}": metric for name, metric in section_at(compared, "metrics").items()}
    return {**found, **({"metric": compared["metric"]} if "metric" in compared else {})}


def declared(section: object, what: str) -> object:
    """Return the value that the class of a section declares under a name. None: the class declares no such value, or the section lacks the
    declarations.
    """
    return section_at(section, DECLARED).get(what)
