"""What goes to a training worker and what comes back. Imports no torch, unlike the worker's own code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from shutil import rmtree
from typing import Any

from modyn.config.system import SystemConfig
from modyn.rpc.logs import get_logger
from modyn.trainer_server.client import TrainingRequest


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A request, and the installation that it belongs to."""

    request: TrainingRequest
    config: SystemConfig


@dataclass(frozen=True, slots=True)
class Trained:
    """What came out. `result` is what was stored with the model."""

    model_id: int
    weights_sha256: str
    result: Mapping[str, Any]


def scratch_dir(folder: Path, request: TrainingRequest) -> Path:
    """Files that are of value to one attempt only. folder: the trainer server's."""
    return folder / "scratch" / f"{request.run_id}.{request.trigger_id}"


def checkpoint_path(folder: Path, request: TrainingRequest) -> Path:
    """Where the checkpoints of a training are; they are of value until its model is stored."""
    section = request.pipeline["training"].get("checkpointing") or {}
    return Path(section.get("path") or folder / "checkpoints") / f"{request.run_id}.{request.trigger_id}.checkpoint"


def optimizers_path(folder: Path, run_id: str, trigger_id: int) -> Path:
    """Where the optimizers' state at the end of a trigger's training is kept, for `keep_optimizer_state`; it is of value until the model of
    a later trigger is stored, which the ones after that go on from."""
    return folder / "optimizers" / f"{run_id}.{trigger_id}.pt"


def clean_up(folder: Path, request: TrainingRequest, *, stored: bool) -> None:
    """Removes what an attempt that has ended, perhaps by kill -9, has left behind; checkpoints, and the optimizers of triggers before, only
    once the model is stored."""
    rmtree(scratch_dir(folder, request), ignore_errors=True)
    if stored:
        remove_outlived(folder, request)


def remove_outlived(folder: Path, request: TrainingRequest) -> None:
    """Removes what is of no value any more once the model of a training is stored."""
    remove(checkpoint_path(folder, request))
    for path in folder.glob(f"optimizers/{escape(request.run_id)}.*.pt"):
        trigger_id = path.name.removeprefix(f"{request.run_id}.").removesuffix(".pt")
        # Of a run with a longer name there is more than a number.
        if trigger_id.isdecimal() and int(trigger_id) < request.trigger_id:
            remove(path)


def remove(path: Path) -> None:
    """Removes a file that is of no value any more, if it is there. One that cannot be removed takes space and fails nobody's training."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        get_logger("training").warning("file_not_removed", path=str(path), error=error.strerror)
