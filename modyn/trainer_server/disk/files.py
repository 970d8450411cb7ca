"""The trainer's files below its folder: scratch files, checkpoints, optimizers' states, finished trainings. Defines their paths and their removal.

A training leaves its weights and its result on disk when it ends. If the service misses the end, the next attempt only stores this model. The files
are the weights, the optimizers' states (if the training keeps them), and finally a record with the training's identity and the checksums. Weights
without a record are ignored. A record without weights belongs to a training that made no model. The files are durable, except after online steps:
repeating the steps takes less time than waiting for the disk.

The argument `folder` is the trainer server's folder. This module imports no torch: a function of the caller writes the weights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from shutil import rmtree
from typing import Any, Final
from zlib import crc32

from modyn.atomic_write import make_folder, replacing, sync
from modyn.errors import ModynError, TrainingError, UnavailableError
from modyn.json_codec import from_json, to_json
from modyn.models.weights import weights_sha256
from modyn.rpc.logs import get_logger
from modyn.trainer_server.request.records import TrainingRequest

VERSION: Final = 2
"""Version of the record of a finished training."""


def scratch_dir(folder: Path, request: TrainingRequest) -> Path:
    """Return the folder of one attempt at a training, below the `folder` of the trainer server."""
    return folder / "scratch" / f"{request.run_id}.{request.trigger_id}"


def checkpoint_path(folder: Path, request: TrainingRequest) -> Path:
    """Return the checkpoint's path, in `folder` unless the pipeline names another folder; the training needs the file until the model is stored."""
    section = request.pipeline["training"].get("checkpointing") or {}
    return Path(section.get("path") or folder / "checkpoints") / f"{request.run_id}.{request.trigger_id}.checkpoint"


def selections_dir(folder: Path, request: TrainingRequest) -> Path:
    """Return the folder for the scores and choices of a sample-then-batch training; the training needs the folder until the model is stored."""
    return folder / "selections" / f"{request.run_id}.{request.trigger_id}"


def chosen_path(folder: Path, number: int) -> Path:
    """Return the file of the samples that selection `number` (from 0) of a training chooses. Args: folder: folder of the training's selections."""
    return folder / f"{number}.chosen"


def irreducible_dir(folder: Path, request: TrainingRequest) -> Path:
    """Return the folder of the irreducible-loss models that the next trigger starts from; the folder is needed until the next trigger has its own
    folder.
    """
    return folder / "irreducible" / f"{request.run_id}.{request.trigger_id}"


def kept_irreducible(folder: Path, request: TrainingRequest) -> list[tuple[int, Path]]:
    """Return the folders of irreducible-loss models that earlier triggers of the run have kept, with trigger numbers, newest first."""
    found = []
    for path in folder.glob(f"irreducible/{escape(request.run_id)}.*"):
        trigger_id = path.name.removeprefix(f"{request.run_id}.")
        if trigger_id.isdecimal() and int(trigger_id) < request.trigger_id:
            found.append((int(trigger_id), path))
    return sorted(found, reverse=True)


def optimizers_path(folder: Path, run_id: str, trigger_id: int) -> Path:
    """Return the path of the optimizers' states after the training of `trigger_id`, for `keep_optimizer_state`. The file is needed until model
    storage has stored the states.
    """
    return folder / "optimizers" / f"{run_id}.{trigger_id}.pt"


def feedback_path(folder: Path, request: TrainingRequest) -> Path:
    """Return the file of the scores that a training computes, below the trainer server's `folder`; the file is needed until the model is stored."""
    return folder / "feedback" / f"{request.run_id}.{request.trigger_id}.scores"


def finished_path(folder: Path, request: TrainingRequest) -> Path:
    """Return the file of the weights of a finished training, below the trainer server's `folder`; the file is needed until the model is stored."""
    return folder / "finished" / f"{request.run_id}.{request.trigger_id}.safetensors"


def record_path(weights: Path) -> Path:
    """Return the path of the record that belongs to the weights of a finished training."""
    return weights.with_suffix(".json")


def partial_path(path: Path) -> Path:
    """Return the temporary path of a file of a finished training. All attempts share the path, so that they overwrite the file of a killed
    attempt."""
    return path.with_name(f".{path.name}.partial")


def keep_finished(
    weights: Path,
    save: Callable[[Path], None],
    result: Mapping[str, Any],
    identity: Mapping[str, Any],
    optimizers: Path | None = None,
    *,
    durable: bool = True,
) -> None:
    """Write the weights by `save`, and then the record. On return both files are durable, unless `durable` is False.

    Args: weights: path of the weights. result: result of the training. identity: identity of the training, equal for all attempts. optimizers: file
    with the optimizers' states that belong to the weights.
    Raises: TrainingError: the disk cannot be written to.
    """
    partial = partial_path(weights)
    try:
        if durable or not weights.parent.is_dir():
            make_folder(weights.parent)
        # The weights get their final name when they are complete. The record is written afterwards. A crash leaves no record of missing weights.
        save(partial)
        if durable:
            sync(partial)
        os.replace(partial, weights)
        states = {} if optimizers is None else {"optimizers_crc32": crc32(optimizers.read_bytes())}
        _write_record(
            weights,
            {"weights_sha256": weights_sha256(weights), **states, "result": result},
            identity,
            durable=durable,
        )
    except Exception as error:  # safetensors raises its own error if the disk is full.
        with suppress(OSError):
            partial.unlink()
        reason = error.message if isinstance(error, ModynError) else getattr(error, "strerror", None) or str(error)
        raise TrainingError(
            f"the trained model cannot be written to {weights}: {reason}; free space there and resume the run: it resumes from its newest "
            "checkpoint, if checkpointing is activated"
        ) from error


def keep_without_model(weights: Path, result: Mapping[str, Any], identity: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write only the record, for a training that made no model.

    Args: see `keep_finished`.
    Raises: TrainingError: the disk cannot be written to.
    """
    try:
        if durable or not weights.parent.is_dir():
            make_folder(weights.parent)
        _write_record(weights, {"weights_sha256": None, "result": result}, identity, durable=durable)
    except OSError as error:
        raise TrainingError(
            f"the end of the training cannot be written to {record_path(weights)}: {error.strerror}; free space there and resume the run"
        ) from error


def find_finished(weights: Path, identity: Mapping[str, Any], optimizers: Path | None = None) -> dict[str, Any] | None:
    """Return the result of a training that an earlier attempt finished; None if there is no record, or a file is damaged or of another training.

    Files that cannot be used are logged, and the training runs again.

    Args: weights, identity: see `keep_finished`. optimizers: path of the states of the optimizers, if the training keeps these states.
    """
    path = record_path(weights)
    if not path.exists():
        return None
    try:
        record = from_json(path.read_bytes())
        checksum = record.pop("crc32", None)
        # Another version of the record may have another checksum. The condition below refuses such a record by its version.
        if record["version"] == VERSION and checksum != _checksum(record):
            reason = "it does not match its checksum"
        elif record["version"] != VERSION or record["identity"] != dict(identity):
            reason = "it is of another version or of another training"
        elif record["weights_sha256"] is not None and record["weights_sha256"] != weights_sha256(weights):
            reason = f"{weights} does not match its checksum"
        elif "optimizers_crc32" in record and (
            optimizers is None or record["optimizers_crc32"] != crc32(optimizers.read_bytes())
        ):
            reason = f"{optimizers} does not match its checksum"
        else:
            result: dict[str, Any] = record["result"]
            return result
    except (OSError, ValueError, KeyError, TypeError, ModynError) as error:
        reason = error.message if isinstance(error, ModynError) else f"{type(error).__name__}: {error}"
    get_logger("training").warning("finished_training_ignored", path=str(path), reason=reason)
    return None


def _write_record(weights: Path, end: Mapping[str, Any], identity: Mapping[str, Any], *, durable: bool) -> None:
    record, path = {"version": VERSION, "identity": identity, **end}, record_path(weights)
    with replacing(path, partial_path(path), durable=durable) as file:
        file.write(to_json({**record, "crc32": _checksum(record)}).encode())


def _checksum(record: Mapping[str, Any]) -> int:
    return crc32(to_json(record).encode())


def remove_run(folder: Path, run_id: str) -> None:
    """Remove all files of a run: checkpoints (unless the pipeline names another folder for checkpoints), finished trainings and states of optimizers.

    Raises: UnavailableError: the disk does not confirm the removal.
    """
    # The patterns below also find files of a run whose name begins with this run's name and a dot. This expression excludes these files.
    own = re.compile(rf"\.?{re.escape(run_id)}\.\d+(\.(checkpoint|pt|json|safetensors|scores)(\.partial)?)?")
    for path in [*folder.glob(f"*/{escape(run_id)}.*"), *folder.glob(f"*/.{escape(run_id)}.*")]:
        if not own.fullmatch(path.name):
            continue
        if path.is_dir():
            rmtree(path, ignore_errors=True)
        else:
            remove(path)
    try:
        # The removal must be durable before the journal of the run is removed. Without the journal, no process removes files that a crash restores.
        for place in folder.glob("*/"):
            sync(place)
    except OSError as error:
        raise UnavailableError(
            f"cannot remove the files of run {run_id}: {error.strerror}; repair the disk and remove it again"
        ) from error


def clean_up(folder: Path, request: TrainingRequest, *, stored: bool) -> None:
    """Remove the files of an attempt that has ended, even if its worker was killed.

    Args: stored: whether the model of the training is stored. If so, also remove the checkpoint and the files of earlier triggers.
    """
    rmtree(scratch_dir(folder, request), ignore_errors=True)
    if stored:
        remove_outlived(folder, request)


def remove_outlived(folder: Path, request: TrainingRequest) -> None:
    """After a training's model is stored, remove the files that its next attempt would need, and the files of earlier triggers."""
    remove_own(folder, request)
    if irreducible_dir(folder, request).exists():
        for _, models in kept_irreducible(folder, request):
            rmtree(models, ignore_errors=True)
    _remove_earlier(folder, request, "optimizers/{}.*.pt", "finished/{}.*.json")


def remove_earlier_ends(folder: Path, request: TrainingRequest) -> None:
    """Remove finished trainings of earlier triggers, whose results the run has read. Trainings that rarely store a model call this function. For
    other trainings, `remove_outlived` removes these files when a model is stored.
    """
    _remove_earlier(folder, request, "finished/{}.*.json")


def _remove_earlier(folder: Path, request: TrainingRequest, *patterns: str) -> None:
    run_id = request.run_id
    for path in (path for pattern in patterns for path in folder.glob(pattern.format(escape(run_id)))):
        trigger_id = path.name.removeprefix(f"{run_id}.").removesuffix(path.suffix)
        # The name of another run may begin with this run's name; then the rest is not a number.
        if trigger_id.isdecimal() and int(trigger_id) < request.trigger_id:
            remove(path)


def remove_own(folder: Path, request: TrainingRequest) -> None:
    """Remove the files that the next attempt at a training would resume from: its checkpoint, and weights and optimizers of a finished training."""
    weights, optimizers = finished_path(folder, request), optimizers_path(folder, request.run_id, request.trigger_id)
    record = record_path(weights)
    finished = (record, weights, optimizers, *map(partial_path, (record, weights, optimizers)))
    for path in (checkpoint_path(folder, request), feedback_path(folder, request), *finished):
        remove(path)
    rmtree(selections_dir(folder, request), ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a file if it exists. A file that cannot be removed is logged, and does not fail the training.

    The removal is not synced. A file that a crash restores takes space until the run is removed, but changes no result: A training with a stored
    model does not run again. Weights without a record are ignored. Optimizers' states are used only if the result does not mark them as lost. From an
    old checkpoint, a diverged training diverges again.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        get_logger("training").warning("file_not_removed", path=str(path), error=error.strerror)
