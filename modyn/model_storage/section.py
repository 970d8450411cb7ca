"""The section `model_storage` of a pipeline, and its validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from modyn.config.base import Problem, Section, check_section, not_available_yet
from modyn.errors import ConfigError
from modyn.model_storage.formats import MODEL_FORMATS

Algorithm = Literal["ZIP_DEFLATED", "zstd"]
_NotYet = Annotated[None, BeforeValidator(not_available_yet)]


class FullModelStrategy(Section):
    """How a model is stored whole."""

    name: str = Field(
        "SafetensorsFullModel",
        description="SafetensorsFullModel; PyTorchFullModel (a file for torch.load); "
        "BinaryFullModel (raw weights, architecture needed to load)",
    )
    zip: bool = Field(False, description="compress the file")
    zip_algorithm: Algorithm = Field("ZIP_DEFLATED", description="compression; needs `zip: true`")
    config: dict[str, Any] = Field(default_factory=dict, description="options of the format, if it has some")

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        try:
            MODEL_FORMATS.get(value)
        except ConfigError as error:
            raise ValueError(error.message) from error
        return value

    @model_validator(mode="after")
    def _check_compression(self) -> Self:
        # Files of the published system contain this option with its default value.
        if not self.zip and self.zip_algorithm != type(self).model_fields["zip_algorithm"].default:
            raise ValueError(f"zip_algorithm is {self.zip_algorithm}, but zip is false: set zip: true, or remove zip_algorithm")
        return self


class ModelStorageSection(Section):
    """How model versions are stored."""

    full_model_strategy: FullModelStrategy = FullModelStrategy()
    incremental_model_strategy: _NotYet = Field(
        None, description="how versions are stored as differences to their parents; not available yet"
    )
    full_model_interval: _NotYet = Field(
        None, description="every n-th version is stored whole; needs an incremental strategy, not available yet"
    )


def validate_section(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake of the section `model_storage` of a pipeline, which may be absent."""
    section = pipeline.get("model_storage") or {}
    found = check_section(ModelStorageSection, section, "model_storage")
    if found:
        return found
    strategy = ModelStorageSection.model_validate(section).full_model_strategy
    return check_section(MODEL_FORMATS.get(strategy.name).Config, strategy.config, "model_storage.full_model_strategy.config")
