"""The irreducible losses of a training as a file, mapped and searched by key: 12 bytes a sample, on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from modyn.atomic_write import make_folder
from modyn.columnar import ColumnFile, FileKind, write_columns
from modyn.errors import CorruptStateError, ModynError, NotFoundError, TrainingError
from modyn.records import Float32Array, Int64Array
from modyn.rpc.logs import get_logger

_KIND: Final = FileKind(b"MODYNIRR", 1, "file of irreducible losses", "delete it: they are computed again")


class IrreducibleLosses:
    """The irreducible loss of each sample that can be trained on."""

    def __init__(self, file: ColumnFile) -> None:
        self._path = file.path
        self._keys, self._losses = file.column("keys"), file.column("losses")

    def __call__(self, keys: Int64Array) -> Float32Array:
        """The losses of the samples with these keys, (n,): float32 (n,). Raises: TrainingError: one was not there when they were computed."""
        rows = np.searchsorted(self._keys, keys)
        missing = (
            np.flatnonzero(self._keys[np.minimum(rows, len(self._keys) - 1)] != keys) if len(self._keys) else np.arange(len(keys))
        )
        if missing.size:
            raise TrainingError(
                f"sample key {keys[missing[0]]} has no irreducible loss: it could not be read when they were computed; delete {self._path} and "
                "resume the run, or see data.on_bad_sample"
            )
        found: Float32Array = self._losses[rows]
        return found


def write_losses(path: Path, keys: Int64Array, losses: Float32Array, identity: Any) -> IrreducibleLosses:
    """Write the losses, (n,), of the samples with these keys, (n,): complete and durable on return.

    Args: identity: of the training. Raises: TrainingError: the disk cannot be written to.
    """
    order = np.argsort(keys, kind="stable")
    try:
        make_folder(path.parent)
        write_columns(path, _KIND, {"keys": keys[order], "losses": losses[order]}, {"identity": identity})
    except (OSError, ModynError) as error:
        reason = error.message if isinstance(error, ModynError) else error.strerror
        raise TrainingError(f"the irreducible losses cannot be written to {path}: {reason}; free space there") from error
    return IrreducibleLosses(ColumnFile.open(path, _KIND))


def find_losses(path: Path, identity: Any) -> IrreducibleLosses | None:
    """What an earlier attempt at this training has written; None: there is none that is whole. Args: identity: as written."""
    try:
        file = ColumnFile.open(path, _KIND)
        file.verify()
        return IrreducibleLosses(file) if file.meta["identity"] == identity else None
    except NotFoundError:
        return None
    except CorruptStateError as error:
        get_logger("training").warning("irreducible_losses_ignored", reason=error.message)
        return None
