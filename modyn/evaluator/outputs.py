"""Jobs of workers, and kept outputs of models: files of outputs that later evaluations read instead of computing the outputs again. The module does
not import torch.

A file has the columns keys (sorted), timestamps, labels and outputs. Files of the same model and version of the data have the same prefix. When the
limit is reached, the least recently used files are removed first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modyn.columnar import ColumnFile, FileKind, write_columns
from modyn.config.system import SystemConfig
from modyn.errors import CorruptStateError, NotFoundError, UnavailableError
from modyn.evaluator.client import EvaluationRequest
from modyn.evaluator.records import AtPositions, DriftRequest, MeasureRequest, OutputKind, Rows, SampleSource
from modyn.evaluator.versions import DataVersion
from modyn.records import Int64Array
from modyn.rpc.logs import get_logger

SUFFIX: Final = ".outputs"
SEGMENT_BYTES: Final = 64 * 2**20
"""Number of bytes of rows that are collected in memory before they are written."""
MAX_SEGMENTS: Final = 256
"""Largest number of files used for one model and decoding. The newest files are used; each file needs a file descriptor."""

KIND: Final = FileKind(b"MODYNOUT", 2, "file of kept outputs", "delete it")
_PLAIN: Final = "biuf"
"""Kinds of NumPy dtypes that are kept: boolean, integer and floating-point."""


def write_rows(path: Path, rows: Rows) -> None:
    """Write `rows`, ordered by key, as the columnar file `path`. Raises UnavailableError if the file cannot be written."""
    write_columns(path, KIND, rows.take(np.argsort(rows.keys, kind="stable"))._asdict())


def read_rows(path: Path) -> Rows:
    """Map the file `path` into memory, read only, and verify its checksums.

    Raises: CorruptStateError: the file is damaged. NotFoundError, UnavailableError: the file cannot be read.
    """
    file = ColumnFile.open(path, KIND)
    file.verify()
    return Rows(*(file.column(name) for name in Rows._fields))


@dataclass(frozen=True, slots=True)
class OutputCache:
    """The folder of kept outputs, shared by all processes of the service. limit: largest total number of bytes; with 0, no outputs are kept."""

    folder: Path
    limit: int

    def prepare(self) -> None:
        """Create the folder, and remove files over the limit. The service calls this method at its start."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock():
            self._evict(self.limit)

    def publish(self, written: Iterable[Path], name: str) -> None:
        """Move complete files into the folder, with names that begin with `name`. If space is needed, the least recently used other files are
        removed.

        Args: written: files on the same file system as the folder.
        """
        files = list(written)
        with self._lock():
            self._evict(self.limit - sum(path.stat().st_size for path in files))
            for number, path in enumerate(files):
                os.replace(path, self.folder / f"{name}-{time.time_ns():020d}-{token_hex(4)}-{number:04d}{SUFFIX}")

    def remove_models(self, model_ids: Iterable[int]) -> None:
        """Remove all outputs of these models. The removal is not synced to disk. If a crash restores the files, no evaluation reads them, and they
        are evicted later.
        """
        with self._lock():
            for model_id in model_ids:
                for path in self.folder.glob(f"{model_id}-*{SUFFIX}"):
                    path.unlink()

    def remove(self, path: Path) -> None:
        """Remove a file if the file exists."""
        with self._lock():
            path.unlink(missing_ok=True)

    def _evict(self, limit: int) -> None:
        files = [(path, path.stat()) for path in self.folder.glob(f"*{SUFFIX}")]
        total = sum(stat.st_size for _, stat in files)
        # Each use of a file sets its modification time. Files with equal times are ordered by name.
        for path, stat in sorted(files, key=lambda file: (file[1].st_mtime_ns, file[0].name)):
            if total <= max(0, limit):
                return
            path.unlink()
            total -= stat.st_size

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Allow one process at a time to add and remove files, so that the limit holds. Readers need no lock: a mapped file stays readable."""
        with (self.folder / "lock").open("wb") as file:
            # Closing the file releases the lock, also if the process is killed.
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class KeptOutputs:
    """The kept outputs of one model for one decoding of samples. A job reads the outputs of earlier jobs, and adds its own outputs for later jobs.

    The earlier outputs stay the same while this object exists, even if other jobs add or remove files. New outputs are written to `scratch` (an
    existing folder on the same file system), and later jobs find these files after `publish`. Outputs over the limit are not kept. A failure to
    read or write does not fail the evaluation. One thread must call `add` and `publish`; any thread may call the other methods.
    """

    def __init__(self, cache: OutputCache, name: str, scratch: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._cache = cache
        self._name = name
        self._scratch = scratch
        self._segment_bytes = segment_bytes
        self._logger = get_logger("outputs")
        self._held: list[Rows] = []
        self._written: list[Path] = []
        self._num_bytes = 0
        self._kept = True
        self._segments = list(self._read())

    def _read(self) -> Iterator[Rows]:
        for path in sorted(self._cache.folder.glob(f"{self._name}-*{SUFFIX}"))[-MAX_SEGMENTS:]:
            try:
                rows = read_rows(path)
                os.utime(path)
                yield rows
            except CorruptStateError as error:
                self._logger.warning("outputs_made_anew", error=error.message)
                # The outputs are computed again in any case. A file that cannot be removed is reported again at the next use.
                with suppress(OSError):
                    self._cache.remove(path)
            except (NotFoundError, UnavailableError, OSError) as error:
                # The file was removed after the listing, or cannot be read. Its outputs are computed again.
                self._logger.info("outputs_not_read", path=str(path), error=str(error))

    def __bool__(self) -> bool:
        """Return whether there were earlier outputs."""
        return bool(self._segments)

    def has(self, keys: Int64Array, timestamps: Int64Array) -> NDArray[np.bool_]:
        """Return for each sample whether the output of the sample was kept: bool (n,) for int64 (n,) `keys` and `timestamps`. Key and timestamp
        must both match.
        """
        found = np.zeros(len(keys), np.bool_)
        for segment in self._segments:
            found |= _where(segment, keys, timestamps)[1]
        return found

    def rows(self, keys: Int64Array, timestamps: Int64Array, at_most: int) -> Iterator[Rows]:
        """Yield the rows of the samples with kept outputs, each row once, in chunks of at most `at_most` rows, in the order of the files.

        Args: keys, timestamps: int64 (n,).
        """
        left = np.ones(len(keys), np.bool_)
        for segment in self._segments:
            positions, here = _where(segment, keys, timestamps)
            wanted = positions[here & left]
            left &= ~here
            for start in range(0, len(wanted), at_most):
                yield segment.take(wanted[start : start + at_most])

    def add(self, rows: Rows | None) -> None:
        """Add rows of samples without kept outputs. None means that the rows cannot be kept; then no output of this job is kept."""
        if not self._kept or (rows is not None and not len(rows.keys)):
            return
        if rows is None or not self._fits(rows):
            self._give_up()
            return
        self._held.append(rows)
        self._num_bytes += rows.num_bytes
        if sum(held.num_bytes for held in self._held) >= self._segment_bytes:
            self._write()

    def publish(self) -> None:
        """Make the added outputs available to later jobs."""
        self._write()
        size = sum(path.stat().st_size for path in self._written)
        if not self._written or size > self._cache.limit:
            return
        try:
            self._cache.publish(self._written, self._name)
        except OSError as error:
            self._logger.warning("outputs_not_kept", error=str(error))
        self._written = []

    def _fits(self, rows: Rows) -> bool:
        # All rows of a file must have the same dtypes and shapes. Outputs that differ are not kept.
        first = self._held[0] if self._held else rows
        same = all(a.dtype == b.dtype and a.shape[1:] == b.shape[1:] for a, b in zip(first, rows, strict=True))
        plain = all(column.dtype.kind in _PLAIN and column.size for column in rows)
        return same and plain and self._num_bytes + rows.num_bytes <= self._cache.limit

    def _write(self) -> None:
        if not self._held:
            return
        path = self._scratch / f"outputs-{len(self._written)}"
        try:
            write_rows(path, Rows(*(np.concatenate(parts) for parts in zip(*self._held, strict=True))))
        except UnavailableError as error:
            self._logger.warning("outputs_not_kept", error=error.message)
            self._give_up()
        else:
            self._written.append(path)
            self._held = []

    def _give_up(self) -> None:
        for path in self._written:
            path.unlink(missing_ok=True)
        self._kept, self._held, self._written = False, [], []


def _where(segment: Rows, keys: Int64Array, timestamps: Int64Array) -> tuple[Int64Array, NDArray[np.bool_]]:
    """Return for each sample a position in the file, and whether the row at this position belongs to the sample."""
    positions = np.minimum(np.searchsorted(segment.keys, keys), len(segment.keys) - 1).astype(np.int64)
    return positions, (segment.keys[positions] == keys) & (segment.timestamps[positions] == timestamps)


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """The job of a worker. request: run, model, dataset and device; `source` replaces the samples of the request."""

    request: EvaluationRequest | MeasureRequest
    source: SampleSource
    """The samples to evaluate on. The intervals are distinct."""
    config: SystemConfig
    scratch: Path
    """An empty folder for this job only; removed when the job has ended."""
    outputs: OutputCache
    data: DataVersion
    """The version of the dataset to evaluate on; another registration is refused."""
    kind: OutputKind = OutputKind.SCORES

    def kept_outputs(self, weights_sha256: str) -> KeptOutputs | None:
        """Open the kept outputs of the model; None if outputs are not kept. The name contains the version of the data and a hash of the weights,
        because another database may reuse ids. Outputs at positions are not kept, because each check of a trigger policy reads other samples.
        """
        # Outcomes are computed from logits. Scores use the model's output, which may differ from the logits.
        kept = OutputKind.LOGITS if self.kind is OutputKind.OUTCOMES else self.kind
        digest = hashlib.sha256(f"{weights_sha256} {self.data.digest} {kept}".encode()).hexdigest()
        name = f"{self.request.model_id}-{digest[:32]}"
        kept_at_all = self.outputs.limit and not isinstance(self.source, AtPositions)
        return KeptOutputs(self.outputs, name, self.scratch) if kept_at_all else None


@dataclass(frozen=True, slots=True)
class DriftJob:
    """The job of a worker that measures drift."""

    request: DriftRequest
    config: SystemConfig
    scratch: Path
    """An empty folder for this job only; removed when the job has ended."""
    data: DataVersion
    """The version of the dataset to compare; another registration is refused."""
