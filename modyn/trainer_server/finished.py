"""A training that is finished and perhaps not yet in model storage: weights and result on disk, so that the next attempt only puts them.

Two files, both durable: the weights, then a record of whose they are. Without the record, weights count for nothing. Imports no torch; who
writes the weights does.
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
    partial, record_at = partial_path(weights), record_path(weights)
    try:
        make_folder(weights.parent)
        save(partial)
        sync(partial)
        os.replace(partial, weights)
        record = {"version": VERSION, "identity": identity, "weights_sha256": weights_sha256(weights), "result": result}
        with replacing(record_at, partial_path(record_at)) as file:
            file.write(to_json(record).encode())
    except Exception as error:  # safetensors has errors of its own for a full disk
        with suppress(OSError):
            partial.unlink()
        reason = error.message if isinstance(error, ModynError) else getattr(error, "strerror", None) or str(error)
        raise TrainingError(
            f"the trained model cannot be written to {weights}: {reason}; free space there and resume the run: it goes on from its newest "
            "checkpoint, if checkpointing is activated"
        ) from error
    return dict(result)


def find_finished(weights: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The result of a training that an earlier attempt finished, if its record and its weights are whole; None if there is none.

    What cannot be used is logged; the training is then made again.
    """
    path = record_path(weights)
    if not path.exists():
        return None
    try:
        record = from_json(path.read_bytes())
        if record["version"] != VERSION or record["identity"] != dict(identity):
            reason = "it is of another version or of another training"
        elif record["weights_sha256"] != weights_sha256(weights):
            reason = f"{weights} does not match its checksum"
        else:
            result: dict[str, Any] = record["result"]
            return result
    except (OSError, ValueError, KeyError, TypeError, ModynError) as error:
        reason = error.message if isinstance(error, ModynError) else f"{type(error).__name__}: {error}"
    get_logger("training").warning("finished_training_ignored", path=str(path), reason=reason)
    return None
