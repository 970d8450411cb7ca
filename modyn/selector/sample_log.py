"""The stream of a run in one append-only file, which counts its own samples: informing needs no database.

Layout, little-endian: a page that starts with `_MAGIC` and the version; two slots, each in a page of its own, so that a disk that stops
during a write damages at most one; then blocks of BLOCK rows, each three columns one behind the other: keys and timestamps as int64,
labels as int64 or float64. The newer valid slot says how many rows exist. An append writes rows behind them, syncs, and only then writes
the other slot: whatever is torn, the older slot still holds.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modyn.atomic_write import sync
from modyn.errors import ConflictError, CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.records import Int64Array, LabelArray, RunId, SampleBatch
from modyn.selector.stream_checks import unseen
from modyn.selector.trigger_set import write_at

BLOCK = 65_536
"""Rows whose columns lie together: 1.5 MiB."""

_MAGIC = b"MODYNLOG"
_VERSION = 2
_SLOT = struct.Struct("<QQQI")
"""Number of the write, rows, index into `_LABELS`, and the CRC-32 of these."""
_SLOT_OFFSETS = (4096, 8192)
_ROWS_OFFSET = 12288
_LABELS = (None, False, True)
"""Whether labels are float64; None before the first sample."""
_KEYS, _TIMESTAMPS, _LABEL = range(3)
_ADVICE = "restore it from a backup, or delete the run and start it anew"


@dataclass(frozen=True, slots=True)
class LogState:
    """The newest valid slot of a log. float_labels: None before the first sample. write_number: 0 before the first write."""

    num_samples: int = 0
    float_labels: bool | None = None
    write_number: int = 0


class SampleLog:
    """The file `samples` in the run's directory. Appending needs the lock that `locked` takes; reading needs none.

    A sample exists once `state` counts it, and not before: a crash at any moment leaves all samples of an `append` or none.
    Every method raises UnavailableError when the disk refuses, and CorruptStateError when the file is damaged or missing samples.
    """

    def __init__(self, run_id: RunId, directory: Path) -> None:
        self.run_id = run_id
        self.path = directory / "samples"

    def exists(self) -> bool:
        return self.path.exists()

    def create(self) -> None:
        """Create an empty log, durably. Called once, when the run is registered."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if os.fstat(descriptor).st_size == 0:
                    beginning = _MAGIC + bytes([_VERSION])
                    os.pwrite(descriptor, beginning.ljust(_ROWS_OFFSET, b"\0"), 0)
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync(self.path.parent)
            sync(self.path.parent.parent)
        except OSError as error:
            raise self._unavailable(error) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude appends by other threads and processes while the block runs. Raises CorruptStateError if there is no log."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise CorruptStateError(f"{self.path} with the samples of run '{self.run_id}' is missing; {_ADVICE}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def append(self, position: int, batch: SampleBatch) -> int:
        """Append the samples of `batch`, sent for `position`, that the log does not hold yet; return their number.

        Raises: ConflictError: there would be a gap, or repeated samples differ from those held.
            InvalidArgumentError: the labels have another type than those before.
        """
        held = self.state()
        new = unseen(self.run_id, held.num_samples, position, batch)
        self._check_repeated(position, batch.slice(0, len(batch) - len(new)))
        if not len(new):
            return 0
        new_are_float = new.labels.dtype.kind == "f"
        if held.float_labels is not None and held.float_labels != new_are_float:
            names = {True: "float64", False: "int64"}
            raise InvalidArgumentError(
                f"run '{self.run_id}' has {names[held.float_labels]} labels, but samples from position {held.num_samples} on bring "
                f"{names[new_are_float]} labels; a dataset has labels of one type"
            )
        self._write(held.num_samples, new)
        return len(new)

    def _check_repeated(self, position: int, batch: SampleBatch) -> None:
        if len(batch) and not np.array_equal(self.read_keys(position, position + len(batch)), batch.keys):
            raise ConflictError(
                f"run '{self.run_id}' holds other samples at positions {position} to {position + len(batch)} than were sent again; "
                "a stream must be repeated as it was"
            )

    def state(self) -> LogState:
        """Return how many samples the log holds, and the type of their labels."""
        with self._open(os.O_RDONLY) as descriptor:
            return self._read_state(descriptor)

    def _write(self, position: int, batch: SampleBatch) -> None:
        float_labels = batch.labels.dtype.kind == "f"
        columns: list[npt.NDArray[np.generic]] = [
            np.ascontiguousarray(batch.keys, "<i8"),
            np.ascontiguousarray(batch.timestamps, "<i8"),
            np.ascontiguousarray(batch.labels, "<f8" if float_labels else "<i8"),
        ]
        with self._open(os.O_RDWR) as descriptor:
            before = self._read_state(descriptor)
            number = before.write_number + 1
            assert before.num_samples == position, "samples are written at the end"
            # Writing behind the end of a file that lost its tail would fill the hole with zeros, which are valid keys.
            if os.fstat(descriptor).st_size < _end_offset(position):
                raise self._too_short(before)
            for first, last in _by_block(position, position + len(batch)):
                for column, values in enumerate(columns):
                    write_at(descriptor, values[first - position : last - position], _offset(column, first))
            os.fdatasync(descriptor)
            fields = (number, position + len(batch), _LABELS.index(float_labels))
            crc = zlib.crc32(_SLOT.pack(*fields, 0)[:-4])
            slot = _SLOT_OFFSETS[number % 2]
            try:
                os.pwrite(descriptor, _SLOT.pack(*fields, crc), slot)
                os.fdatasync(descriptor)
            except OSError:
                # Or a repeated call would find these samples held although their count was never synced.
                os.pwrite(descriptor, bytes(_SLOT.size), slot)
                raise

    def read(self, start: int, end: int) -> SampleBatch:
        """Return samples [start, end), which must exist."""
        with self._open(os.O_RDONLY) as descriptor:
            state = self._read_state(descriptor)
            labels: LabelArray = self._column(descriptor, state, _LABEL, start, end)
            if state.float_labels:
                labels = labels.view(np.float64)
            keys, timestamps = (self._column(descriptor, state, column, start, end) for column in (_KEYS, _TIMESTAMPS))
            return SampleBatch(keys, timestamps, labels)

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Return the keys of samples [start, end), which must exist."""
        with self._open(os.O_RDONLY) as descriptor:
            return self._column(descriptor, self._read_state(descriptor), _KEYS, start, end)

    def repair(self) -> None:
        """Cut off what a crash has left behind the last sample, and sync what it may have left unsynced."""
        if self.exists():
            with self._open(os.O_RDWR) as descriptor:
                # Up to the end of the last block: rows within it that do not exist are overwritten by later appends.
                end = _end_offset(-(-self._read_state(descriptor).num_samples // BLOCK) * BLOCK)
                if os.fstat(descriptor).st_size > end:
                    os.ftruncate(descriptor, end)
                os.fsync(descriptor)

    @contextmanager
    def _open(self, flags: int) -> Iterator[int]:
        try:
            descriptor = os.open(self.path, flags)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._unavailable(error) from error

    def _read_state(self, descriptor: int) -> LogState:
        beginning = os.pread(descriptor, _ROWS_OFFSET, 0)
        if len(beginning) < _ROWS_OFFSET or not beginning.startswith(_MAGIC + bytes([_VERSION])):
            raise CorruptStateError(f"{self.path} is no log of samples of this release; {_ADVICE}")
        found, torn = LogState(), False
        for offset in _SLOT_OFFSETS:
            number, num_samples, labels, crc = _SLOT.unpack_from(beginning, offset)
            if zlib.crc32(beginning[offset : offset + _SLOT.size - 4]) != crc or labels >= len(_LABELS):
                torn = torn or any(beginning[offset : offset + _SLOT.size])
            elif number > found.write_number:
                found = LogState(num_samples, _LABELS[labels], number)
        # A crash may tear the slot that it writes; the other slot then holds. Without another one, the torn slot was the count of the
        # only write, and its samples must not be overwritten.
        if torn and not found.write_number:
            raise CorruptStateError(f"{self.path} does not say any more how many samples it holds; {_ADVICE}")
        return found

    def _column(self, descriptor: int, state: LogState, column: int, start: int, end: int) -> Int64Array:
        """Rows [start, end) of one column. Read, not mapped: samples that were selected from must not count as memory of the service."""
        values = np.empty(max(end - start, 0), "<i8")
        for first, last in _by_block(start, end):
            target = values[first - start : last - start].data.cast("B")
            done = 0
            while done < len(target):
                got = os.preadv(descriptor, [target[done:]], _offset(column, first) + done)
                if not got:
                    raise self._too_short(state)
                done += got
        return values

    def _too_short(self, state: LogState) -> CorruptStateError:
        return CorruptStateError(
            f"{self.path} does not hold the {state.num_samples} samples that run '{self.run_id}' was informed of; {_ADVICE}"
        )

    def _unavailable(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"cannot use the samples of run '{self.run_id}' in {self.path}: {error.strerror}; free or repair the disk and try again"
        )


def _offset(column: int, row: int) -> int:
    block, within = divmod(row, BLOCK)
    return _ROWS_OFFSET + 8 * ((3 * block + column) * BLOCK + within)


def _end_offset(num_rows: int) -> int:
    """The least size of a file with `num_rows` rows."""
    return _offset(_LABEL, num_rows - 1) + 8 if num_rows else _ROWS_OFFSET


def _by_block(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Split rows [start, end) into ranges that lie in one block each.

    >>> list(_by_block(65_530, 131_080))
    [(65530, 65536), (65536, 131072), (131072, 131080)]
    """
    while start < end:
        stop = min(end, (start // BLOCK + 1) * BLOCK)
        yield start, stop
        start = stop
