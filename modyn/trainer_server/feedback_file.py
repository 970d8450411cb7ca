"""What a training has scored, row after row in a file of the trainer, until it goes to the selector. Imports no torch."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from modyn.atomic_write import make_folder
from modyn.errors import CorruptStateError, TrainingError
from modyn.records import FeedbackRows, Float32Array, Int64Array

_CHUNK_ROWS: Final = 65_536


class FeedbackFile:
    """Rows of one training: key, epoch and scores. How many count, and their checksum, is kept where the training keeps its state: with that,
    rows that are behind them, as after a crash, are cut off, and damage is found.

    Every method that writes raises TrainingError when the disk refuses.
    """

    def __init__(self, path: Path, widths: Mapping[str, int]) -> None:
        """Args: widths: numbers of each score, by name, in the order in which they stand in a row."""
        self.path, self._widths = path, dict(widths)
        self._dtype = np.dtype([("key", "<i8"), ("epoch", "<i4"), ("scores", "<f4", (sum(widths.values()),))])
        self.num_rows, self.crc32 = 0, 0

    def begin(self) -> None:
        """Begin anew, with no row."""
        try:
            make_folder(self.path.parent)
            self.path.write_bytes(b"")
        except OSError as error:
            raise self._unwritten(error) from error
        self.num_rows, self.crc32 = 0, 0

    def resume(self, num_rows: int, crc32: int) -> None:
        """Go on behind the first `num_rows` rows. Args: crc32: of them. Raises: CorruptStateError: they are not there any more."""
        self.verify(num_rows, crc32)
        try:
            os.truncate(self.path, num_rows * self._dtype.itemsize)
        except OSError as error:
            raise self._unwritten(error) from error
        self.num_rows, self.crc32 = num_rows, crc32

    def append(self, keys: Int64Array, epochs: Int64Array, scores: Float32Array) -> None:
        """Append n rows. Args: keys, epochs: (n,). scores: (n, sum of the widths)."""
        rows = np.empty(len(keys), self._dtype)
        rows["key"], rows["epoch"], rows["scores"] = keys, epochs, scores
        content = rows.tobytes()
        try:
            with open(self.path, "ab") as file:
                file.write(content)
        except OSError as error:
            raise self._unwritten(error) from error
        self.num_rows, self.crc32 = self.num_rows + len(rows), zlib.crc32(content, self.crc32)

    def sync(self) -> None:
        """Make all rows durable."""
        try:
            with open(self.path, "rb") as file:
                os.fdatasync(file.fileno())
        except OSError as error:
            raise self._unwritten(error) from error

    def verify(self, num_rows: int, crc32: int) -> None:
        """Check that the first `num_rows` rows are those with this checksum. Raises: CorruptStateError."""
        found, count = 0, 0
        for rows in self._read(num_rows):
            found, count = zlib.crc32(rows.tobytes(), found), count + len(rows)
        if (count, found) != (num_rows, crc32):
            raise CorruptStateError(
                f"the scores in {self.path} are damaged: {count} of {num_rows} rows are there, or have changed"
            )

    def rows(self, num_rows: int) -> Iterator[FeedbackRows]:
        """Yield the first `num_rows` rows in chunks."""
        bounds = np.cumsum([0, *self._widths.values()]).tolist()
        for rows in self._read(num_rows):
            parts = zip(self._widths, bounds, bounds[1:], strict=False)
            scores = {name: rows["scores"][:, first:stop] for name, first, stop in parts}
            yield FeedbackRows(rows["key"].astype(np.int64), rows["epoch"].astype(np.int32), scores)

    def _read(self, num_rows: int) -> Iterator[np.ndarray[Any, np.dtype[Any]]]:
        try:
            with open(self.path, "rb") as file:
                while num_rows and (content := file.read(min(num_rows, _CHUNK_ROWS) * self._dtype.itemsize)):
                    whole = len(content) // self._dtype.itemsize
                    yield np.frombuffer(content[: whole * self._dtype.itemsize], self._dtype)
                    num_rows -= min(num_rows, _CHUNK_ROWS)
        except OSError as error:
            raise CorruptStateError(f"the scores of a training in {self.path} cannot be read: {error.strerror}") from error

    def _unwritten(self, error: OSError) -> TrainingError:
        return TrainingError(
            f"the scores of samples cannot be written to {self.path}: {error.strerror}; free space there and resume the run"
        )
