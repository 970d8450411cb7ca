"""Columnar files that a training writes and its next attempt reads. A damaged file, or a file of another identity, is ignored. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modyn.atomic_write import make_folder
from modyn.columnar import Array, ColumnFile, FileKind, write_columns
from modyn.errors import CorruptStateError, ModynError, NotFoundError, TrainingError
from modyn.rpc.logs import get_logger


def write_whole(path: Path, kind: FileKind, columns: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
    """Write columns, complete and durable on return.

    Args: meta: includes the `identity` that `find_whole` compares. Raises: TrainingError: the disk cannot be written to.
    """
    try:
        make_folder(path.parent)
        write_columns(path, kind, columns, meta)
    except (OSError, ModynError) as error:
        reason = error.message if isinstance(error, ModynError) else error.strerror
        raise TrainingError(f"the {kind.noun} cannot be written to {path}: {reason}; free space there") from error


def find_whole(path: Path, kind: FileKind, identity: Any) -> ColumnFile | None:
    """Open the file of an earlier attempt. Return None if the file is missing, is damaged (which is logged), or has another identity."""
    try:
        file = ColumnFile.open(path, kind)
        file.verify()
    except NotFoundError:
        return None
    except CorruptStateError as error:
        get_logger("training").warning("file_ignored", reason=error.message)
        return None
    return file if file.meta["identity"] == identity else None
