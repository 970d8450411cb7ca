"""The section `model_storage` of a pipeline, and its validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from modyn.config.base import Problem, Section, Severity, check_section
from modyn.errors import ConfigError
from modyn.model_storage.formats import MODEL_FORMATS

Algorithm = Literal["ZIP_DEFLATED", "zstd"]

FULL_MODEL_INTERVAL: Final = 10
"""Default of `full_model_interval` where versions are stored as differences."""


class FullModelStrategy(Section):
    """How a model is stored whole."""

    name: str = Field(
        "SafetensorsFullModel",
        description="PyTorchFullModel: a file for torch.load; BinaryFullModel: raw weights, architecture needed to load",
    )
    zip: bool = Field(False, description="compress the file")
    zip_algorithm: Algorithm = Field("ZIP_DEFLATED", description="compression; needs `zip: true`")
    config: dict[str, Any] = Field(default_factory=dict, description="options of the format")

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


class DifferenceConfig(Section):
    """Options of WeightsDifference. Every choice restores the weights bit by bit."""

    operator: Literal["sub", "xor"] = Field("sub", description="operation on bits")
    split_exponent: bool = Field(False, description="separate exponents from other bits")
    rle: bool = Field(False, description="store repeated bytes once")


class IncrementalModelStrategy(Section):
    """How a version is stored as a difference."""

    name: Literal["WeightsDifference"] = Field(description="kind of difference")
    config: DifferenceConfig = Field(default_factory=DifferenceConfig, description="its options")
    zip: bool = Field(True, description="compress the file")
    zip_algorithm: Algorithm = Field("zstd", description="compression")

    @property
    def is_smaller(self) -> bool:
        """Return whether a difference can be smaller than the whole version."""
        return self.zip or self.config.rle


class ModelStorageSection(Section):
    """How model versions are stored."""

    full_model_strategy: FullModelStrategy = Field(default_factory=FullModelStrategy)
    incremental_model_strategy: IncrementalModelStrategy | None = Field(
        None, description="store versions as differences to the run's previous version, if that saves 5 %"
    )
    full_model_interval: int | None = Field(
        None,
        ge=1,
        description=f"every n-th version is stored whole; default: {FULL_MODEL_INTERVAL}",
    )

    @property
    def longest_chain(self) -> int:
        """Return the largest number of files that one version is read from."""
        if self.incremental_model_strategy is None:
            return 1
        return FULL_MODEL_INTERVAL if self.full_model_interval is None else self.full_model_interval

    @staticmethod
    def from_stored(stored: Mapping[str, Any]) -> ModelStorageSection:
        """Return the section of which `stored` is the `model_dump`.

        The section is not validated again, because validation of user input would refuse a section whose fields are all set.
        """
        full, incremental = stored["full_model_strategy"], stored["incremental_model_strategy"]
        if incremental is not None:
            config = DifferenceConfig.model_construct(**incremental["config"])
            incremental = IncrementalModelStrategy.model_construct(**{**incremental, "config": config})
        return ModelStorageSection.model_construct(
            full_model_strategy=FullModelStrategy.model_construct(**full),
            incremental_model_strategy=incremental,
            full_model_interval=stored["full_model_interval"],
        )


def validate_section(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake of the section `model_storage` of a pipeline, which may be absent."""
    data = pipeline.get("model_storage") or {}
    found = check_section(ModelStorageSection, data, "model_storage")
    if found:
        return found
    section = ModelStorageSection.model_validate(data)
    full, incremental = section.full_model_strategy, section.incremental_model_strategy
    found = check_section(MODEL_FORMATS.get(full.name).Config, full.config, "model_storage.full_model_strategy.config")
    if incremental is None and section.full_model_interval is not None:
        message = "has no effect without incremental_model_strategy: every version is stored whole"
        found.append(Problem("model_storage.full_model_interval", message, Severity.WARNING))
    if incremental is not None and not incremental.is_smaller:
        message = "a difference without compression is as large as the version, so every version is stored whole; set zip: true"
        found.append(Problem("model_storage.incremental_model_strategy.zip", message, Severity.WARNING))
    return found
