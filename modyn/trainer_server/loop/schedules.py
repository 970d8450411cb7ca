"""Advance schedulers of learning rates, and compare the fixed lengths of schedulers with the number of steps of a training. Imports torch: for
workers only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from torch.optim.lr_scheduler import ReduceLROnPlateau

from modyn.errors import ConfigError
from modyn.trainer_server.loop.components import resolve
from modyn.trainer_server.request.config import SchedulerConfig
from modyn.trainer_server.request.training_plan import TrainingPlan

_PATH: Final = "training.lr_scheduler"


class _Length(NamedTuple):
    """option: the option that gives the number of steps of a scheduler. then: the scheduler's behaviour after these steps."""

    option: str
    then: str


_FIXED: Final[Mapping[str, _Length]] = {
    "OneCycleLR": _Length("total_steps", ""),
    "PolynomialLR": _Length("total_iters", "the learning rate is 0"),
    "CosineAnnealingLR": _Length("T_max", "the learning rate rises again"),
}
"""Schedulers that should have the training's number of steps. An empty `then`: further steps are an error."""


def advance(schedulers: Sequence[Any], loss: Callable[[], float] | None = None) -> None:
    """Advance all schedulers by one step. Args: loss: returns the loss of the epoch, for ReduceLROnPlateau. Raises: ConfigError: a scheduler has no
    more steps."""
    for scheduler in schedulers:
        try:
            scheduler.step(*([loss()] if loss is not None and isinstance(scheduler, ReduceLROnPlateau) else []))
        except ValueError as error:
            name = type(scheduler).__name__
            length = _FIXED.get(name)
            option = f".{length.option}" if length else ""
            raise ConfigError(
                f"{_PATH}.config{option}: {name} cannot step any further: {error}. Write a number of steps that follows the training: "
                "MODYN_NUM_BATCHES, or MODYN_NUM_EPOCHS with step_every: epoch"
            ) from error


class Shortfall(NamedTuple):
    """A scheduler with fewer steps than the training."""

    path: str
    message: str
    is_error: bool


def _shortfalls(config: SchedulerConfig, options: Mapping[str, Any], num_steps: int | None) -> Iterator[Shortfall]:
    """See `shortfalls`. Parts of composed schedulers are skipped, because a part may have fewer steps.

    Args: options: options of the scheduler's constructor, with arithmetic computed. num_steps: number of the scheduler's steps; None if the number
    differs between triggers, so that a fixed number in the file is wrong for some triggers.
    """
    length = _FIXED.get(config.name) if config.source == "PyTorch" else None
    if length is None:
        return
    option, steps, given = length.option, options.get(length.option), config.config.get(length.option)
    # OneCycleLR takes its length either as total_steps, or as epochs · steps_per_epoch.
    if config.name == "OneCycleLR" and steps is None and {"epochs", "steps_per_epoch"} <= options.keys():
        option, steps = "steps_per_epoch", options["epochs"] * options["steps_per_epoch"]
        given = None if any("MODYN_" in str(config.config[name]) for name in ("epochs", "steps_per_epoch")) else steps
    number = "MODYN_NUM_BATCHES" if config.step_every == "batch" else "MODYN_NUM_EPOCHS"
    path, advice = f"{_PATH}.config.{option}", f"write {length.option}: {number}, which follows the training"
    after = f"after that, {length.then}" if length.then else "the training would end with an error"
    if not isinstance(steps, int | float):
        return
    if num_steps is not None and steps < num_steps:
        yield Shortfall(
            path,
            f"{config.name} is made for {steps:g} steps, and this training has {num_steps}: {after}; {advice}",
            not length.then,
        )
    elif num_steps is None and isinstance(given, int | float):
        after = f"after more, {length.then}" if length.then else "a training with more ends with an error"
        yield Shortfall(
            path,
            f"{config.name} is made for {steps:g} steps, independent of the size of the trigger set: {after}; {advice}",
            False,
        )


def shortfalls(config: SchedulerConfig | None, *, num_batches: int | None, num_epochs: int | None) -> list[Shortfall]:
    """List the schedulers of a section `lr_scheduler` that have fewer steps than the training.

    Args: num_batches: steps of the optimizers. num_epochs: number of epochs. Unknown numbers are None. Raises: ConfigError: arithmetic
    in `config` is wrong.
    """
    if config is None:
        return []
    numbers = {"MODYN_NUM_BATCHES": num_batches or 1, "MODYN_NUM_EPOCHS": num_epochs or 1}
    given = {name: value for name, value in config.config.items() if name != "schedulers"}
    options = {name: resolve(value, numbers, f"{_PATH}.config.{name}") for name, value in given.items()}
    return list(_shortfalls(config, options, num_batches if config.step_every == "batch" else num_epochs))


def check_schedule(config: SchedulerConfig | None, plan: TrainingPlan) -> None:
    """Check that the scheduler of a training does not end before the training. Raises: ConfigError."""
    for found in shortfalls(config, num_batches=plan.num_steps, num_epochs=plan.num_epochs):
        if found.is_error:
            raise ConfigError(f"{found.path}: {found.message}")
