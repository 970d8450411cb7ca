"""The section `preprocessing` as other sections see it: it says what the columns of a payload are, wherever samples are decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from modyn.config.base import Problem
from modyn.config.online import ONLINE

PREPROCESSING: Final = "preprocessing"
"""Name of the section, and of the field of `data` sections that `with_columns` sets."""
_SCHEMA: Final = ("columns", "format", "names", "separator", "na_values")
"""Keys of the section that say how a payload becomes columns."""


def with_columns(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pipeline in which each `data` section says by itself what the columns of its payloads are: `data`, those of
    `evaluation.datasets`, and those that triggers evaluate on. Without a section `preprocessing`, and done twice, it changes nothing.

    >>> with_columns({"preprocessing": {"columns": {"a": "number"}, "components": []}, "data": {"dataset_id": "d"}})["data"]
    {'dataset_id': 'd', 'preprocessing': {'columns': {'a': 'number'}}}
    """
    section = pipeline.get(PREPROCESSING)
    if not isinstance(section, Mapping):
        return dict(pipeline)
    schema = {name: section[name] for name in _SCHEMA if name in section}
    return _with_decoding(pipeline, lambda _, data: {**data, PREPROCESSING: data.get(PREPROCESSING, schema)})


def written_columns(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return a problem for each `data` section into which a user writes what is made of the section `preprocessing`. Args: pipeline: as written."""
    found = list[Problem]()
    message = "preprocessing is a section of its own, beside `data`: move it there, so that models, evaluations and serving have it alike"

    def check(path: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        if PREPROCESSING in data:
            found.append(Problem(f"{path}.{PREPROCESSING}", message))
        return data

    _with_decoding(pipeline, check)
    return found


def decoding_sections(pipeline: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return each section of a pipeline that says how the payloads of a dataset are decoded, as `with_columns` makes them."""
    found = list[Mapping[str, Any]]()

    def keep(_: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        found.append(data)
        return data

    _with_decoding(with_columns(pipeline), keep)
    return found


def _with_decoding(pipeline: Mapping[str, Any], change: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]) -> dict[str, Any]:
    """Return a pipeline with each section that says how payloads are decoded as `change` returns it, which is called with its path and itself."""
    found = dict(pipeline)

    def decoded(path: str, data: Any) -> Any:
        return change(path, data) if isinstance(data, Mapping) else data

    def measured(path: str, trigger: Any) -> Any:
        if not isinstance(trigger, Mapping):
            return trigger
        changed = dict(trigger)
        if isinstance(evaluation := trigger.get("evaluation"), Mapping) and "dataset" in evaluation:
            changed["evaluation"] = {**evaluation, "dataset": decoded(f"{path}.evaluation.dataset", evaluation["dataset"])}
        if isinstance(children := trigger.get("subtriggers"), Mapping):
            changed["subtriggers"] = {name: measured(f"{path}.subtriggers.{name}", child) for name, child in children.items()}
        return changed

    if "data" in found:
        found["data"] = decoded("data", found["data"])
    if "trigger" in found:
        found["trigger"] = measured("trigger", found["trigger"])
    if isinstance(online := found.get(ONLINE), Mapping) and "trigger" in online:
        found[ONLINE] = {**online, "trigger": measured(f"{ONLINE}.trigger", online["trigger"])}
    evaluation = found.get("evaluation")
    if isinstance(evaluation, Mapping) and isinstance(datasets := evaluation.get("datasets"), list):
        changed = [decoded(f"evaluation.datasets.{number}", dataset) for number, dataset in enumerate(datasets)]
        found["evaluation"] = {**evaluation, "datasets": changed}
    return found
