"""A training that has ended and whose end was perhaps not seen: weights and result on disk, so that the next attempt only puts them.

Two files, both durable: the weights, then a record of whose they are. Without the record, weights count for nothing; a record without weights
is of a training that made no model. Imports no torch; what writes the weights does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from modyn.atomic_write import make_folder, replacing, sync
from modyn.errors import ModynError, TrainingError
from modyn.json_codec import from_json, to_json
from modyn.models.weights import weights_sha256
from modyn.rpc.logs import get_logger

VERSION: Final = 1


def record_path(weights: Path) -> Path:
    """Where the record of the weights stands."""
    return weights.with_suffix(".json")


def partial_path(path: Path) -> Path:
    """Where a file of a finished training is written first. The same for each attempt, so that none is left behind by one that was killed."""
    return path.with_name(f".{path.name}.partial")


def keep_finished(
    weights: Path, save: Callable[[Path], None], result: Mapping[str, Any], identity: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the weights by `save` and then the record; both are durable on return.

    Args: weights: where they go. result: of the training. identity: of the training, equal for two attempts. Returns: `result`.
    Raises: TrainingError: the disk cannot be written to.
    """
    partial = partial_path(weights)
    try:
        make_folder(weights.parent)
        save(partial)
        sync(partial)
        os.replace(partial, weights)
        _write_record(weights, result, identity, weights_sha256(weights))
    except Exception as error:  # safetensors has errors of its own for a full disk
        with suppress(OSError):
            partial.unlink()
        reason = error.message if isinstance(error, ModynError) else getattr(error, "strerror", None) or str(error)
        raise TrainingError(
            f"the trained model cannot be written to {weights}: {reason}; free space there and resume the run: it goes on from its newest "
            "checkpoint, if checkpointing is activated"
        ) from error
    return dict(result)


def keep_without_model(weights: Path, result: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Write the record alone, of a training that made no model.

    Args: as for `keep_finished`.
    Raises: TrainingError: the disk cannot be written to.
    """
    try:
        make_folder(weights.parent)
        _write_record(weights, result, identity, None)
    except OSError as error:
        raise TrainingError(
            f"the end of the training cannot be written to {record_path(weights)}: {error.strerror}; free space there and resume the run"
        ) from error


def find_finished(weights: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The result of a training that an earlier attempt finished, if its record and its weights, if it made any, are whole; None if there is
    none.

    What cannot be used is logged; the training is then made again.

    Args: weights, identity: as for `keep_finished`.
    """
    path = record_path(weights)
    if not path.exists():
        return None
    try:
        record = from_json(path.read_bytes())
        if record["version"] != VERSION or record["identity"] != dict(identity):
            reason = "it is of another version or of another training"
        elif record["weights_sha256"] is not None and record["weights_sha256"] != weights_sha256(weights):
            reason = f"{weights} does not match its checksum"
        else:
            result: dict[str, Any] = record["result"]
            return result
    except (OSError, ValueError, KeyError, TypeError, ModynError) as error:
        reason = error.message if isinstance(error, ModynError) else f"{type(error).__name__}: {error}"
    get_logger("training").warning("finished_training_ignored", path=str(path), reason=reason)
    return None


def _write_record(weights: Path, result: Mapping[str, Any], identity: Mapping[str, Any], digest: str | None) -> None:
    record, path = {"version": VERSION, "identity": identity, "weights_sha256": digest, "result": result}, record_path(weights)
    with replacing(path, partial_path(path)) as file:
        file.write(to_json(record).encode())
