"""Parts of `trigger` sections that several services check. Services find these parts by keys, so policies of other packages may contain these
parts too.

Before the supervisor sends a section, it adds defaults, and the declarations of criteria and detectors (`modyn.supervisor.triggers.with_defaults`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
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


class ComparedData(StrEnum):
    """The data of each sample that drift metrics compare."""

    EMBEDDINGS = "embeddings"
    """The input of a model's last layer, or the model's `embedding`, (n, d)."""
    PREDICTIONS = "predictions"
    """The class probabilities of a model, (n, c)."""
    PAYLOAD = "payload"
    """The parsed and transformed sample, flattened, (n, d). No model is needed."""
    LABELS = "labels"
    """The label, (n, 1). No model is needed, and no payload is read."""

    @property
    def needs_model(self) -> bool:
        """Return whether a model computes this data."""
        return self in (ComparedData.EMBEDDINGS, ComparedData.PREDICTIONS)


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


def compared_data(compared: Part) -> object:
    """Return the value of `on` in a part that compares windows; the default is embeddings.

    >>> compared_data({"on": "labels"}), compared_data({}) is ComparedData.EMBEDDINGS
    ('labels', True)
    """
    return compared.get("on", ComparedData.EMBEDDINGS)


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
