"""The trainer's files below its folder: scratch files, checkpoints, optimizers' states, finished trainings; where they are and when they go.

A training that has ended, and whose end was perhaps not seen, leaves weights and result on disk, so that the next attempt only puts them: the
weights, perhaps states of optimizers, then a record of whose they are, with checksums of both. Without the record, weights count for nothing; a
record without weights is of a training that made no model. They are durable, but for those of a stretch of steps, which is quickly made again:
waiting for the disk would take longer than its steps.

`folder`, where it is an argument, is the trainer server's. Imports no torch; what writes the weights does.
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
from modyn.trainer_server.client import TrainingRequest

VERSION: Final = 2
"""Of the record of a finished training."""


def scratch_dir(folder: Path, request: TrainingRequest) -> Path:
    """The folder of one attempt at a training, below the `folder` of the trainer server."""
    return folder / "scratch" / f"{request.run_id}.{request.trigger_id}"


def checkpoint_path(folder: Path, request: TrainingRequest) -> Path:
    """The checkpoint of a training, in `folder` of the trainer server unless the pipeline names another; needed until its model is stored."""
    section = request.pipeline["training"].get("checkpointing") or {}
    return Path(section.get("path") or folder / "checkpoints") / f"{request.run_id}.{request.trigger_id}.checkpoint"


def selections_dir(folder: Path, request: TrainingRequest) -> Path:
    """The folder of scores and choices of a training in sample-then-batch; needed until its model is stored."""
    return folder / "selections" / f"{request.run_id}.{request.trigger_id}"


def chosen_path(folder: Path, number: int) -> Path:
    """What selection `number`, from 0, of a training has chosen. Args: folder: of its selections."""
    return folder / f"{number}.chosen"


def irreducible_dir(folder: Path, request: TrainingRequest) -> Path:
    """The folder of the irreducible-loss models that the next trigger begins with; needed until that has its own."""
    return folder / "irreducible" / f"{request.run_id}.{request.trigger_id}"


def kept_irreducible(folder: Path, request: TrainingRequest) -> list[tuple[int, Path]]:
    """The folders of irreducible-loss models that earlier triggers of the run have kept, with their numbers, the newest first."""
    found = []
    for path in folder.glob(f"irreducible/{escape(request.run_id)}.*"):
        trigger_id = path.name.removeprefix(f"{request.run_id}.")
        if trigger_id.isdecimal() and int(trigger_id) < request.trigger_id:
            found.append((int(trigger_id), path))
    return sorted(found, reverse=True)


def optimizers_path(folder: Path, run_id: str, trigger_id: int) -> Path:
    """The optimizers' states after the training of `trigger_id`, for `keep_optimizer_state`; needed until its model is stored, with them."""
    return folder / "optimizers" / f"{run_id}.{trigger_id}.pt"


def feedback_path(folder: Path, request: TrainingRequest) -> Path:
    """What a training has scored, below the `folder` of the trainer server; needed until its model is stored."""
    return folder / "feedback" / f"{request.run_id}.{request.trigger_id}.scores"


def finished_path(folder: Path, request: TrainingRequest) -> Path:
    """The weights of a finished training, below the `folder` of the trainer server; needed until its model is stored."""
    return folder / "finished" / f"{request.run_id}.{request.trigger_id}.safetensors"


def record_path(weights: Path) -> Path:
    """Where the record of the weights of a finished training stands."""
    return weights.with_suffix(".json")


def partial_path(path: Path) -> Path:
    """Where a file of a finished training is written first. The same for each attempt, so that none is left behind by one that was killed."""
    return path.with_name(f".{path.name}.partial")


def keep_finished(
    weights: Path,
    save: Callable[[Path], None],
    result: Mapping[str, Any],
    identity: Mapping[str, Any],
    optimizers: Path | None = None,
    *,
    durable: bool = True,
) -> dict[str, Any]:
    """Write the weights by `save` and then the record; both are durable on return, unless `durable` is False.

    Args: weights: where they go. result: of the training. identity: of the training, equal for two attempts. optimizers: file of their states, which
    belongs to the weights. Returns: `result`.
    Raises: TrainingError: the disk cannot be written to.
    """
    partial = partial_path(weights)
    try:
        if durable or not weights.parent.is_dir():
            make_folder(weights.parent)
        save(partial)
        if durable:
            sync(partial)
        os.replace(partial, weights)
        beside = {} if optimizers is None else {"optimizers_crc32": crc32(optimizers.read_bytes())}
        _write_record(weights, {"weights_sha256": weights_sha256(weights), **beside, "result": result}, identity, durable=durable)
    except Exception as error:  # safetensors has errors of its own for a full disk
        with suppress(OSError):
            partial.unlink()
        reason = error.message if isinstance(error, ModynError) else getattr(error, "strerror", None) or str(error)
        raise TrainingError(
            f"the trained model cannot be written to {weights}: {reason}; free space there and resume the run: it goes on from its newest "
            "checkpoint, if checkpointing is activated"
        ) from error
    return dict(result)


def keep_without_model(weights: Path, result: Mapping[str, Any], identity: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write the record alone, of a training that made no model.

    Args: as for `keep_finished`.
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
    """The result of a training that an earlier attempt finished, if its record and its weights, if it made any, are whole; None if there is
    none.

    What cannot be used is logged; the training is then made again.

    Args: weights, identity: as for `keep_finished`. optimizers: where the states of its optimizers are, if it kept any.
    """
    path = record_path(weights)
    if not path.exists():
        return None
    try:
        record = from_json(path.read_bytes())
        checksum = record.pop("crc32", None)
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
    """Remove all files of a run: its checkpoints, unless the pipeline names another place, finished trainings and states of optimizers.

    Raises: UnavailableError: the disk does not say that they are gone.
    """
    # The name of another run may begin with the name of this one, and a number may follow there, too.
    own = re.compile(rf"\.?{re.escape(run_id)}\.\d+(\.(checkpoint|pt|json|safetensors|scores)(\.partial)?)?")
    for path in [*folder.glob(f"*/{escape(run_id)}.*"), *folder.glob(f"*/.{escape(run_id)}.*")]:
        if not own.fullmatch(path.name):
            continue
        if path.is_dir():
            rmtree(path, ignore_errors=True)
        else:
            remove(path)
    try:
        for place in folder.glob("*/"):  # Before the journal of the run goes: nothing would remove what a crash brings back.
            sync(place)
    except OSError as error:
        raise UnavailableError(
            f"cannot remove the files of run {run_id}: {error.strerror}; repair the disk and remove it again"
        ) from error


def clean_up(folder: Path, request: TrainingRequest, *, stored: bool) -> None:
    """Remove what an attempt that has ended, perhaps by kill -9, left behind.

    Args: stored: whether its model is; only then its checkpoint goes, and what earlier triggers left.
    """
    rmtree(scratch_dir(folder, request), ignore_errors=True)
    if stored:
        remove_outlived(folder, request)


def remove_outlived(folder: Path, request: TrainingRequest) -> None:
    """Remove what a training whose model is stored went on from, and optimizers' states and ends of earlier triggers of its run."""
    remove_own(folder, request)
    if irreducible_dir(folder, request).exists():
        for _, models in kept_irreducible(folder, request):
            rmtree(models, ignore_errors=True)
    _remove_earlier(folder, request, "optimizers/{}.*.pt", "finished/{}.*.json")


def remove_earlier_ends(folder: Path, request: TrainingRequest) -> None:
    """Remove the ends of earlier triggers of a run, which were seen: the run goes on behind them. For trainings that store no model for long."""
    _remove_earlier(folder, request, "finished/{}.*.json")


def _remove_earlier(folder: Path, request: TrainingRequest, *patterns: str) -> None:
    run_id = request.run_id
    for path in (path for pattern in patterns for path in folder.glob(pattern.format(escape(run_id)))):
        trigger_id = path.name.removeprefix(f"{run_id}.").removesuffix(path.suffix)
        # The name of another run may begin with the name of this one: then the rest is not a number.
        if trigger_id.isdecimal() and int(trigger_id) < request.trigger_id:
            remove(path)


def remove_own(folder: Path, request: TrainingRequest) -> None:
    """Remove what a next attempt at a training would go on from: its checkpoint, and weights and optimizers if it was finished."""
    weights, optimizers = finished_path(folder, request), optimizers_path(folder, request.run_id, request.trigger_id)
    record = record_path(weights)
    finished = (record, weights, optimizers, *map(partial_path, (record, weights, optimizers)))
    for path in (checkpoint_path(folder, request), feedback_path(folder, request), *finished):
        remove(path)
    rmtree(selections_dir(folder, request), ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a file, if it is there. One that cannot be removed takes space and fails no training.

    Not synced: one that a crash brings back takes space until the run is removed, and misleads no attempt. Of a stored model, no training is made
    again; weights without their record count for nothing; optimizers' states count only where the result does not say that they were lost; an old
    checkpoint of a training that diverged leads to the same end.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        get_logger("training").warning("file_not_removed", path=str(path), error=error.strerror)
