"""Samples in three append-only columnar files a run: keys and timestamps as int64, labels as int64 or float64, little-endian.

The catalogue's count says how much of them is valid. Appending writes behind it, waits for the disk, and only then raises the count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modyn.durable import sync
from modyn.errors import CorruptStateError, UnavailableError
from modyn.records import Int64Array, SampleBatch
from modyn.selector.backends.base import SampleLog
from modyn.selector.trigger_set import write_at

_ITEM = 8


class FileLog(SampleLog):
    """`keys`, `timestamps` and `labels` in the run's directory."""

    def write(self, position: int, batch: SampleBatch) -> None:
        labels = batch.labels.astype("<f8" if batch.labels.dtype.kind == "f" else "<i8", copy=False)
        columns: dict[str, npt.NDArray[Any]] = {
            "keys": batch.keys.astype("<i8", copy=False),
            "timestamps": batch.timestamps.astype("<i8", copy=False),
            "labels": labels,
        }
        try:
            if position == 0:
                self.directory.mkdir(parents=True, exist_ok=True)
            for name, column in columns.items():
                self._write_column(self.directory / name, position, column)
            if position == 0:
                sync(self.directory)
                sync(self.directory.parent)
        except OSError as error:
            raise UnavailableError(
                f"cannot write the samples of run '{self.run.run_id}' to {self.directory}: {error.strerror}; "
                "free or repair the disk and try again"
            ) from error

    def _write_column(self, path: Path, position: int, column: npt.NDArray[Any]) -> None:
        descriptor = os.open(path, os.O_WRONLY | (os.O_CREAT if position == 0 else 0), 0o600)
        try:
            # Writing behind the end of a file that lost its tail would fill the hole with zeros: valid keys.
            if os.fstat(descriptor).st_size < position * _ITEM:
                raise self._too_short(path)
            write_at(descriptor, np.ascontiguousarray(column), position * _ITEM)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, start: int, end: int) -> SampleBatch:
        labels = self._column("labels", "<f8" if self.run.float_labels else "<i8", start, end)
        return SampleBatch(self.read_keys(start, end), self._column("timestamps", "<i8", start, end), labels)

    def read_keys(self, start: int, end: int) -> Int64Array:
        return self._column("keys", "<i8", start, end)

    def _column(self, name: str, dtype: str, start: int, end: int) -> npt.NDArray[Any]:
        path = self.directory / name
        if end <= start:
            return np.empty(0, dtype)
        try:
            # A read and not a mapping: what was selected from must not count as memory of the service.
            column = np.fromfile(path, dtype, end - start, offset=start * _ITEM)
        except OSError as error:
            raise self._too_short(path) from error
        if len(column) != end - start:
            raise self._too_short(path)
        return column

    def repair(self) -> None:
        for name in ("keys", "timestamps", "labels"):
            path = self.directory / name
            if path.exists() and path.stat().st_size > self.run.num_samples * _ITEM:
                os.truncate(path, self.run.num_samples * _ITEM)

    def _too_short(self, path: Path) -> CorruptStateError:
        return CorruptStateError(
            f"{path} does not hold the {self.run.num_samples} samples that run '{self.run.run_id}' was informed of; "
            "restore it from a backup, or delete the run and start it anew"
        )
