"""The sections of a pipeline file that matter for a cache: how samples are prepared, and how the model trains on them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modyn.cache.plan.profile import section_digest
from modyn.config.base import Problem, Section, check_section
from modyn.config.cache import CacheConfig
from modyn.config.pipeline import ModelReference, check_frame
from modyn.config.preprocessing import PREPROCESSING, with_columns
from modyn.config.published import pipeline_source
from modyn.config.yaml_source import load_yaml, with_lines
from modyn.dataset.config import DataConfig
from modyn.errors import ConfigError
from modyn.models import check_model
from modyn.models.names import Pretrained, check_sources, definition_of
from modyn.trainer_server.request.config import TrainingConfig


@dataclass(frozen=True, slots=True)
class ProfiledPipeline:
    """The sections of a pipeline that determine the parameters of the performance model."""

    model: ModelReference
    data: DataConfig
    training: TrainingConfig
    cache: Mapping[str, Any] = field(default_factory=dict)
    """The pipeline's section `cache`. The system file may contain further options of the cache."""
    definition: str = ""
    """The text that the model is built from, see `model_definition`."""

    @property
    def data_digest(self) -> str:
        """Digest of the section `data` with its defaults; identifies a profile."""
        return section_digest(self.data.model_dump(mode="json"))

    @property
    def trained(self) -> str:
        """Description of the training with which the accelerator's rate was measured."""
        return f"{self.model.id} on {self.training.device}, batches of {self.training.batch_size}"


def load_profiled(text: str, file_name: str) -> ProfiledPipeline:
    """Load the sections of `ProfiledPipeline` from the text of a pipeline file. Raises ConfigError, which lists every problem in these sections and
    in the file's frame, with line numbers.
    """
    source = pipeline_source(load_yaml(text, file_name))
    found, data = [*check_frame(source.data), *check_sources(source.data)], with_columns(source.data)
    sections: dict[str, type[Section]] = {"data": DataConfig, "training": TrainingConfig, "cache": CacheConfig}
    for name, kind in sections.items():
        if isinstance(section := data.get(name), Mapping):
            found += check_section(kind, section, name)
    model: Any = source.data.get("model")
    if isinstance(model, Mapping) and isinstance(model.get("id"), str):
        found += check_model(
            model["id"], model.get("config") or {}, definition_of(data, model["id"]), Pretrained.of(data, model["id"])
        )
    if isinstance(data.get(PREPROCESSING), Mapping):
        message = (
            "pipelines with this section are not profiled: columns are parsed a batch at once, and a cache keeps payloads alone"
        )
        found.append(Problem(PREPROCESSING, message))
    if found:
        raise ConfigError("\n".join(with_lines(found, source)))
    return ProfiledPipeline(
        ModelReference.model_validate(model),
        DataConfig.model_validate(data["data"]),
        TrainingConfig.model_validate(source.data["training"]),
        source.data.get("cache") or {},
        definition_of(data, model["id"]),
    )
