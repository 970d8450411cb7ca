"""Settings of a served run: the section `serving` of its pipeline, the options of `modyn serve`, and the name of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modyn.config.base import load_section
from modyn.config.preprocessing import with_columns
from modyn.config.serving import ServedRun
from modyn.dataset.config import ImageDecoding
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.records import RunId
from modyn.serving.observations.storage_log import check_readable


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A run whose versions are served as one model."""

    run_id: RunId
    settings: ServedRun
    pipeline: Mapping[str, Any] = field(repr=False)
    """Pipeline of the run, including the columns. Conditions of promotions and observations depend on the pipeline."""

    @property
    def name(self) -> str:
        """Name of the model in requests."""
        return self.settings.model_name(self.run_id)

    @property
    def columns(self) -> Mapping[str, Any] | None:
        """The section `preprocessing` of the pipeline, whose columns are the inputs of the model; None: the pipeline has no such section."""
        return self.pipeline.get("preprocessing")

    @property
    def decoding(self) -> ImageDecoding | None:
        """How requests with images are decoded; None: requests have tensors, because the pipeline decodes no images, changes them by transformations,
        or `serving.inputs` names the tensors."""
        data = self.pipeline["data"]
        section = (data.get("decode") or {}).get("image")
        is_changed = any(data.get(name) for name in ("deterministic_transformations", "transformations"))
        return (
            None
            if section is None or is_changed or self.settings.inputs
            else load_section(ImageDecoding, section, "data.decode.image")
        )


def served_model(run_id: str, pipeline: Mapping[str, Any], options: Mapping[str, Any]) -> ServedModel:
    """Return the settings of a served run.

    Args: options: values that override fields of the pipeline's section `serving`; a value None means that the option is not given.
    Raises: ConfigError: a field is wrong, or the run could not read its observations.
    """
    given = {name: value for name, value in options.items() if value is not None}
    pipeline = with_columns(pipeline)
    settings = load_section(ServedRun, {**(pipeline.get("serving") or {}), **given}, "serving")
    check_readable(pipeline, settings.observations)
    model, data = ServedModel(RunId(run_id), settings, pipeline), pipeline.get("data") or {}
    # Only requests with images are stored as images.
    if data.get("decode") and settings.observations == data["dataset_id"] and model.decoding is None:
        raise ConfigError(
            f"serving.observations: requests with tensors are stored, but the run decodes images of dataset '{settings.observations}', so each would "
            "be a bad sample; choose another dataset, or leave out serving.inputs and transformations that are not random"
        )
    return model


def check_distinct(models: Sequence[ServedModel]) -> None:
    """Check that each model name belongs to one run only.

    Raises: ConfigError: two models have the same name. InvalidArgumentError: a run is given twice.
    """
    runs = dict[str, RunId]()
    for model in models:
        if model.run_id in runs.values():
            raise InvalidArgumentError(f"run '{model.run_id}' is to be served twice; name it once")
        if model.name in runs:
            raise ConfigError(
                f"runs '{runs[model.name]}' and '{model.run_id}' would both be model '{model.name}', and requests address a model by its name: "
                f"write NAME={model.run_id}, set another serving.name in its pipeline, or serve the two apart"
            )
        runs[model.name] = model.run_id
