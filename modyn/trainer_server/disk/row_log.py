"""Rows of scores on the trainer's disk: a log that grows during a pass or a training. A killed training resumes after the last committed row.

Layout, little-endian: a header of `columnar.LogHead`, then rows of one structured dtype. Imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from modyn.atomic_write import make_folder, sync
from modyn.columnar import FileKind, LogHead, LogState, write_at
from modyn.errors import CorruptStateError, TrainingError
from modyn.rpc.logs import get_logger

_KIND: Final = FileKind(b"MODYNSCO", 2, "file of scores", "delete it: the scores are made again")
_HEAD: Final = LogHead(_KIND, num_fields=5, slots=(4096, 8192))
"""Fields: identity, position, number of committed rows, bytes a row, CRC-32 of the committed rows."""
_READ_BYTES: Final = 1 << 20
_CHUNK_ROWS: Final = 65_536

Rows = npt.NDArray[Any]
"""Rows of a structured dtype, (n,)."""


class RowLog:
    """A log of rows with one writer. Appended rows are valid after `commit`. Methods that write raise TrainingError if the disk cannot be written
    to."""

    def __init__(self, path: Path, identity: int = 0) -> None:
        """Args: identity: 63 bits that identify the owner of the rows; `open` resumes only if the file has this identity."""
        self.path, self._identity = path, identity
        self._take(LogState(0, (identity, 0, 0, 0, 0)))

    @property
    def position(self) -> int:
        """The position in the pass that the last commit recorded."""
        return self._state.fields[1]

    def open(self) -> None:
        """Resume after the committed rows. Begin again if the file has no rows of this identity, or if its rows are damaged. Damage is logged."""
        try:
            state = self._head()
            if state is not None and state.fields[0] == self._identity:
                _, _, num_rows, self.row_bytes, checksum = state.fields
                self._verify(num_rows, checksum)
                self._take(state)
                return
        except CorruptStateError as error:
            get_logger("training").warning("scores_ignored", reason=error.message)
        self.begin()

    def begin(self) -> None:
        """Begin again without any row. The empty file is durable on return."""
        with self._writing():
            make_folder(self.path.parent)
            with open(self.path, "wb") as file:
                file.write(_HEAD.initial())
                file.flush()
                os.fsync(file.fileno())
            sync(self.path.parent)
        self._take(LogState(0, (self._identity, 0, 0, 0, 0)))

    def resume(self, num_rows: int, checksum: int, row_bytes: int) -> None:
        """Continue after the first `num_rows` rows, which a checkpoint has recorded. Later rows are overwritten.

        Raises: CorruptStateError: the rows are missing.
        """
        if (state := self._head()) is None:
            raise _KIND.corrupt(self.path, "it is missing or empty")
        self.row_bytes = row_bytes
        self._verify(num_rows, checksum)
        self._state, self.num_rows, self.crc32 = state, num_rows, checksum

    def append(self, rows: Rows) -> None:
        """Append rows. The rows are valid after the next `commit`."""
        content = np.ascontiguousarray(rows).view(np.uint8).data
        self.row_bytes = rows.dtype.itemsize
        with self._writing(), open(self.path, "rb+", buffering=0) as file:
            write_at(file.fileno(), content, _HEAD.size + self.num_rows * self.row_bytes)
        self.num_rows, self.crc32 = self.num_rows + len(rows), crc32(content, self.crc32)

    def commit(self, position: int = 0) -> None:
        """Make all appended rows valid, and durable on return. Args: position: position in the pass, see the property `position`."""
        fields = self._identity, position, self.num_rows, self.row_bytes, self.crc32
        with self._writing(), open(self.path, "rb+", buffering=0) as file:
            os.fdatasync(file.fileno())  # The rows must be on the disk before the header includes them.
            self._state = _HEAD.commit(file.fileno(), self._state, *fields)

    def read(self, dtype: npt.DTypeLike) -> Rows:
        """Map all rows from the file, with this dtype."""
        if not self.num_rows:
            return np.zeros(0, dtype)
        rows: Rows = np.memmap(self.path, dtype, "r", _HEAD.size, (self.num_rows,))
        return rows

    def chunks(self, dtype: np.dtype[Any]) -> Iterator[Rows]:
        """Yield all rows, with this dtype, in chunks. The file is not mapped, because a large mapped file would count as memory of the process."""
        for first in range(0, self.num_rows, _CHUNK_ROWS):
            yield np.fromfile(
                self.path, dtype, min(_CHUNK_ROWS, self.num_rows - first), offset=_HEAD.size + first * dtype.itemsize
            )

    def _head(self) -> LogState | None:
        """Read the header. Return None if the file is missing or empty. Raises: CorruptStateError."""
        try:
            with open(self.path, "rb", buffering=0) as file:
                content = file.read(_HEAD.size)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CorruptStateError(f"the scores in {self.path} cannot be read: {error.strerror}") from error
        return _HEAD.parse(self.path, content) if content else None

    def _verify(self, num_rows: int, checksum: int) -> None:
        """Check that the first `num_rows` rows have this CRC-32. Raises: CorruptStateError."""
        found, rest = 0, num_rows * self.row_bytes
        try:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(_HEAD.size)
                while rest and (data := file.read(min(rest, _READ_BYTES))):
                    found, rest = crc32(data, found), rest - len(data)
        except OSError as error:
            raise CorruptStateError(f"the scores in {self.path} cannot be read: {error.strerror}") from error
        if rest or found != checksum:
            raise _KIND.corrupt(self.path, f"not all of its {num_rows} rows are there, or they have changed")

    def _take(self, state: LogState) -> None:
        self._state = state
        self.num_rows, self.row_bytes, self.crc32 = state.fields[2:]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingError(
                f"cannot write the scores {self.path}: {error.strerror or error}; free space there and resume the run"
            ) from error
