"""The trainer's files below its folder: scratch files, checkpoints, finished trainings, optimizers' states; where they are and when they go.

Imports no torch.
"""

from __future__ import annotations

from glob import escape
from pathlib import Path
from shutil import rmtree

from modyn.rpc.logs import get_logger
from modyn.trainer_server.client import TrainingRequest
from modyn.trainer_server.finished import partial_path, record_path


def scratch_dir(folder: Path, request: TrainingRequest) -> Path:
    """Files of one attempt. folder: the trainer server's."""
    return folder / "scratch" / f"{request.run_id}.{request.trigger_id}"


def checkpoint_path(folder: Path, request: TrainingRequest) -> Path:
    """The checkpoint of a training, in `folder` of the trainer server unless the pipeline names another; needed until its model is stored."""
    section = request.pipeline["training"].get("checkpointing") or {}
    return Path(section.get("path") or folder / "checkpoints") / f"{request.run_id}.{request.trigger_id}.checkpoint"


def optimizers_path(folder: Path, run_id: str, trigger_id: int) -> Path:
    """The optimizers' states after the training of `trigger_id`, for `keep_optimizer_state`; needed until its model is stored, with them."""
    return folder / "optimizers" / f"{run_id}.{trigger_id}.pt"


def finished_path(folder: Path, request: TrainingRequest) -> Path:
    """The weights of a finished training; needed until its model is stored."""
    return folder / "finished" / f"{request.run_id}.{request.trigger_id}.safetensors"


def remove_run(folder: Path, run_id: str) -> None:
    """Remove all files of a run: its checkpoints, unless the pipeline names another place, finished trainings and states of optimizers."""
    for path in [*folder.glob(f"*/{escape(run_id)}.*"), *folder.glob(f"*/.{escape(run_id)}.*")]:
        # The name of another run may begin with the name of this one: then no number follows.
        if not path.name.lstrip(".").removeprefix(f"{run_id}.").split(".")[0].isdecimal():
            continue
        if path.is_dir():
            rmtree(path, ignore_errors=True)
        else:
            remove(path)


def clean_up(folder: Path, request: TrainingRequest, *, stored: bool) -> None:
    """Remove what an attempt that has ended, perhaps by kill -9, left behind.

    stored: whether its model is; only then its checkpoint goes, and what earlier triggers left.
    """
    rmtree(scratch_dir(folder, request), ignore_errors=True)
    if stored:
        remove_outlived(folder, request)


def remove_outlived(folder: Path, request: TrainingRequest) -> None:
    """Remove what a training whose model is stored went on from, and optimizers' states and ends of earlier triggers of its run."""
    remove_own(folder, request)
    run_id = request.run_id
    for path in (*folder.glob(f"optimizers/{escape(run_id)}.*.pt"), *folder.glob(f"finished/{escape(run_id)}.*.json")):
        trigger_id = path.name.removeprefix(f"{run_id}.").removesuffix(path.suffix)
        # The name of another run may begin with the name of this one: then the rest is not a number.
        if trigger_id.isdecimal() and int(trigger_id) < request.trigger_id:
            remove(path)


def remove_own(folder: Path, request: TrainingRequest) -> None:
    """Remove what a next attempt at a training would go on from: its checkpoint, and weights and optimizers if it was finished."""
    weights, optimizers = finished_path(folder, request), optimizers_path(folder, request.run_id, request.trigger_id)
    record = record_path(weights)
    finished = (record, weights, optimizers, *map(partial_path, (record, weights, optimizers)))
    for path in (checkpoint_path(folder, request), *finished):
        remove(path)


def remove(path: Path) -> None:
    """Remove a file, if it is there. One that cannot be removed takes space and fails no training."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        get_logger("training").warning("file_not_removed", path=str(path), error=error.strerror)
