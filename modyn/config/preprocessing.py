"""Columns of the section `preprocessing`, which other sections need to decode samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from modyn.config.base import Problem
from modyn.config.online import ONLINE

PREPROCESSING: Final = "preprocessing"
"""Name of the section, and of the field of `data` sections that `with_columns` sets."""
_SCHEMA: Final = ("columns", "format", "names", "separator", "na_values")
"""Keys of the section that describe how a payload becomes columns."""


def with_columns(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the columns of `preprocessing` into each `data` section of a pipeline: `data`, the entries of `evaluation.datasets`, and the datasets
    that triggers evaluate on. A second call changes nothing. Without a section `preprocessing`, the copy has the same values.

    >>> with_columns({"preprocessing": {"columns": {"a": "number"}, "components": []}, "data": {"dataset_id": "d"}})["data"]
    {'dataset_id': 'd', 'preprocessing': {'columns': {'a': 'number'}}}
    """
    section = pipeline.get(PREPROCESSING)
    if not isinstance(section, Mapping):
        return dict(pipeline)
    schema = {name: section[name] for name in _SCHEMA if name in section}
    return _with_decoding(pipeline, lambda _, data: {**data, PREPROCESSING: data.get(PREPROCESSING, schema)})


def written_columns(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return a problem for each `data` section in which the user wrote the key that `with_columns` sets."""
    found = list[Problem]()
    message = (
        "preprocessing is a section of its own, next to `data`: move it there, so that training, evaluation and serving share it"
    )

    def check(path: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        if PREPROCESSING in data:
            found.append(Problem(f"{path}.{PREPROCESSING}", message))
        return data

    _with_decoding(pipeline, check)
    return found


def decoding_sections(pipeline: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return each section of a pipeline that describes how payloads are decoded, with the columns that `with_columns` sets."""
    found = list[Mapping[str, Any]]()

    def keep(_: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        found.append(data)
        return data

    _with_decoding(with_columns(pipeline), keep)
    return found


def _with_decoding(pipeline: Mapping[str, Any], change: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]) -> dict[str, Any]:
    """Replace each section of a pipeline that describes how payloads are decoded. Args: change: called with the path and the section."""
    found = dict(pipeline)

    def decoded(path: str, data: Any) -> Any:
        return change(path, data) if isinstance(data, Mapping) else data

    def measured(path: str, part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        # A policy of another package may have policies at any place, as in `each_part`.
        changed = {name: measured(f"{path}.{name}", inner) for name, inner in part.items()}
        if isinstance(evaluation := changed.get("evaluation"), Mapping) and "dataset" in evaluation:
            changed["evaluation"] = {**evaluation, "dataset": decoded(f"{path}.evaluation.dataset", evaluation["dataset"])}
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
