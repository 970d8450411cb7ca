"""Checkpoints of a training: complete or absent, and loaded without running code (`weights_only`).

A training that goes on from one has, on CPU, bit for bit the weights of a training without the interruption.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import numpy as np
import torch

from modyn.dataset.order.plan import BatchPosition
from modyn.errors import ConfigError, CorruptStateError, TrainingError
from modyn.rpc.logs import get_logger
from modyn.trainer_server.loop import Hook, Training
from modyn.trainer_server.state_file import read_state_file, write_state_file

VERSION: Final = 12

_logger = get_logger("checkpoint")


class Checkpoints(Hook):
    """Writes a checkpoint every `interval` batches, at the next boundary between two steps, and when the training is to stop there."""

    def __init__(self, path: Path, interval: int, identity: Mapping[str, Any], seed: int) -> None:
        """Args: path: of the file, which each checkpoint replaces. identity: of the training, equal for two attempts at it. seed: kept in
        each checkpoint, so that the next attempt has it too.
        """
        self._path = path
        self._interval = interval
        self._header = {"version": VERSION, "identity": dict(identity), "seed": seed}
        self._last = 0
        self._written: tuple[int, int] | None = None
        """Epoch and batches at the newest checkpoint of this process."""

    def on_begin(self, training: Training) -> None:
        """Check before the first batch that a checkpoint can be taken. Raises ConfigError if an optimizer or scheduler keeps state that
        a checkpoint cannot hold."""
        self._last = training.progress.batches
        state = snapshot(training)
        _check_readable({name: state[name] for name in ("optimizers", "schedulers")})

    def on_boundary(self, training: Training) -> None:
        """Write a checkpoint once `interval` batches have passed, or when the training stops. Raises TrainingError if the file cannot be
        written, unless it stops anyway."""
        if training.stopping or training.progress.batches - self._last >= self._interval:
            self._write(training)

    def on_selection(self, training: Training) -> None:
        """Write a checkpoint, unless the newest is of this position: a training that is killed in the pass goes on in it. Raises TrainingError."""
        if self._written != (training.progress.epoch, training.progress.batches):
            self._write(training)

    def _write(self, training: Training) -> None:
        self._last = training.progress.batches
        try:
            write_state_file(self._path, {**self._header, **snapshot(training)})
            self._written = training.progress.epoch, training.progress.batches
        except TrainingError as error:
            if not training.stopping:
                raise
            _logger.warning("checkpoint_not_written", reason=error.message)


def snapshot(training: Training) -> dict[str, Any]:
    """All state that the rest of the training depends on. To be called between two steps: gradients are not part of it."""
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


def restore(training: Training, state: Mapping[str, Any]) -> None:
    """Bring a training that was just built to the state of `snapshot`. Random generators last: building draws from them."""
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


def load_checkpoint(path: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The checkpoint at `path`, or None if there is none of the same training. One that cannot be used is logged; the training then starts
    from the beginning, with the same result.

    Args: identity: of the training, as for `Checkpoints`.
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
    return state


def check_checkpoint_folder(folder: Path, *, keep: bool = True) -> None:
    """Check that a file can be written to `folder`, which is made if it is missing. Raises ConfigError otherwise.

    Args: keep: leave the folder if it was made here.
    """
    missing = [folder, *folder.parents]
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
                with suppress(OSError):  # another check or training may use it by now
                    made.rmdir()


def random_state() -> dict[str, Any]:
    """The state of every global random generator."""
    version, words, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        # Of the process's own GPU: others are of no use here, and may be fewer where the training goes on.
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
        "python": random.getstate(),
        "numpy": (str(version), torch.from_numpy(np.asarray(words, np.int64)), int(position), int(has_gauss), float(gauss)),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set every global random generator to what `random_state` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, numpy_words, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, numpy_words.numpy().astype(np.uint32), position, has_gauss, cached))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the global random generators as they were before the block."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


def seed_everything(seed: int) -> None:
    """Seed every global random generator. Args: seed: 63 bits."""
    # Without an accelerator, `torch.manual_seed` writes down the call for each kind that there is, with its stack, which takes half a millisecond.
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def derived_seed(seed: int, trigger_id: int, purpose: int) -> int:
    """Mix 63 bits that depend on nothing but the run's `seed`, the trigger and the number of a `purpose`."""
    high, low = np.random.SeedSequence([seed, trigger_id, purpose]).generate_state(2, np.uint32).tolist()
    return (int(high) << 31) | (int(low) >> 1)


def _check_readable(state: Mapping[str, Any]) -> None:
    buffer = io.BytesIO()
    try:
        torch.save(dict(state), buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception as error:
        raise ConfigError(
            "training.checkpointing: an optimizer or scheduler keeps state that is not made of numbers, texts, tensors and collections "
            f"of these, so it cannot be restored safely: {error}; choose another, or switch checkpointing off"
        ) from error
