"""The stream of a run in one append-only file, which is its own catalogue: informing asks no database.

Layout, little-endian: a page that starts with `_MAGIC` and the version; two slots, each in a page of its own, which a disk that stops in
the middle does not damage together; then blocks of BLOCK rows, each three columns one behind the other: keys and timestamps as int64, labels
as int64 or float64. The newer valid slot says how many rows exist. Appending writes rows behind them, waits for the disk, and only then
writes the other slot: whatever is torn, the older one still stands.
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
"""Number of the write, rows, `_LABELS`, and the CRC-32 of these."""
_LABELS = (None, False, True)
"""Whether labels are float64; unknown before the first."""
_KEYS, _TIMESTAMPS, _LABEL = range(3)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the two slots and the rows begin."""

    slots: tuple[int, int]
    rows: int

    def offset(self, column: int, row: int) -> int:
        block, within = divmod(row, BLOCK)
        return self.rows + 8 * ((3 * block + column) * BLOCK + within)

    def end(self, num_rows: int) -> int:
        """The size of a file with so many rows, at least."""
        return self.offset(_LABEL, num_rows - 1) + 8 if num_rows else self.rows


_LAYOUTS = {1: _Layout((512, 1024), 4096), _VERSION: _Layout((4096, 8192), 12288)}
"""By version. Logs of version 1 stay what they are."""


@dataclass(frozen=True, slots=True)
class Held:
    """How many samples a log holds, and of which type their labels are: unknown before the first."""

    num_samples: int = 0
    float_labels: bool | None = None


@dataclass(frozen=True, slots=True)
class _State:
    """What the beginning of the file says. number: of the last write."""

    layout: _Layout
    number: int
    held: Held


class SampleLog:
    """The file `samples` in the run's directory. Appending needs the lock that `locked` takes; reading needs none.

    A sample exists once `held` counts it, and never before: a crash at any moment leaves either all samples of an `append` or none.
    """

    def __init__(self, run_id: RunId, directory: Path) -> None:
        self.run_id = run_id
        self.path = directory / "samples"

    def exists(self) -> bool:
        return self.path.exists()

    def create(self) -> None:
        """An empty log. Called once, when the run is registered."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if os.fstat(descriptor).st_size == 0:
                    beginning = _MAGIC + bytes([_VERSION])
                    os.pwrite(descriptor, beginning.ljust(_LAYOUTS[_VERSION].rows, b"\0"), 0)
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync(self.path.parent)
            sync(self.path.parent.parent)
        except OSError as error:
            raise self._unavailable(error) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else appends inside the block, in whatever process. Raises CorruptStateError if there is no log."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise CorruptStateError(f"{self.path} with the samples of run '{self.run_id}' is missing; {_WAY_OUT}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def append(self, position: int, batch: SampleBatch) -> int:
        """Appends those samples that are not held yet; how many these are.

        Raises ConflictError when there would be a gap, or when samples sent again are not those that are held; InvalidArgumentError when
        the labels have another type than those before.
        """
        held = self.held()
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

    def held(self) -> Held:
        """What the log holds now."""
        with self._open(os.O_RDONLY) as descriptor:
            return self._state(descriptor).held

    def _write(self, position: int, batch: SampleBatch) -> None:
        float_labels = batch.labels.dtype.kind == "f"
        columns: list[npt.NDArray[np.generic]] = [
            np.ascontiguousarray(batch.keys, "<i8"),
            np.ascontiguousarray(batch.timestamps, "<i8"),
            np.ascontiguousarray(batch.labels, "<f8" if float_labels else "<i8"),
        ]
        with self._open(os.O_RDWR) as descriptor:
            before = self._state(descriptor)
            layout, number = before.layout, before.number + 1
            assert before.held.num_samples == position, "samples are written at the end"
            # Writing behind the end of a file that lost its tail would fill the hole with zeros: valid keys.
            if os.fstat(descriptor).st_size < layout.end(position):
                raise self._too_short(before.held)
            for first, last in _by_block(position, position + len(batch)):
                for column, values in enumerate(columns):
                    write_at(descriptor, values[first - position : last - position], layout.offset(column, first))
            os.fdatasync(descriptor)
            fields = (number, position + len(batch), _LABELS.index(float_labels))
            crc = zlib.crc32(_SLOT.pack(*fields, 0)[:-4])
            slot = layout.slots[number % 2]
            try:
                os.pwrite(descriptor, _SLOT.pack(*fields, crc), slot)
                os.fdatasync(descriptor)
            except OSError:
                # Otherwise whoever repeats the call is told that these samples are held, and nobody has synced their count.
                os.pwrite(descriptor, bytes(_SLOT.size), slot)
                raise

    def read(self, start: int, end: int) -> SampleBatch:
        """Samples [start, end), which must exist. Raises CorruptStateError if they are not all there."""
        with self._open(os.O_RDONLY) as descriptor:
            state = self._state(descriptor)
            labels: LabelArray = self._column(descriptor, state, _LABEL, start, end)
            if state.held.float_labels:
                labels = labels.view(np.float64)
            keys, timestamps = (self._column(descriptor, state, column, start, end) for column in (_KEYS, _TIMESTAMPS))
            return SampleBatch(keys, timestamps, labels)

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Their keys alone."""
        with self._open(os.O_RDONLY) as descriptor:
            return self._column(descriptor, self._state(descriptor), _KEYS, start, end)

    def repair(self) -> None:
        """Removes what a crash has left behind the last sample, and syncs what it may have cut off from being synced."""
        if self.exists():
            with self._open(os.O_RDWR) as descriptor:
                # Up to the end of the last block: within it, rows that do not exist are overwritten one day.
                state = self._state(descriptor)
                end = state.layout.end(-(-state.held.num_samples // BLOCK) * BLOCK)
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

    def _state(self, descriptor: int) -> _State:
        beginning = os.pread(descriptor, max(layout.rows for layout in _LAYOUTS.values()), 0)
        version = beginning[len(_MAGIC)] if beginning.startswith(_MAGIC) and len(beginning) > len(_MAGIC) else 0
        layout = _LAYOUTS.get(version)
        if layout is None or len(beginning) < layout.rows:
            raise CorruptStateError(f"{self.path} is no log of samples of this release; {_WAY_OUT}")
        found = _State(layout, 0, Held())
        torn = False
        for offset in layout.slots:
            number, num_samples, labels, crc = _SLOT.unpack_from(beginning, offset)
            if zlib.crc32(beginning[offset : offset + _SLOT.size - 4]) != crc or labels >= len(_LABELS):
                torn = torn or any(beginning[offset : offset + _SLOT.size])
            elif number > found.number:
                found = _State(layout, number, Held(num_samples, _LABELS[labels]))
        # One slot may be torn by a crash while it was written: then the other stands. Where there is no other, what is torn was the count of
        # the only write, and its samples are not to be overwritten.
        if torn and not found.number:
            raise CorruptStateError(f"{self.path} does not say any more how many samples it holds; {_WAY_OUT}")
        return found

    def _column(self, descriptor: int, state: _State, column: int, start: int, end: int) -> Int64Array:
        """Rows [start, end) of one column. A read and not a mapping: what was selected from must not count as memory of the service."""
        values = np.empty(max(end - start, 0), "<i8")
        for first, last in _by_block(start, end):
            target = values[first - start : last - start].data.cast("B")
            done = 0
            while done < len(target):
                got = os.preadv(descriptor, [target[done:]], state.layout.offset(column, first) + done)
                if not got:
                    raise self._too_short(state.held)
                done += got
        return values

    def _too_short(self, held: Held) -> CorruptStateError:
        return CorruptStateError(
            f"{self.path} does not hold the {held.num_samples} samples that run '{self.run_id}' was informed of; {_WAY_OUT}"
        )

    def _unavailable(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"cannot use the samples of run '{self.run_id}' in {self.path}: {error.strerror}; free or repair the disk and try again"
        )


_WAY_OUT = "restore it from a backup, or delete the run and start it anew"


def _by_block(start: int, end: int) -> Iterator[tuple[int, int]]:
    """The rows [start, end) in parts that lie in one block each.

    >>> list(_by_block(65_530, 131_080))
    [(65530, 65536), (65536, 131072), (131072, 131080)]
    """
    while start < end:
        stop = min(end, (start // BLOCK + 1) * BLOCK)
        yield start, stop
        start = stop
