"""The scores of a pass over all candidates: a file that grows while the pass goes on, so that a killed pass goes on behind what is in it.

Layout, little-endian: a head of `columnar.LogHead`, then one column behind the other, each with room for all candidates: keys (int64), labels
(int64), weights, counts and scores (float32; of these f a candidate). Checksums of the columns stand in the head.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from zlib import crc32

import numpy as np

from modyn.atomic_write import make_folder, sync
from modyn.columnar import FileKind, LogHead, LogState, write_at
from modyn.errors import CorruptStateError, TrainingError
from modyn.records import Float32Array, Int64Array
from modyn.rpc.logs import get_logger
from modyn.trainer_server.downsampling.policy import Candidates

_KIND: Final = FileKind(b"MODYNSCO", 1, "file of scores", "delete it: the pass is made again")
_DTYPES: Final = ("<i8", "<i8", "<f4", "<f4", "<f4")
_HEAD: Final = LogHead(_KIND, num_fields=5 + len(_DTYPES), slots=(4096, 8192))
"""Fields: identity, room for how many candidates, batches that the pass has behind it, rows, scores a row; the CRC-32 of each column."""
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRows:
    """Scored candidates: keys and labels int64 (n,); weights, of the trigger set, and counts, of the criterion, float32 (n,); scores float32
    (n, f)."""

    keys: Int64Array
    labels: Int64Array
    weights: Float32Array
    counts: Float32Array
    scores: Float32Array

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def candidates(self) -> Candidates:
        """Those that a policy chooses among."""
        usable = self.counts > 0
        return Candidates(self.scores, self.labels, self.keys, None if usable.all() else usable)

    @property
    def _columns(self) -> tuple[Any, ...]:
        return self.keys, self.labels, self.weights, self.counts, self.scores


class ScoreFile:
    """An open file of scores. Use as a context manager, which closes it."""

    def __init__(self, path: Path, room: int, identity: int) -> None:
        """Go on from the file at `path`, or begin it anew if there is none of this pass.

        Args: room: candidates that the pass may meet. identity: of the pass, 63 bits: the model, the order and the policy.
        Raises: TrainingError: the disk cannot be written to.
        """
        self._path = path
        self._room = room
        self._identity = identity
        self._state = LogState(0, (identity, room, *[0] * (len(_DTYPES) + 3)))
        self._held: list[ScoredRows] = []
        with self._writing():
            make_folder(path.parent)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._find()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was not committed is lost."""
        os.close(self._descriptor)

    @property
    def num_batches(self) -> int:
        """Batches that the pass has behind it."""
        return self._state.fields[2]

    @property
    def num_rows(self) -> int:
        """Candidates that are scored."""
        return self._state.fields[3]

    def append(self, rows: ScoredRows) -> None:
        """Append what a batch gave; it counts with the next `commit`."""
        self._held.append(rows)

    def commit(self, num_batches: int) -> None:
        """Make what was appended count, durably, as what the first batches gave. Raises: TrainingError: the disk cannot be written to."""
        rows, width, checksums = self.num_rows, self._state.fields[4], list(self._state.fields[5:])
        with self._writing():
            for one in self._held:
                width = one.scores.shape[1]
                for column, values in enumerate(one._columns):
                    stored = np.ascontiguousarray(values, _DTYPES[column]).reshape(-1).view(np.uint8).data
                    checksums[column] = crc32(stored, checksums[column])
                    write_at(self._descriptor, stored, self._offset(column, rows, width))
                rows += len(one)
            self._held.clear()
            os.fdatasync(self._descriptor)
            self._state = _HEAD.commit(
                self._descriptor, self._state, self._identity, self._room, num_batches, rows, width, *checksums
            )

    def read(self) -> ScoredRows:
        """All rows that count, mapped from the file."""
        rows, width = self.num_rows, self._state.fields[4]
        shapes = [(rows,)] * (len(_DTYPES) - 1) + [(rows, width)]
        columns = [
            np.memmap(self._path, dtype, "r", self._offset(column, 0, width), shape)
            if rows and all(shape)
            else np.zeros(shape, dtype)
            for column, (dtype, shape) in enumerate(zip(_DTYPES, shapes, strict=True))
        ]
        return ScoredRows(*columns)

    def _find(self) -> None:
        """Take the state of the file if it is of this pass and whole; otherwise begin it anew."""
        try:
            if os.fstat(self._descriptor).st_size:
                state = _HEAD.parse(self._path, os.pread(self._descriptor, _HEAD.size, 0))
                if state.fields[:2] == (self._identity, self._room):
                    self._verify(state)
                    self._state = state
                    return
        except CorruptStateError as error:
            get_logger("training").warning("scores_ignored", reason=error.message)
        with self._writing():
            os.ftruncate(self._descriptor, 0)
            write_at(self._descriptor, _HEAD.initial(), 0)
            os.fsync(self._descriptor)
            sync(self._path.parent)

    def _verify(self, state: LogState) -> None:
        """Compare what counts with its checksums. Raises: CorruptStateError."""
        rows, width = state.fields[3:5]
        for column, expected in enumerate(state.fields[5:]):
            at, end, found = self._offset(column, 0, width), self._offset(column, rows, width), 0
            while at < end and (data := os.pread(self._descriptor, min(end - at, _READ_BYTES), at)):
                at, found = at + len(data), crc32(data, found)
            if at < end or found != expected:
                raise _KIND.corrupt(self._path, "its content does not match its checksum")

    def _offset(self, column: int, row: int, width: int) -> int:
        """Where a row of a column begins. Args: width: scores a row, in the last column."""
        sizes = [np.dtype(dtype).itemsize for dtype in _DTYPES]
        before = sum(sizes[:column]) * self._room
        return _HEAD.size + before + row * sizes[column] * (width if column == len(sizes) - 1 else 1)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingError(
                f"cannot write the scores {self._path}: {error.strerror or error}; free space there, or choose sample_then_batch: false"
            ) from error


def joined_rows(rows: Sequence[ScoredRows]) -> ScoredRows:
    """One record of all rows, in order."""
    return ScoredRows(*(np.concatenate(columns) for columns in zip(*(one._columns for one in rows), strict=True)))
