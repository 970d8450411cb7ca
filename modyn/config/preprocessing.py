"""The section `preprocessing` as other sections see it: it says what the columns of a payload are, wherever samples are decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem
from modyn.config.online import ONLINE

PREPROCESSING: Final = "preprocessing"
"""Name of the section, and of the field of `data` sections that `with_columns` sets."""
_SCHEMA: Final = ("columns", "format", "names", "separator")
"""Keys of the section that say how a payload becomes columns."""


def with_columns(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pipeline in which each `data` section says by itself what the columns of its payloads are: `data`, those of
    `evaluation.datasets`, and those that triggers evaluate on. Without a section `preprocessing`, and done twice, it changes nothing.

    >>> with_columns({"preprocessing": {"columns": {"a": "number"}, "components": []}, "data": {"dataset_id": "d"}})["data"]
    {'dataset_id': 'd', 'preprocessing': {'columns': {'a': 'number'}}}
    """
    section, found = pipeline.get(PREPROCESSING), dict(pipeline)
    if not isinstance(section, Mapping):
        return found
    schema = {name: section[name] for name in _SCHEMA if name in section}

    def decoded(data: Any) -> Any:
        return {**data, PREPROCESSING: data.get(PREPROCESSING, schema)} if isinstance(data, Mapping) else data

    def measured(trigger: Any) -> Any:
        if not isinstance(trigger, Mapping):
            return trigger
        changed = dict(trigger)
        if isinstance(evaluation := trigger.get("evaluation"), Mapping) and "dataset" in evaluation:
            changed["evaluation"] = {**evaluation, "dataset": decoded(evaluation["dataset"])}
        if isinstance(children := trigger.get("subtriggers"), Mapping):
            changed["subtriggers"] = {name: measured(child) for name, child in children.items()}
        return changed

    if "data" in found:
        found["data"] = decoded(found["data"])
    if "trigger" in found:
        found["trigger"] = measured(found["trigger"])
    if isinstance(online := found.get(ONLINE), Mapping) and "trigger" in online:
        found[ONLINE] = {**online, "trigger": measured(online["trigger"])}
    evaluation = found.get("evaluation")
    if isinstance(evaluation, Mapping) and isinstance(datasets := evaluation.get("datasets"), list):
        found["evaluation"] = {**evaluation, "datasets": [decoded(dataset) for dataset in datasets]}
    return found


def written_columns(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return a problem where a user writes into `data` what is made of the section `preprocessing`. Args: pipeline: as written."""
    data = pipeline.get("data")
    if not isinstance(data, Mapping) or PREPROCESSING not in data:
        return []
    message = "preprocessing is a section of its own, beside `data`: move it there, so that models, evaluations and serving have it alike"
    return [Problem(f"data.{PREPROCESSING}", message)]
