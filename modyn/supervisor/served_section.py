"""What is wrong in the section `serving` of a pipeline beyond its own form: what it does not fit, and the datasets and models that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem
from modyn.config.promotion import parse_condition
from modyn.config.serving import unreadable_observations
from modyn.errors import InvalidArgumentError
from modyn.models.export import parse_input

OBSERVATIONS: Final = "serving.observations"


def check_serving(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return every input that cannot be read or that stands beside `preprocessing`, and observations that the run could not train on.

    The metrics of `promote_if` are checked by the evaluator, datasets and models by `check_references`.
    """
    section, data = pipeline.get("serving"), pipeline.get("data")
    if not isinstance(section, Mapping) or not isinstance(data, Mapping):
        return []
    found, inputs = list[Problem](), section.get("inputs")
    preprocessing = pipeline.get("preprocessing")
    if inputs and preprocessing:
        found.append(Problem("serving.inputs", "the inputs are the columns of the section `preprocessing`: remove it"))
    for i, text in enumerate(inputs if isinstance(inputs, list) else []):
        try:
            parse_input(str(text))
        except InvalidArgumentError as error:
            found.append(Problem(f"serving.inputs.{i}", error.message))
    if isinstance(preprocessing, Mapping) and (why := unreadable_observations(pipeline, section.get("observations"))):
        found.append(Problem(OBSERVATIONS, why))
    return found


def served_datasets(pipeline: Mapping[str, Any]) -> dict[str, object]:
    """Return the datasets that the section names, by the place where each is named. What cannot be read is left out."""
    section = pipeline.get("serving")
    if not isinstance(section, Mapping):
        return {}
    found = {OBSERVATIONS: section.get("observations")}
    conditions = section.get("promote_if")
    for i, text in enumerate(conditions if isinstance(conditions, list) else []):
        try:
            found[f"serving.promote_if.{i}"] = parse_condition(str(text)).dataset
        except InvalidArgumentError:
            continue  # The section itself says so.
    return found


def pinned_models(pipeline: Mapping[str, Any]) -> dict[str, object]:
    """Return the models that the section pins, by the place where each is named."""
    section = pipeline.get("serving")
    pinned = section.get("pinned") if isinstance(section, Mapping) else None
    return {f"serving.pinned.{i}": model_id for i, model_id in enumerate(pinned if isinstance(pinned, list) else [])}
