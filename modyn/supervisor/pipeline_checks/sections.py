"""Check the sections `serving` and `online` of a pipeline against the other sections, and list the datasets and models that `serving` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem, Severity, check_section, section_at
from modyn.config.online import ONLINE, OnlineConfig
from modyn.config.promotion import parse_condition
from modyn.config.serving import unreadable_observations
from modyn.errors import InvalidArgumentError
from modyn.models.export import parse_input
from modyn.supervisor.triggers import check_trigger_section

OBSERVATIONS: Final = "serving.observations"


def check_online(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake in the section `online` of a pipeline. The selector checks how steps draw from the history."""
    section = pipeline.get(ONLINE)
    if section is None:
        return []
    found = check_section(OnlineConfig, section, ONLINE)
    trigger = section.get("trigger") if isinstance(section, Mapping) else None
    if isinstance(trigger, Mapping):
        found += check_trigger_section(trigger, f"{ONLINE}.trigger")
        if trigger.get("latency_limit_ms") is not None and section.get("max_samples") is None:
            why = (
                "samples that arrive while steps pause are taken together, without stopping for predictions: set it to a number of samples "
                "that one step takes quickly"
            )
            found.append(Problem(f"{ONLINE}.max_samples", why, Severity.WARNING))
    return found


def check_serving(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake in the section `serving`: invalid inputs, inputs in addition to a section `preprocessing`, and observations that the run
    cannot train on.

    The evaluator checks the metrics of `promote_if`; `check_references` checks datasets and models.
    """
    section = section_at(pipeline, "serving")
    if not section or not section_at(pipeline, "data"):
        return []
    found, inputs = list[Problem](), section.get("inputs")
    preprocessing = section_at(pipeline, "preprocessing")
    if inputs and preprocessing:
        found.append(Problem("serving.inputs", "the inputs are the columns of the section `preprocessing`: remove it"))
    for i, text in enumerate(inputs if isinstance(inputs, list) else []):
        try:
            parse_input(str(text))
        except InvalidArgumentError as error:
            found.append(Problem(f"serving.inputs.{i}", error.message))
    if preprocessing and (why := unreadable_observations(pipeline, section.get("observations"))):
        found.append(Problem(OBSERVATIONS, why))
    return found


def served_datasets(pipeline: Mapping[str, Any]) -> dict[str, object]:
    """Return the datasets that the section `serving` names, by the path of each name in the pipeline. Unreadable entries are left out."""
    section = section_at(pipeline, "serving")
    found = {OBSERVATIONS: section.get("observations")}
    conditions = section.get("promote_if")
    for i, text in enumerate(conditions if isinstance(conditions, list) else []):
        try:
            found[f"serving.promote_if.{i}"] = parse_condition(str(text)).dataset
        except InvalidArgumentError:
            continue  # The check of the section reports the unreadable entry.
    return found


def pinned_models(pipeline: Mapping[str, Any]) -> dict[str, object]:
    """Return the models that the section `serving` pins, by the path of each model in the pipeline."""
    pinned = section_at(pipeline, "serving").get("pinned")
    return {f"serving.pinned.{i}": model_id for i, model_id in enumerate(pinned if isinstance(pinned, list) else [])}
