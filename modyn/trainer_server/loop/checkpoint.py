"""Checkpoints of a training: complete or absent, and loaded without running code (`weights_only`).

On a CPU, a resumed training ends with the weights of an uninterrupted training, bit for bit.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import torch

from modyn.dataset.order.batch_plan import BatchPosition
from modyn.errors import ConfigError, CorruptStateError, TrainingError
from modyn.rpc.logs import get_logger
from modyn.trainer_server.disk.state_file import read_state_file, write_state_file
from modyn.trainer_server.loop.loop import Hook, Training
from modyn.trainer_server.loop.seeding import random_state, set_random_state
from modyn.trainer_server.loop.training_progress import TrainingProgress

VERSION: Final = 13

_logger = get_logger("checkpoint")


class Checkpoints(Hook):
    """Writes a checkpoint every `interval` batches, at the next boundary between two steps, and when the training stops at a boundary."""

    def __init__(self, path: Path, interval: int, identity: Mapping[str, Any], seed: int) -> None:
        """Args: path: path of the file, which each checkpoint replaces. identity: identity of the training, equal for all attempts. seed: seed that
        each checkpoint stores for the next attempt.
        """
        self._path = path
        self._interval = interval
        self._header = {"version": VERSION, "identity": dict(identity), "seed": seed}
        self._last = 0
        self._written: tuple[int, int] | None = None
        """Epoch and number of batches at the newest checkpoint of this process."""

    def on_begin(self, training: Training) -> None:
        """Check before the first batch that a checkpoint can be written. Raises ConfigError if a checkpoint cannot contain the state of an optimizer
        or scheduler."""
        self._last = training.progress.batches
        state = snapshot(training)
        _check_readable({name: state[name] for name in ("optimizers", "schedulers")})

    def on_boundary(self, training: Training) -> None:
        """Write a checkpoint if `interval` batches have passed since the newest checkpoint or the start, or if the training stops.

        Raises: TrainingError: the file cannot be written, unless the training stops.
        """
        if training.stopping or training.progress.batches - self._last >= self._interval:
            self._write(training)

    def on_selection(self, training: Training) -> None:
        """Write a checkpoint unless this position already has a checkpoint. A training that is killed in the scoring pass then resumes in this pass.
        Raises: TrainingError.
        """
        if self._written != (training.progress.epoch, training.progress.batches):
            self._write(training)

    def _write(self, training: Training) -> None:
        self._last = training.progress.batches
        try:
            write_state_file(self._path, {**self._header, **snapshot(training)})
            self._written = training.progress.epoch, training.progress.batches
        except TrainingError as error:
            # A training that stops must stop even if its checkpoint cannot be written. Its next attempt then resumes from an earlier checkpoint.
            if not training.stopping:
                raise
            _logger.warning("checkpoint_not_written", reason=error.message)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint."""

    seed: int
    """Seed of the training, which later attempts use again."""
    progress: TrainingProgress
    order: Any
    """State of the order of the samples, for the source of batches."""
    state: Mapping[str, Any]
    """All of the `snapshot`."""


def snapshot(training: Training) -> dict[str, Any]:
    """Return all state that the rest of the training depends on. Call between two steps, because gradients are not included."""
    training.settle_steps()
    position = BatchPosition(training.progress.epoch, training.progress.batches_in_epoch)
    return {
        "progress": asdict(training.progress),
        "preprocessing": None if training.preprocessing is None else training.preprocessing.state(),
        "order": None if training.order_state is None else training.order_state(position),
        "finished": training.finished,
        "epoch_loss": training.epoch_loss,
        "seconds": dict(training.clock.seconds),
        "model": training.components.model.state_dict(),
        "optimizers": {name: optimizer.state_dict() for name, optimizer in training.components.optimizers.items()},
        "schedulers": [scheduler.state_dict() for scheduler in training.components.schedulers],
        "scaler": training.components.scaler.state_dict(),
        "hooks": {hook.name: hook.state() for hook in training.hooks if hook.name},
        "random": random_state(),
    }


def restore(training: Training, checkpoint: Checkpoint) -> None:
    """Restore a newly built training. Random generators are restored last, because earlier operations may draw from them."""
    state = checkpoint.state
    for name, value in state["progress"].items():
        setattr(training.progress, name, value)
    if training.preprocessing is not None:
        training.preprocessing.load_state(state["preprocessing"])
    training.finished = state["finished"]
    training.epoch_loss = state["epoch_loss"].to(training.components.device)
    training.clock.seconds.update(state["seconds"])
    training.components.model.load_state_dict(state["model"])
    for name, optimizer in training.components.optimizers.items():
        optimizer.load_state_dict(state["optimizers"][name])
    for scheduler, saved in zip(training.components.schedulers, state["schedulers"], strict=True):
        scheduler.load_state_dict(saved)
    training.components.scaler.load_state_dict(state["scaler"])
    for hook in training.hooks:
        if hook.name:
            hook.load_state(state["hooks"][hook.name])
    set_random_state(state["random"])


def load_checkpoint(path: Path, identity: Mapping[str, Any]) -> Checkpoint | None:
    """Load the checkpoint at `path`; None if the checkpoint is missing, unusable, or of another training. An unusable checkpoint is logged, and the
    training starts from the beginning, with the same result.

    Args: identity: see `Checkpoints`.
    """
    if not path.exists():
        return None
    try:
        state = read_state_file(path)
    except CorruptStateError as error:
        _logger.warning("checkpoint_ignored", reason=error.message)
        return None
    if state.get("version") != VERSION or state.get("identity") != dict(identity):
        _logger.warning("checkpoint_ignored", path=str(path), reason="it was written by another version or for another training")
        return None
    return Checkpoint(state["seed"], TrainingProgress(**state["progress"]), state["order"], state)


def check_checkpoint_folder(folder: Path, *, keep: bool = True) -> None:
    """Check that a file can be written to `folder`, and create a missing folder. Raises ConfigError if no file can be written.

    Args: keep: keep a folder that this call created.
    """
    missing = [folder, *folder.parents]
    # The folders that the `mkdir` below creates, in the order of their removal: the deepest first.
    missing = missing[: next((i for i, at in enumerate(missing) if os.path.lexists(at)), 0)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:
            file.write(b"modyn")
    except OSError as error:
        raise ConfigError(
            f"training.checkpointing.path: checkpoints cannot be written to the folder {folder}: {error.strerror}; name a folder that "
            "the trainer server may write to, or leave `path` out: they are then kept below its state folder"
        ) from error
    finally:
        if not keep:
            for made in missing:
                with suppress(OSError):  # Another check or training may use the folder by now.
                    made.rmdir()


def _check_readable(state: Mapping[str, Any]) -> None:
    buffer = io.BytesIO()
    try:
        torch.save(dict(state), buffer)
        buffer.seek(0)
        # `weights_only` refuses objects whose loading would execute code.
        torch.load(buffer, weights_only=True)
    except Exception as error:
        raise ConfigError(
            "training.checkpointing: an optimizer or scheduler keeps state that is not made of numbers, texts, tensors and collections "
            f"of these, so it cannot be restored safely: {error}; choose another, or switch checkpointing off"
        ) from error
