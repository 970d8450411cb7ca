"""Records of model storage, apart from weights. Other rooms import them from `client`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modyn.records import ModelVersion, RunId


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """Description of a model that is put."""

    run_id: RunId
    """Empty for a model that a user imports; such a put is not idempotent."""
    trigger_id: int
    model_class: str
    """Registered id in `modyn.models`."""
    model_config: Mapping[str, Any] = field(default_factory=dict)
    model_storage: Mapping[str, Any] = field(default_factory=dict)
    """That section of the pipeline; empty: whole, as safetensors."""
    training_result: Mapping[str, Any] = field(default_factory=dict)
    """Report of the trainer: counts, losses, seconds a stage."""
    parent_id: int | None = None
    """The version that this one was fine-tuned from."""


@dataclass(frozen=True, slots=True)
class StoredModelInfo:
    """A model version and what is needed to build its network again."""

    version: ModelVersion
    model_class: str
    model_config: dict[str, Any]
    training_result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredModel(StoredModelInfo):
    """A model version whose weights have been fetched into the safetensors file `path`."""

    path: Path
