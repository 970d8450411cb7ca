"""The stream of a run in one append-only file. The file counts its samples, so that appending needs no database.

All numbers are little-endian. The file begins with a head of `columnar.LogHead`, whose two slots count the rows. Blocks of BLOCK rows follow. A block
begins with a page of entries. Each entry has the checksums of the columns for one group of GROUP rows. Three columns follow the page: keys and
timestamps as int64, labels as int64 or float64. An append writes its rows after the counted rows, writes the entries of the groups that it fills, and
syncs the file. Afterwards it commits the new count, together with the entry of the incomplete group. Every read is verified.
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
from modyn.records import Int64Array, LabelArray, RunId, SampleBatch
from modyn.selector.window import StreamReader

BLOCK = 65_536
"""Number of rows of a block: 1.5 MiB."""
GROUP = 4_096
"""Number of rows that share a checksum. A read of rows reads and verifies all groups that contain these rows."""

_ADVICE = "restore it from a backup, or delete the run and start it again"
_KIND = FileKind(b"MODYNLOG", 5, "log of samples", _ADVICE)
# Each slot has its own page, so that an interrupted write of one slot leaves the other slot intact.
_HEAD = LogHead(_KIND, num_fields=5, slots=(4096, 8192))
"""Fields: number of samples; 1 if labels are float64, else 0; the entry of the incomplete group."""
_ENTRIES_BYTES = 4096
"""Number of bytes of a block's entries: one page. The 16 entries of 16 bytes fill only a part of the page. The columns begin at the next page."""
_BLOCK_BYTES = _ENTRIES_BYTES + 3 * 8 * BLOCK
_ENTRY = struct.Struct("<III")
_CHECKSUM = struct.Struct("<I")
_ENTRY_BYTES = _ENTRY.size + _CHECKSUM.size
_KEYS, _TIMESTAMPS, _LABEL = range(3)

_COLUMN_NAMES = ("keys", "timestamps", "labels")

Columns = Sequence[npt.NDArray[np.generic]]


class GroupEntry(NamedTuple):
    """The CRC-32 of each column in a group of rows."""

    keys: int = 0
    timestamps: int = 0
    labels: int = 0

    def plus(self, columns: Columns) -> GroupEntry:
        """Return the entry after appending these rows."""
        return GroupEntry(*(zlib.crc32(values.data.cast("B"), before) for values, before in zip(columns, self, strict=True)))

    def packed(self) -> bytes:
        """Encode the entry for the file, with its own checksum."""
        content = _ENTRY.pack(*self)
        return content + _CHECKSUM.pack(zlib.crc32(content))

    @classmethod
    def unpacked(cls, content: bytes | bytearray) -> Self | None:
        """Decode an entry; None if the content is damaged."""
        checksum = _CHECKSUM.unpack_from(content, _ENTRY.size)[0]
        return cls(*_ENTRY.unpack_from(content)) if zlib.crc32(content[: _ENTRY.size]) == checksum else None


@dataclass(frozen=True, slots=True)
class HeldSamples:
    """The number of samples in a log. float_labels: whether labels are float64; None before the first sample.

    tail: entry of the last group if the group is incomplete, otherwise an empty entry.
    """

    num_samples: int
    float_labels: bool | None
    tail: GroupEntry


def unseen(run_id: RunId, held: int, position: int, batch: SampleBatch) -> SampleBatch:
    """Return the samples of `batch` that come after the first `held` samples of the stream. The first sample of `batch` is at `position`.

    Raises: ConflictError: the batch leaves a gap. InvalidArgumentError: `position` is negative.

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

    Args: held: number of stored samples of the run. Raises: InvalidArgumentError: `position` or `limit` is out of range. ConflictError: fewer than
    `position` samples are stored.
    """
    if position < 0 or limit < 1:
        raise InvalidArgumentError(f"{limit} samples of run '{run_id}' from position {position} on: ask for 1 or more, from 0 on")
    if position > held:
        raise ConflictError(
            f"run '{run_id}' holds {held} samples, so none from position {position} on: the selector's files are older than its callers' "
            "state; restore them from the same backup, or submit the pipeline again"
        )


def refuse_others(run_id: RunId, position: int, held: Int64Array, sent: Int64Array) -> None:
    """Raise ConflictError unless the keys that were sent again, from `position` on, equal the stored keys.

    Args: held, sent: keys from `position` on, int64 (n,) and (m,).
    """
    if not np.array_equal(held, sent):
        raise ConflictError(
            f"run '{run_id}' holds other samples at positions {position} to {position + len(sent)} than were sent again; "
            "a stream must be repeated as it was"
        )


def refuse_other_labels(run_id: RunId, position: int, float_labels: bool | None, sent_floats: bool) -> None:
    """Raise InvalidArgumentError if labels of samples from `position` on have another type than the held labels.

    Args: float_labels: whether the held labels are float64 (otherwise int64), or None if no labels are held. sent_floats: whether the sent labels are
    float64.
    """
    if float_labels not in (None, sent_floats):
        names = {True: "float64", False: "int64"}
        raise InvalidArgumentError(
            f"run '{run_id}' has {names[not sent_floats]} labels, but samples from position {position} on bring "
            f"{names[sent_floats]} labels; a dataset has labels of one type"
        )


class SampleLog(StreamReader):
    """A log of samples: the file `samples` in the run's directory, or a file of another name.

    A sample exists when `state` counts it. After a crash at any moment, the log has all samples of an `append` or none of them.
    Every method raises UnavailableError if the disk fails, and CorruptStateError if the file is damaged or lacks samples.
    """

    def __init__(self, run_id: RunId, directory: Path, name: str = "samples") -> None:
        self.run_id = run_id
        self.path = directory / name

    def exists(self) -> bool:
        """Return whether `create` has made the file."""
        return self.path.exists()

    def create(self) -> None:
        """Create an empty log, durably. Called once, at the registration of the run. Raises: UnavailableError: the disk cannot be written to."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._open(os.O_RDWR | os.O_CREAT) as descriptor:
                if os.fstat(descriptor).st_size == 0:
                    os.pwrite(descriptor, _HEAD.initial(), 0)
                    os.fsync(descriptor)
            sync(self.path.parent)
            # The folder of the run is new, too: only a sync of its parent makes its name durable.
            sync(self.path.parent.parent)
        except OSError as error:
            raise self._unavailable(error) from error

    def append(self, position: int, batch: SampleBatch) -> tuple[int, int]:
        """Append the samples of `batch`, which begin at `position`, except samples that the log already holds.

        Returns: the number of samples in the log, and the number of new samples. Raises: ConflictError: there would be a gap, or repeated samples
        differ from the held samples. InvalidArgumentError: the labels have another type than earlier labels.
        """
        with self._open(os.O_RDWR) as descriptor:
            # The lock excludes appends by other threads and processes until the file is closed.
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
        """Return the number of samples in the log, and the type of their labels."""
        with self._open(os.O_RDONLY) as descriptor:
            return _held(self._read_head(descriptor))

    def _write(self, descriptor: int, before: LogState, batch: SampleBatch) -> None:
        held, are_float = _held(before), batch.labels.dtype.kind == "f"
        position = held.num_samples
        refuse_other_labels(self.run_id, position, held.float_labels, are_float)
        # If the file has lost its tail, a write after its end would fill the gap with zeros, and zeros are valid keys.
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
        # The rows must be on the disk before the head counts them. Otherwise a crash could leave a head that counts rows without content.
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

    def repair(self) -> None:
        """Cut off the bytes that a crash left after the last sample, and sync the file."""
        if self.exists():
            with self._open(os.O_RDWR) as descriptor:
                # The last block is kept whole: later appends overwrite its unused rows.
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
        """Read rows [start, end) of one column. The whole groups of these rows are read and verified.

        The method reads the file and does not map it, because mapped pages would count as memory of the service during a selection.
        """
        if end > held.num_samples:
            raise self._too_short(end)
        low = start // GROUP * GROUP
        # -(-a // b) rounds up. The last group of the log may be incomplete.
        high = min(-(-end // GROUP) * GROUP, held.num_samples) if end > start else low
        values = np.empty(high - low, "<i8")
        for first, last in _cut(low, high, BLOCK):
            target = values[first - low : last - low]
            self._read_into(descriptor, target.data.cast("B"), _offset(column, first), held)
            # An append never changes counted rows or entries of full groups. This read therefore needs no lock.
            entries = self._entries(descriptor, held, first, last)
            for (begin, stop), entry in zip(_cut(first, last, GROUP), entries, strict=True):
                if zlib.crc32(target[begin - first : stop - first].data.cast("B")) != entry[column]:
                    raise self._damaged(_COLUMN_NAMES[column], begin, stop)
        return values[start - low : end - low] if end > start else values

    def _labels(self, descriptor: int, held: HeldSamples, start: int, end: int) -> LabelArray:
        labels = self._column(descriptor, held, _LABEL, start, end)
        return labels.view(np.float64) if held.float_labels else labels

    def _entries(self, descriptor: int, held: HeldSamples, first: int, last: int) -> Iterator[GroupEntry]:
        """Return the entries of the groups of rows [first, last), which are in one block. `first` begins a group; `last` ends a group or the log."""
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
            # One call may return fewer bytes than requested; 0 bytes mean the end of the file.
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
    """Return the offset of the entry of the group that holds the row."""
    block, within = divmod(row, BLOCK)
    return _HEAD.size + block * _BLOCK_BYTES + within // GROUP * _ENTRY_BYTES


def _end_offset(num_rows: int) -> int:
    """Return the smallest size of a file with `num_rows` rows."""
    return _offset(_LABEL, num_rows - 1) + 8 if num_rows else _HEAD.size


def _cut(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """Split rows [start, end) into ranges that are each inside one block or group of `size` rows.

    >>> list(_cut(65_530, 131_080, 65_536))
    [(65530, 65536), (65536, 131072), (131072, 131080)]
    """
    while start < end:
        stop = min(end, (start // size + 1) * size)
        yield start, stop
        start = stop
