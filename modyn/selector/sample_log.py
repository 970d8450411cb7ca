"""The stream of a run in one append-only file, which counts its own samples: informing needs no database.

Layout, little-endian: a head of `columnar.LogHead`, whose two slots count the rows, and behind it blocks of BLOCK rows. A block is a page with
an entry for each of its groups of GROUP rows (checksums of the columns, range of the timestamps), and three columns one behind the other:
keys and timestamps as int64, labels as int64 or float64. An append writes rows behind those that count and the entries of the groups that it
fills, syncs them, and only then commits the new count, with the entry of the group that is not full. All that is read is verified.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from modyn.atomic_write import sync
from modyn.columnar import FileKind, LogHead, LogState, write_at
from modyn.errors import ConflictError, CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.records import Int64Array, Interval, LabelArray, RunId, SampleBatch
from modyn.selector.window import StreamReader

BLOCK = 65_536
"""Rows whose columns lie together: 1.5 MiB."""
GROUP = 4_096
"""Rows with checksums of their own: reads are made, and verified, by whole groups."""

_ADVICE = "restore it from a backup, or delete the run and start it anew"
_KIND = FileKind(b"MODYNLOG", 4, "log of samples", _ADVICE)
_HEAD = LogHead(_KIND, num_fields=7, slots=(4096, 8192))
"""Fields: number of samples; 1 if labels are float64, else 0; the entry of the group that is not full."""
_ENTRIES_BYTES = 4096
"""What the entries of a block take, a page."""
_BLOCK_BYTES = _ENTRIES_BYTES + 3 * 8 * BLOCK
_ENTRY = struct.Struct("<qqIII")
_CHECKSUM = struct.Struct("<I")
_ENTRY_BYTES = _ENTRY.size + _CHECKSUM.size
_KEYS, _TIMESTAMPS, _LABEL = range(3)

_COLUMN_NAMES = ("keys", "timestamps", "labels")

Columns = Sequence[npt.NDArray[np.generic]]


class GroupEntry(NamedTuple):
    """The range of the timestamps of a group's rows, and the CRC-32 of each of its columns."""

    min_time: int = 2**63 - 1
    max_time: int = -(2**63)
    keys: int = 0
    timestamps: int = 0
    labels: int = 0

    def plus(self, columns: Columns) -> GroupEntry:
        """The entry once these rows follow, which are not none."""
        times = columns[_TIMESTAMPS]
        checksums = (zlib.crc32(values.data.cast("B"), before) for values, before in zip(columns, self[2:], strict=True))
        return GroupEntry(min(self.min_time, int(times.min())), max(self.max_time, int(times.max())), *checksums)

    def packed(self) -> bytes:
        """The entry as it stands in the file, with a checksum of its own."""
        content = _ENTRY.pack(*self)
        return content + _CHECKSUM.pack(zlib.crc32(content))

    @classmethod
    def unpacked(cls, content: bytes | bytearray) -> Self | None:
        """The entry that was packed; None if the content is damaged."""
        checksum = _CHECKSUM.unpack_from(content, _ENTRY.size)[0]
        return cls(*_ENTRY.unpack_from(content)) if zlib.crc32(content[: _ENTRY.size]) == checksum else None


@dataclass(frozen=True, slots=True)
class HeldSamples:
    """How many samples a log holds. float_labels: whether labels are float64; None before the first sample.

    tail: the entry of the last group, as far as it is filled; empty if the last group is full.
    """

    num_samples: int
    float_labels: bool | None
    tail: GroupEntry


def unseen(run_id: RunId, held: int, position: int, batch: SampleBatch) -> SampleBatch:
    """Return the part of `batch`, sent for `position`, behind the `held` samples.

    Raises: ConflictError: it leaves a gap. InvalidArgumentError: `position` is negative.

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


def check_range(run_id: RunId, held: int, position: int, limit: int) -> None:
    """Check that at most `limit` samples from `position` on can be read.

    Args: held: number of samples of the run that the selector holds.
    Raises: InvalidArgumentError: `position` or `limit` is out of range. ConflictError: the selector holds fewer samples than `position`.
    """
    if position < 0 or limit < 1:
        raise InvalidArgumentError(f"{limit} samples of run '{run_id}' from position {position} on: ask for 1 or more, from 0 on")
    if position > held:
        raise ConflictError(
            f"run '{run_id}' holds {held} samples, so none from position {position} on: the selector's files are older than its callers' "
            "state; restore them from the same backup, or submit the pipeline again"
        )


def refuse_others(run_id: RunId, position: int, held: Int64Array, sent: Int64Array) -> None:
    """Raise ConflictError unless the keys that were sent again for `position` are those held there.

    Args: held, sent: keys from `position` on, int64 (n,) and (m,).
    """
    if not np.array_equal(held, sent):
        raise ConflictError(
            f"run '{run_id}' holds other samples at positions {position} to {position + len(sent)} than were sent again; "
            "a stream must be repeated as it was"
        )


def refuse_other_labels(run_id: RunId, position: int, float_labels: bool | None, sent_floats: bool) -> None:
    """Raise InvalidArgumentError if labels of samples from `position` on have another type than those held.

    Args: float_labels: whether those held are float64, otherwise int64; None: none are held. sent_floats: whether those sent are float64.
    """
    if float_labels not in (None, sent_floats):
        names = {True: "float64", False: "int64"}
        raise InvalidArgumentError(
            f"run '{run_id}' has {names[not sent_floats]} labels, but samples from position {position} on bring "
            f"{names[sent_floats]} labels; a dataset has labels of one type"
        )


class SampleLog(StreamReader):
    """The file `samples` in the run's directory, or one of another name.

    A sample exists once `state` counts it, and not before: a crash at any moment leaves all samples of an `append` or none.
    Every method raises UnavailableError when the disk refuses, and CorruptStateError when the file is damaged or missing samples.
    """

    def __init__(self, run_id: RunId, directory: Path, name: str = "samples") -> None:
        self.run_id = run_id
        self.path = directory / name

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
            refuse_others(self.run_id, position, self._column(descriptor, held, _KEYS, position, position + len(known)), known)
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
        refuse_other_labels(self.run_id, position, held.float_labels, are_float)
        # Writing behind the end of a file that lost its tail would fill the hole with zeros, which are valid keys.
        if os.fstat(descriptor).st_size < _end_offset(position):
            raise self._too_short(position)
        columns: list[npt.NDArray[np.generic]] = [
            np.ascontiguousarray(batch.keys, "<i8"),
            np.ascontiguousarray(batch.timestamps, "<i8"),
            np.ascontiguousarray(batch.labels, "<f8" if are_float else "<i8"),
        ]
        tail = held.tail
        for first, last in _cut(position, position + len(batch), BLOCK):
            for column, values in enumerate(columns):
                written = values[first - position : last - position]
                write_at(descriptor, written.data.cast("B"), _offset(column, first))
            full = []
            for start, stop in _cut(first, last, GROUP):
                tail = tail.plus([values[start - position : stop - position] for values in columns])
                if stop % GROUP == 0:
                    full.append(tail.packed())
                    tail = GroupEntry()
            write_at(descriptor, b"".join(full), _entry_offset(first))
        os.fdatasync(descriptor)
        _HEAD.commit(descriptor, before, position + len(batch), int(are_float), *tail)

    def read(self, start: int, end: int) -> SampleBatch:
        """Return samples [start, end), which must exist."""
        with self._open(os.O_RDONLY) as descriptor:
            held = _held(self._read_head(descriptor))
            keys, timestamps = (self._column(descriptor, held, column, start, end) for column in (_KEYS, _TIMESTAMPS))
            return SampleBatch(keys, timestamps, self._labels(descriptor, held, start, end))

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Return the keys of samples [start, end), which must exist: int64 (end - start,)."""
        with self._open(os.O_RDONLY) as descriptor:
            return self._column(descriptor, _held(self._read_head(descriptor)), _KEYS, start, end)

    def read_labels(self, start: int, end: int) -> LabelArray:
        """Return the labels of samples [start, end), which must exist: int64 or float64 (end - start,)."""
        with self._open(os.O_RDONLY) as descriptor:
            return self._labels(descriptor, _held(self._read_head(descriptor)), start, end)

    def ranges_in(self, interval: Interval) -> Iterator[tuple[int, int]]:
        """Yield the positions [start, end) of the samples with timestamps in the interval, in order, neighbours as one range.

        Reads the entries of all groups, and timestamps only of groups that are neither inside nor outside. For windows of time of policies to
        come, which take them from here as ranges of positions.
        """
        begin = end = 0
        with self._open(os.O_RDONLY) as descriptor:
            held = _held(self._read_head(descriptor))
            for first, last in _cut(0, held.num_samples, BLOCK):
                for (start, stop), entry in zip(
                    _cut(first, last, GROUP), self._entries(descriptor, held, first, last), strict=True
                ):
                    for found in self._ranges_in_group(descriptor, held, interval, start, stop, entry):
                        if found[0] != end and begin != end:
                            yield begin, end
                        begin, end = (begin if found[0] == end else found[0]), found[1]
        if begin != end:
            yield begin, end

    def _ranges_in_group(
        self, descriptor: int, held: HeldSamples, interval: Interval, start: int, stop: int, entry: GroupEntry
    ) -> list[tuple[int, int]]:
        if entry.max_time < interval.start or entry.min_time >= interval.end:
            return []
        if entry.min_time >= interval.start and entry.max_time < interval.end:
            return [(start, stop)]
        times = self._column(descriptor, held, _TIMESTAMPS, start, stop)
        inside = np.zeros(len(times) + 2, np.int8)
        inside[1:-1] = (times >= interval.start) & (times < interval.end)
        edges = start + np.flatnonzero(np.diff(inside))
        return [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]

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
        """Rows [start, end) of one column, verified by whole groups.

        Read, not mapped: samples that were selected from must not count as memory of the service.
        """
        if end > held.num_samples:
            raise self._too_short(end)
        low = start // GROUP * GROUP
        high = min(-(-end // GROUP) * GROUP, held.num_samples) if end > start else low
        values = np.empty(high - low, "<i8")
        for first, last in _cut(low, high, BLOCK):
            target = values[first - low : last - low]
            self._read_into(descriptor, target.data.cast("B"), _offset(column, first), held)
            entries = self._entries(descriptor, held, first, last)
            for (begin, stop), entry in zip(_cut(first, last, GROUP), entries, strict=True):
                if zlib.crc32(target[begin - first : stop - first].data.cast("B")) != entry[2 + column]:
                    raise self._damaged(_COLUMN_NAMES[column], begin, stop)
        return values[start - low : end - low] if end > start else values

    def _labels(self, descriptor: int, held: HeldSamples, start: int, end: int) -> LabelArray:
        labels = self._column(descriptor, held, _LABEL, start, end)
        return labels.view(np.float64) if held.float_labels else labels

    def _entries(self, descriptor: int, held: HeldSamples, first: int, last: int) -> Iterator[GroupEntry]:
        """The entries of the groups of rows [first, last), which lie in one block; `first` begins a group, `last` ends one or the log."""
        num_full = last // GROUP - first // GROUP
        content = bytearray(num_full * _ENTRY_BYTES)
        self._read_into(descriptor, memoryview(content), _entry_offset(first), held)
        for group in range(num_full):
            entry = GroupEntry.unpacked(content[group * _ENTRY_BYTES : (group + 1) * _ENTRY_BYTES])
            if entry is None:
                raise self._damaged("checksums", first + group * GROUP, first + (group + 1) * GROUP)
            yield entry
        if last % GROUP:
            yield held.tail

    def _read_into(self, descriptor: int, target: memoryview, offset: int, held: HeldSamples) -> None:
        done = 0
        while done < len(target):
            got = os.preadv(descriptor, [target[done:]], offset + done)
            if not got:
                raise self._too_short(held.num_samples)
            done += got

    def _damaged(self, what: str, start: int, end: int) -> CorruptStateError:
        return _KIND.corrupt(self.path, f"the {what} of samples {start} to {end - 1} do not match their checksum")

    def _too_short(self, num_samples: int) -> CorruptStateError:
        return CorruptStateError(
            f"{self.path} does not hold the {num_samples} samples that run '{self.run_id}' was informed of; {_ADVICE}"
        )

    def _unavailable(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"cannot use the samples of run '{self.run_id}' in {self.path}: {error.strerror}; free or repair the disk and try again"
        )


def _held(state: LogState) -> HeldSamples:
    num_samples, float_labels, *tail = state.fields
    return HeldSamples(
        num_samples, bool(float_labels) if state.number else None, GroupEntry(*tail) if num_samples % GROUP else GroupEntry()
    )


def _offset(column: int, row: int) -> int:
    block, within = divmod(row, BLOCK)
    return _HEAD.size + block * _BLOCK_BYTES + _ENTRIES_BYTES + 8 * (column * BLOCK + within)


def _entry_offset(row: int) -> int:
    """Where the entry of the group lies that holds the row."""
    block, within = divmod(row, BLOCK)
    return _HEAD.size + block * _BLOCK_BYTES + within // GROUP * _ENTRY_BYTES


def _end_offset(num_rows: int) -> int:
    """The least size of a file with `num_rows` rows."""
    return _offset(_LABEL, num_rows - 1) + 8 if num_rows else _HEAD.size


def _cut(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """Split rows [start, end) into ranges that lie in one block or group of `size` rows each.

    >>> list(_cut(65_530, 131_080, 65_536))
    [(65530, 65536), (65536, 131072), (131072, 131080)]
    """
    while start < end:
        stop = min(end, (start // size + 1) * size)
        yield start, stop
        start = stop
