"""Schedulers of learning rates that are made for a number of steps: advanced, and compared with the steps of a training. Imports torch: for
workers only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from torch.optim.lr_scheduler import ReduceLROnPlateau

from modyn.errors import ConfigError
from modyn.trainer_server.components import resolve
from modyn.trainer_server.config import SchedulerConfig
from modyn.trainer_server.training_plan import TrainingPlan

_PATH: Final = "training.lr_scheduler"


class _Length(NamedTuple):
    """option: that says for how many steps a scheduler is made. then: what it does with more of them."""

    option: str
    then: str


_FIXED: Final[Mapping[str, _Length]] = {
    "OneCycleLR": _Length("total_steps", ""),
    "PolynomialLR": _Length("total_iters", "the learning rate is 0"),
    "CosineAnnealingLR": _Length("T_max", "the learning rate rises again"),
}
"""Schedulers whose number of steps should be that of the training. An empty `then`: more of them are an error."""


def advance(schedulers: Sequence[Any], loss: Callable[[], float] | None = None) -> None:
    """Advance all by one step. Args: loss: of the epoch, for ReduceLROnPlateau. Raises: ConfigError: one has no more steps."""
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
    """A scheduler that is made for fewer steps than there are."""

    path: str
    message: str
    is_error: bool


def _shortfalls(config: SchedulerConfig, options: Mapping[str, Any], num_steps: int | None) -> Iterator[Shortfall]:
    """See `shortfalls`. Parts of composed schedulers are not looked at, because they may end in between.

    Args: options: of its constructor, with their numbers computed. num_steps: times that it steps; None: only each trigger knows, so that a number in
    the file is wrong for some.
    """
    length = _FIXED.get(config.name) if config.source == "PyTorch" else None
    if length is None:
        return
    option, steps, given = length.option, options.get(length.option), config.config.get(length.option)
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
            path, f"{config.name} is made for {steps:g} steps, whatever the size of the trigger set: {after}; {advice}", False
        )


def shortfalls(config: SchedulerConfig | None, *, num_batches: int | None, num_epochs: int | None) -> list[Shortfall]:
    """What is wrong with the length of the scheduler of a section `lr_scheduler`.

    Args: num_batches: steps of the optimizers. Both: None: not known. Raises: ConfigError: arithmetic in `config` is wrong.
    """
    if config is None:
        return []
    numbers = {"MODYN_NUM_BATCHES": num_batches or 1, "MODYN_NUM_EPOCHS": num_epochs or 1}
    given = {name: value for name, value in config.config.items() if name != "schedulers"}
    options = {name: resolve(value, numbers, f"{_PATH}.config.{name}") for name, value in given.items()}
    return list(_shortfalls(config, options, num_batches if config.step_every == "batch" else num_epochs))


def check_schedule(config: SchedulerConfig | None, plan: TrainingPlan) -> None:
    """Check that the scheduler of a training has as many steps as this takes. Raises: ConfigError."""
    for found in shortfalls(config, num_batches=plan.num_steps, num_epochs=plan.num_epochs):
        if found.is_error:
            raise ConfigError(f"{found.path}: {found.message}")
