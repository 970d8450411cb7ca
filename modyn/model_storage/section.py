"""The section `model_storage` of a pipeline, and what can be wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from modyn.config.base import Problem, Section, check_section
from modyn.errors import ConfigError
from modyn.model_storage.formats import MODEL_FORMATS


class FullModelStrategy(Section):
    """How a model is stored whole."""

    name: str = Field(
        "SafetensorsFullModel",
        description="SafetensorsFullModel; PyTorchFullModel (a file for torch.load); "
        "BinaryFullModel (raw weights, architecture needed to load)",
    )
    zip: bool = Field(False, description="compress the file")
    zip_algorithm: Literal["ZIP_DEFLATED", "zstd"] = Field("ZIP_DEFLATED", description="how it is compressed; needs `zip: true`")
    config: dict[str, Any] = Field(default_factory=dict, description="options of a format that has some")

    @field_validator("name")
    @classmethod
    def _registered(cls, value: str) -> str:
        try:
            MODEL_FORMATS.get(value)
        except ConfigError as error:
            raise ValueError(error.message) from error
        return value

    @model_validator(mode="after")
    def _compressed_at_all(self) -> Self:
        if not self.zip and "zip_algorithm" in self.model_fields_set:
            raise ValueError(f"zip_algorithm is {self.zip_algorithm}, but zip is false: set zip: true, or remove zip_algorithm")
        return self


class ModelStorageSection(Section):
    """How model versions are stored."""

    full_model_strategy: FullModelStrategy = FullModelStrategy()
    incremental_model_strategy: None = Field(
        None, description="store versions as differences to their parents; not available yet"
    )
    full_model_interval: int | None = Field(
        None, ge=1, description="every n-th version is stored whole; needs an incremental strategy, not available yet"
    )

    @field_validator("full_model_interval")
    @classmethod
    def _between_increments(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("incremental_model_strategy") is None:
            raise ValueError(
                f"{value} has no effect without an incremental_model_strategy: every version is stored whole; remove it"
            )
        return value

    @field_validator("incremental_model_strategy", mode="before")
    @classmethod
    def _not_yet(cls, value: object) -> object:
        if value is not None:
            raise ValueError("incremental strategies are not available yet; remove this key: every version is then stored whole")
        return value


def validate_section(pipeline: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the section `model_storage` of the pipeline; empty: nothing. A pipeline without the section is fine."""
    section = pipeline.get("model_storage") or {}
    found = check_section(ModelStorageSection, section, "model_storage")
    if found:
        return found
    strategy = ModelStorageSection.model_validate(section).full_model_strategy
    return check_section(MODEL_FORMATS.get(strategy.name).Config, strategy.config, "model_storage.full_model_strategy.config")
