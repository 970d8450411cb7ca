"""What a worker gets and returns, and the outputs of models, kept in files, so that a later evaluation passes only those samples through a
model that no earlier one has. Imports no torch.

A file has the columns keys (sorted), timestamps, labels and outputs. The names of files of one model and one version of the data begin alike.
The least recently used files are removed first when the limit is reached.
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
"""Rows that wait in memory until they are written."""
MAX_SEGMENTS: Final = 256
"""Files of one model and decoding that are used, the newest ones: each takes a file descriptor."""

KIND: Final = FileKind(b"MODYNOUT", 2, "file of kept outputs", "delete it")
_PLAIN: Final = "biuf"
"""Kinds of numbers that are kept: whole, real and boolean."""


def write_rows(path: Path, rows: Rows) -> None:
    """Write `rows`, ordered by key, as the columnar file `path`. Raises UnavailableError if that fails."""
    write_columns(path, KIND, rows.take(np.argsort(rows.keys, kind="stable"))._asdict())


def read_rows(path: Path) -> Rows:
    """Map the file `path` into memory, read only, and verify its checksums.

    Raises: CorruptStateError: it is damaged. NotFoundError, UnavailableError: it cannot be read.
    """
    file = ColumnFile.open(path, KIND)
    file.verify()
    return Rows(*(file.column(name) for name in Rows._fields))


@dataclass(frozen=True, slots=True)
class OutputCache:
    """The folder of kept outputs, for all processes of the service. limit: bytes in all; 0: nothing is kept."""

    folder: Path
    limit: int

    def prepare(self) -> None:
        """Make the folder, and remove what is over the limit. For the service, when it starts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._evict(self.limit)

    def publish(self, written: Iterable[Path], name: str) -> None:
        """Move complete files in, under names that begin with `name`; the least recently used others are removed to make space.

        Args: written: on the same file system as the folder.
        """
        files = list(written)
        with self._locked():
            self._evict(self.limit - sum(path.stat().st_size for path in files))
            for number, path in enumerate(files):
                os.replace(path, self.folder / f"{name}-{time.time_ns():020d}-{token_hex(4)}-{number:04d}{SUFFIX}")

    def remove_models(self, model_ids: Iterable[int]) -> None:
        """Remove all outputs of these models. Not synced: what a crash brings back, no model asks for, and it is evicted in time."""
        with self._locked():
            for model_id in model_ids:
                for path in self.folder.glob(f"{model_id}-*{SUFFIX}"):
                    path.unlink()

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        with self._locked():
            path.unlink(missing_ok=True)

    def _evict(self, limit: int) -> None:
        files = [(path, path.stat()) for path in self.folder.glob(f"*{SUFFIX}")]
        total = sum(stat.st_size for _, stat in files)
        for path, stat in sorted(files, key=lambda file: (file[1].st_mtime_ns, file[0].name)):
            if total <= max(0, limit):
                return
            path.unlink()
            total -= stat.st_size

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time adds and removes files, so that the limit holds; readers need no lock, since a mapped file stays readable."""
        with (self.folder / "lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class KeptOutputs:
    """The kept outputs of one model for samples decoded in one way, as one job uses them: those there were, and its own for later jobs.

    What was there stays the same as long as this lives, whatever other jobs add or remove. What the job adds is written to `scratch` (an
    existing folder on the same file system) and found by later jobs once it is published; more than the limit is not kept.
    No failure to read or write here is an error of the evaluation. `add` and `publish` are for one thread, the others for any.
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
                with suppress(OSError):
                    self._cache.remove(path)
            except (NotFoundError, UnavailableError, OSError) as error:
                # Removed since it was listed, or unreadable: as if it were absent.
                self._logger.info("outputs_not_read", path=str(path), error=str(error))

    def __bool__(self) -> bool:
        """Return whether any output was there."""
        return bool(self._segments)

    def has(self, keys: Int64Array, timestamps: Int64Array) -> NDArray[np.bool_]:
        """For each sample, whether its output was there: bool (n,) for int64 (n,) `keys` and `timestamps`, which both must be equal."""
        found = np.zeros(len(keys), np.bool_)
        for segment in self._segments:
            found |= _where(segment, keys, timestamps)[1]
        return found

    def rows(self, keys: Int64Array, timestamps: Int64Array, at_most: int) -> Iterator[Rows]:
        """Yield the rows of the samples that were there, each once, by segment and not as asked, at most `at_most` at a time.

        Args: keys, timestamps: int64 (n,), of the samples.
        """
        left = np.ones(len(keys), np.bool_)
        for segment in self._segments:
            positions, here = _where(segment, keys, timestamps)
            wanted = positions[here & left]
            left &= ~here
            for start in range(0, len(wanted), at_most):
                yield segment.take(wanted[start : start + at_most])

    def add(self, rows: Rows | None) -> None:
        """Add rows of samples that were not there. None: they cannot be kept, and then nothing of this job is."""
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
        """Make what was added available to later jobs."""
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
    """For each sample a position in the segment, and whether it is the sample's."""
    positions = np.minimum(np.searchsorted(segment.keys, keys), len(segment.keys) - 1).astype(np.int64)
    return positions, (segment.keys[positions] == keys) & (segment.timestamps[positions] == timestamps)


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """What a worker gets. request: names run, model, dataset and device; what it says of samples is replaced by `source`."""

    request: EvaluationRequest | MeasureRequest
    source: SampleSource
    """Its intervals are distinct."""
    config: SystemConfig
    scratch: Path
    """An empty folder of this job only; removed when the job has ended."""
    outputs: OutputCache
    data: DataVersion
    """What is evaluated on; another registration of the dataset is refused."""
    kind: OutputKind = OutputKind.SCORES

    def kept_outputs(self, weights_sha256: str) -> KeptOutputs | None:
        """The kept outputs of the model. Their name contains the weights, since another database repeats ids, and the version of the data.
        None: outputs are not kept; nor are those of positions, since each check of a trigger policy passes other samples, in ever more files."""
        # Scores are computed from what the model returns, whatever its last layer is; outcomes from logits.
        kept = OutputKind.LOGITS if self.kind is OutputKind.OUTCOMES else self.kind
        digest = hashlib.sha256(f"{weights_sha256} {self.data.digest} {kept}".encode()).hexdigest()
        name = f"{self.request.model_id}-{digest[:32]}"
        kept_at_all = self.outputs.limit and not isinstance(self.source, AtPositions)
        return KeptOutputs(self.outputs, name, self.scratch) if kept_at_all else None


@dataclass(frozen=True, slots=True)
class DriftJob:
    """What a worker gets to measure drift."""

    request: DriftRequest
    config: SystemConfig
    scratch: Path
    """An empty folder of this job only; removed when the job has ended."""
    data: DataVersion
    """What is compared; another registration of the dataset is refused."""
