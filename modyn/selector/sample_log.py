"""The stream of a run in one append-only file, which counts its own samples: informing needs no database.

Layout, little-endian: a head of `columnar.LogHead`, whose two slots count the rows, and behind it blocks of BLOCK rows, each three columns
one behind the other: keys and timestamps as int64, labels as int64 or float64. An append writes rows behind those that count, syncs them,
and only then commits the new count.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modyn.atomic_write import sync
from modyn.columnar import FileKind, LogHead, LogState, write_at
from modyn.errors import ConflictError, CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.records import Int64Array, LabelArray, RunId, SampleBatch

BLOCK = 65_536
"""Rows whose columns lie together: 1.5 MiB."""

_ADVICE = "restore it from a backup, or delete the run and start it anew"
_KIND = FileKind(b"MODYNLOG", 3, "log of samples", _ADVICE)
_HEAD = LogHead(_KIND, num_fields=2, slots=(4096, 8192))
"""Fields: number of samples; 1 if labels are float64, else 0."""
_KEYS, _TIMESTAMPS, _LABEL = range(3)


@dataclass(frozen=True, slots=True)
class HeldSamples:
    """How many samples a log holds. float_labels: whether labels are float64; None before the first sample."""

    num_samples: int
    float_labels: bool | None


def unseen(run_id: RunId, held: int, position: int, batch: SampleBatch) -> SampleBatch:
    """Return the part of `batch`, sent for `position`, behind the `held` samples. Raises ConflictError if it leaves a gap.

    >>> import numpy as np
    >>> batch = SampleBatch(np.arange(5), np.arange(5), np.arange(5))
    >>> [unseen(RunId("r"), held, 10, batch).keys.tolist() for held in (10, 12, 15, 99)]
    [[0, 1, 2, 3, 4], [2, 3, 4], [], []]
    """
    if position < 0:
        raise InvalidArgumentError(f"position {position} of run '{run_id}' is negative; the first sample has position 0")
    if position > held:
        raise ConflictError(
            f"run '{run_id}' holds {held} samples, so samples for position {position} would leave a gap; send those from {held} on first"
        )
    return batch.slice(min(held - position, len(batch)), len(batch))


class SampleLog:
    """The file `samples` in the run's directory.

    A sample exists once `state` counts it, and not before: a crash at any moment leaves all samples of an `append` or none.
    Every method raises UnavailableError when the disk refuses, and CorruptStateError when the file is damaged or missing samples.
    """

    def __init__(self, run_id: RunId, directory: Path) -> None:
        self.run_id = run_id
        self.path = directory / "samples"

    def exists(self) -> bool:
        """Whether the file exists, that is, whether `create` was called for the run."""
        return self.path.exists()

    def create(self) -> None:
        """Create an empty log, durably; called once, when the run is registered. Raises: UnavailableError: the disk cannot be written to."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._open(os.O_RDWR | os.O_CREAT) as descriptor:
                if os.fstat(descriptor).st_size == 0:
                    os.pwrite(descriptor, _HEAD.initial(), 0)
                    os.fsync(descriptor)
            sync(self.path.parent)
            sync(self.path.parent.parent)
        except OSError as error:
            raise self._unavailable(error) from error

    def append(self, position: int, batch: SampleBatch) -> tuple[int, int]:
        """Append the samples of `batch`, sent for `position`, that the log does not hold yet.

        Returns: how many samples the log holds now, and how many of them are new.
        Raises: ConflictError: there would be a gap, or repeated samples differ from those held.
            InvalidArgumentError: the labels have another type than those before.
        """
        with self._open(os.O_RDWR) as descriptor:
            # Excludes appends by other threads and processes, until the file is closed.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            head = self._read_head(descriptor)
            held = _held(head)
            new = unseen(self.run_id, held.num_samples, position, batch)
            known = batch.keys[: len(batch) - len(new)]
            if not np.array_equal(self._column(descriptor, held, _KEYS, position, position + len(known)), known):
                raise ConflictError(
                    f"run '{self.run_id}' holds other samples at positions {position} to {position + len(known)} than were sent again; "
                    "a stream must be repeated as it was"
                )
            if len(new):
                self._write(descriptor, head, new)
            return held.num_samples + len(new), len(new)

    def state(self) -> HeldSamples:
        """Return how many samples the log holds, and the type of their labels."""
        with self._open(os.O_RDONLY) as descriptor:
            return _held(self._read_head(descriptor))

    def _write(self, descriptor: int, before: LogState, batch: SampleBatch) -> None:
        held, are_float = _held(before), batch.labels.dtype.kind == "f"
        position = held.num_samples
        if held.float_labels not in (None, are_float):
            names = {True: "float64", False: "int64"}
            raise InvalidArgumentError(
                f"run '{self.run_id}' has {names[not are_float]} labels, but samples from position {position} on bring "
                f"{names[are_float]} labels; a dataset has labels of one type"
            )
        # Writing behind the end of a file that lost its tail would fill the hole with zeros, which are valid keys.
        if os.fstat(descriptor).st_size < _end_offset(position):
            raise self._too_short(position)
        columns: list[npt.NDArray[np.generic]] = [
            np.ascontiguousarray(batch.keys, "<i8"),
            np.ascontiguousarray(batch.timestamps, "<i8"),
            np.ascontiguousarray(batch.labels, "<f8" if are_float else "<i8"),
        ]
        for first, last in _by_block(position, position + len(batch)):
            for column, values in enumerate(columns):
                part = values[first - position : last - position]
                write_at(descriptor, part.data.cast("B"), _offset(column, first))
        os.fdatasync(descriptor)
        _HEAD.commit(descriptor, before, position + len(batch), int(are_float))

    def read(self, start: int, end: int) -> SampleBatch:
        """Return samples [start, end), which must exist."""
        with self._open(os.O_RDONLY) as descriptor:
            held = _held(self._read_head(descriptor))
            labels: LabelArray = self._column(descriptor, held, _LABEL, start, end)
            if held.float_labels:
                labels = labels.view(np.float64)
            keys, timestamps = (self._column(descriptor, held, column, start, end) for column in (_KEYS, _TIMESTAMPS))
            return SampleBatch(keys, timestamps, labels)

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Return the keys of samples [start, end), which must exist: int64 (end - start,)."""
        with self._open(os.O_RDONLY) as descriptor:
            return self._column(descriptor, _held(self._read_head(descriptor)), _KEYS, start, end)

    def repair(self) -> None:
        """Cut off what a crash has left behind the last sample, and sync what it may have left unsynced."""
        if self.exists():
            with self._open(os.O_RDWR) as descriptor:
                # Up to the end of the last block: rows within it that do not exist are overwritten by later appends.
                end = _end_offset(-(-self._read_head(descriptor).fields[0] // BLOCK) * BLOCK)
                if os.fstat(descriptor).st_size > end:
                    os.ftruncate(descriptor, end)
                os.fsync(descriptor)

    @contextmanager
    def _open(self, flags: int) -> Iterator[int]:
        try:
            descriptor = os.open(self.path, flags, 0o600)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
        except FileNotFoundError as error:
            raise CorruptStateError(f"{self.path} with the samples of run '{self.run_id}' is missing; {_ADVICE}") from error
        except OSError as error:
            raise self._unavailable(error) from error

    def _read_head(self, descriptor: int) -> LogState:
        return _HEAD.parse(self.path, os.pread(descriptor, _HEAD.size, 0))

    def _column(self, descriptor: int, held: HeldSamples, column: int, start: int, end: int) -> Int64Array:
        """Rows [start, end) of one column. Read, not mapped: samples that were selected from must not count as memory of the service."""
        values = np.empty(max(end - start, 0), "<i8")
        for first, last in _by_block(start, end):
            target = values[first - start : last - start].data.cast("B")
            done = 0
            while done < len(target):
                got = os.preadv(descriptor, [target[done:]], _offset(column, first) + done)
                if not got:
                    raise self._too_short(held.num_samples)
                done += got
        return values

    def _too_short(self, num_samples: int) -> CorruptStateError:
        return CorruptStateError(
            f"{self.path} does not hold the {num_samples} samples that run '{self.run_id}' was informed of; {_ADVICE}"
        )

    def _unavailable(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"cannot use the samples of run '{self.run_id}' in {self.path}: {error.strerror}; free or repair the disk and try again"
        )


def _held(state: LogState) -> HeldSamples:
    return HeldSamples(state.fields[0], bool(state.fields[1]) if state.number else None)


def _offset(column: int, row: int) -> int:
    block, within = divmod(row, BLOCK)
    return _HEAD.size + 8 * ((3 * block + column) * BLOCK + within)


def _end_offset(num_rows: int) -> int:
    """The least size of a file with `num_rows` rows."""
    return _offset(_LABEL, num_rows - 1) + 8 if num_rows else _HEAD.size


def _by_block(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Split rows [start, end) into ranges that lie in one block each.

    >>> list(_by_block(65_530, 131_080))
    [(65530, 65536), (65536, 131072), (131072, 131080)]
    """
    while start < end:
        stop = min(end, (start // BLOCK + 1) * BLOCK)
        yield start, stop
        start = stop
