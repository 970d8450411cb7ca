"""The training of irreducible-loss models: the options `il_training_config` of RHOLoss, and the sections made from them. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

from pydantic import Field, model_validator

from modyn.config.base import PlacedError, Problem, Severity, check_section, load_section
from modyn.trainer_server.request.config import TrainingConfig

_NOT_THEIRS: Final = (
    "early_stopping", "validation", "num_samples_to_pass", "keep_optimizer_state", "initial_model", "initial_model_id", "on_divergence",
    "record_loss_every", "use_previous_model",
)  # fmt: skip
"""Options of the training that do not apply to an irreducible-loss model."""
_MODEL: Final = {"il_model_id": "id", "il_model_config": "config"}


class IrreducibleConfig(TrainingConfig):
    """The options `il_training_config`, with defaults from the section `training`."""

    il_model_id: str | None = Field(None, description="registered name of the model; none: the model of the pipeline")
    il_model_config: dict[str, Any] | None = Field(None, description="arguments of the model's constructor")
    use_previous_model: bool = Field(False, description="start from the irreducible-loss model of the previous trigger")
    drop_last_batch: bool = Field(False, description="leave out the last batch of an epoch if it is smaller than the others")

    @model_validator(mode="after")
    def _can_be_followed(self) -> Self:
        for name, reason in self._refused():
            raise PlacedError(name, f"an irreducible-loss model {reason}")
        return self

    def _refused(self) -> Iterator[tuple[str, str]]:
        if self.initial_model == "pretrained":
            yield (
                "initial_model",
                "begins from scratch, or where that of the trigger before ended: remove it, or set use_previous_model",
            )
        if self.num_samples_to_pass:
            yield "num_samples_to_pass", "is trained for whole epochs: set epochs_per_trigger"
        if self.validation is not None:
            yield (
                "validation",
                "is trained on all samples that are held out for it: remove it, or choose a larger holdout_set_ratio",
            )
        if self.keep_optimizer_state:
            yield "keep_optimizer_state", "keeps its weights alone: remove it"
        if self.on_divergence == "keep_previous":
            yield "on_divergence", "is needed by the training that it is for, which fails with it: remove it"


def irreducible_config(training: Mapping[str, Any], options: Mapping[str, Any], path: str) -> IrreducibleConfig:
    """Load `il_training_config`. Args: training: section `training` of the pipeline. options, path: content and path of `il_training_config`.
    Raises: ConfigError.
    """
    return load_section(IrreducibleConfig, _merged(training, options), path)


def check_irreducible(training: Mapping[str, Any], options: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """List the errors in `il_training_config`, and its options without effect. Args: see `irreducible_config`. `training` must be valid."""
    wrong = check_section(IrreducibleConfig, _merged(training, options), path)
    yield from wrong
    if wrong:
        return
    config, shared = irreducible_config(training, options, path), load_section(TrainingConfig, training)
    without_effect = {
        "device": (config.device != shared.device, f"the model is trained in the same job, on training.device, {shared.device}"),
        "seed": (config.seed != shared.seed, "the model's seed follows from that of the training"),
        "record_loss_every": (bool(config.record_loss_every), "the model's losses are not recorded"),
        "checkpointing.path": (
            config.checkpointing.path != shared.checkpointing.path,
            "checkpoints of the model stand with what the training has chosen",
        ),
    }
    for name, (differs, reason) in without_effect.items():
        if differs:
            yield Problem(f"{path}.{name}", f"has no effect: {reason}", Severity.WARNING)


def irreducible_sections(
    model: Mapping[str, Any], training: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sections `model` and `training` of an irreducible-loss model. Args: model, training: sections of the pipeline. options: a checked
    `il_training_config`.
    """
    merged = _merged(training, options)
    own_model = {_MODEL[name]: merged.pop(name) for name in _MODEL if name in merged}
    # `IrreducibleModel` loads the weights of the previous model itself.
    own_training = {"drop_last_batch": False, **merged, "use_previous_model": False}
    if "id" not in own_model:
        own_model = {**model, **own_model}
    elif model.get("download"):  # Counts for all models of the pipeline, see `modyn.models.names.Pretrained`.
        own_model["download"] = True
    return own_model, own_training


def _merged(training: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the model. Missing options get the values of the section `training`, except for the options in `left`."""
    given = {name: value for name, value in options.items() if value is not None}
    left = {*_NOT_THEIRS, "drop_last_batch", *(("lr_scheduler",) if "optimizers" in given else ())}
    return {**{name: value for name, value in training.items() if name not in left}, **given}
