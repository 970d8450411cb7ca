"""What goes to a training worker and what comes back. Imports no torch, unlike the worker's own code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from modyn.config.system import SystemConfig
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


def clean_up(folder: Path, request: TrainingRequest, *, stored: bool) -> None:
    """Removes what an attempt that has ended, perhaps by kill -9, has left behind; checkpoints only once the model is stored."""
    rmtree(scratch_dir(folder, request), ignore_errors=True)
    if stored:
        checkpoint_path(folder, request).unlink(missing_ok=True)
