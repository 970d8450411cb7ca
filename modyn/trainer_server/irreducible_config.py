"""How irreducible-loss models are trained: what `il_training_config` of RHOLoss may say, and the sections that come of it. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from modyn.config.base import Section
from modyn.trainer_server.config import OptimizerConfig, SchedulerConfig

_NOT_THEIRS: Final = (
    "early_stopping", "validation", "num_samples_to_pass", "keep_optimizer_state", "initial_model", "initial_model_id", "on_divergence",
    "record_loss_every",
)  # fmt: skip
"""Options of the training that are of its own model."""
_MODEL: Final = {"il_model_id": "id", "il_model_config": "config"}


class IrreducibleConfig(Section):
    """`il_training_config`: what differs from the pipeline's sections `model` and `training`."""

    il_model_id: str | None = Field(None, description="a registered model; none: that of the pipeline")
    il_model_config: dict[str, Any] | None = Field(None, description="its options")
    use_previous_model: bool = Field(False, description="start from the irreducible-loss model of the trigger before")
    epochs_per_trigger: int | None = Field(None, ge=1, description="passes over what is held out")
    batch_size: int | None = Field(None, ge=1, description="samples in a batch")
    optimizers: list[OptimizerConfig] | None = Field(
        None, min_length=1, description="with them, `lr_scheduler` is not the training's"
    )
    lr_scheduler: SchedulerConfig | None = Field(None, description="how learning rates change")


def irreducible_sections(
    model: Mapping[str, Any], training: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections `model` and `training` of an irreducible-loss model. Args: the pipeline's; options: a checked `il_training_config`."""
    given = {name: value for name, value in options.items() if value is not None}
    own_model = {_MODEL[name]: given.pop(name) for name in _MODEL if name in given}
    shared = {name: value for name, value in training.items() if name not in _NOT_THEIRS}
    if "optimizers" in given:
        shared.pop("lr_scheduler", None)
    # Whether it starts from a model before is no matter of the loop.
    own_training = {**shared, "drop_last_batch": False, **given, "use_previous_model": False}
    return (own_model if "id" in own_model else {**model, **own_model}), own_training
