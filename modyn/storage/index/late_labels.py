"""Late labels, which arrived after their samples: in memory and in a log on disk, in the order of arrival.

Layout: a `LogHead` (number of rows, CRC-32 of all rows), then rows of 24 bytes: key of the sample, label (int64, or the bits of a float64), and time
of arrival in seconds since 1970. A row is valid if the head counts it. The head changes only after the row is on the disk. Bytes after the valid rows
were never acknowledged, and are overwritten. Segments never change: a sample without a label in its segment gets its label from this log.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from modyn.atomic_write import sync, write_atomically
from modyn.columnar import FileKind, LogHead, LogState, write_at
from modyn.errors import CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.records import Int64Array, LabelArray, SampleBatch, has_label
from modyn.storage.model.dataset_records import AppendedRecord

LATE_LABELS: Final = "late_labels"
"""Name of the file in the folder of a dataset's index."""
_KIND: Final = FileKind(
    b"MODYNLAB", 1, "file of labels that came late", "restore it from a backup; without it, their samples have none"
)
_HEAD: Final = LogHead(_KIND, num_fields=2)
_ROW: Final = np.dtype([("key", "<i8"), ("label", "<i8"), ("at", "<i8")])
_NONE: Final = np.zeros(0, _ROW)


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Neighbouring rows. first: number of the first row among all rows. rows: (n,), in the order of arrival. keys: int64 (n,), the keys of the rows,
    ascending. places: int64 (n,), the position in `rows` of each key; ascending for equal keys."""

    first: int
    rows: npt.NDArray[Any]
    keys: Int64Array
    places: Int64Array

    @staticmethod
    def of(first: int, rows: npt.NDArray[Any]) -> _Run:
        """Make a run of `rows`."""
        order = np.argsort(rows["key"], kind="stable")
        return _Run(first, rows, rows["key"][order], order)

    def with_next(self, other: _Run) -> _Run:
        """Join the rows of this run and of the next run, `other`."""
        keys = np.concatenate([self.keys, other.keys])
        order = np.argsort(keys, kind="stable")  # A stable sort merges sorted runs.
        places = np.concatenate([self.places, other.places + len(self.rows)])
        return _Run(self.first, np.concatenate([self.rows, other.rows]), keys[order], places[order])


@dataclass(frozen=True, slots=True, eq=False)
class LateLabels:
    """The late labels of one dataset at one moment; immutable, so that readers need no lock.

    runs: all rows, in the order of arrival. Each run is more than twice as long as the next one, so there are few runs, and each row is merged
    only a few times.
    """

    runs: tuple[_Run, ...] = ()
    log: LogState = LogState(0, (0, 0))  # noqa: RUF009  (immutable)

    def __len__(self) -> int:
        return self.runs[-1].first + len(self.runs[-1].rows) if self.runs else 0

    def rows(self, first: int, end: int) -> npt.NDArray[Any]:
        """Return the existing rows of [first, end) in the order of arrival: key, label, at."""
        return np.concatenate([_NONE, *(run.rows[max(first - run.first, 0) : max(end - run.first, 0)] for run in self.runs)])

    def filled(self, keys: Int64Array, labels: LabelArray, end: int | None = None) -> LabelArray:
        """Return the labels of samples, completed by late labels. Args: keys, labels: (n,). end: use only the first `end` late labels; None: all."""
        if not self.runs or not len(missing := np.flatnonzero(~has_label(labels))):
            return labels
        end = len(self) if end is None else end
        filled = labels.copy()
        for run in self.runs:  # The oldest run is searched first, because the first label of a sample counts.
            wanted = keys[missing]
            at = np.searchsorted(run.keys, wanted).clip(max=len(run.keys) - 1)
            known = (run.keys[at] == wanted) & (run.places[at] < end - run.first)
            filled.view(np.int64)[missing[known]] = run.rows["label"][run.places[at[known]]]
            missing = missing[~known]
        return filled

    def fill(self, batches: Iterator[SampleBatch], end: int | None = None) -> Iterator[SampleBatch]:
        """Yield batches of samples, completed by late labels. Args: end: see `filled`."""
        if not self.runs:
            return batches
        return (SampleBatch(batch.keys, batch.timestamps, self.filled(batch.keys, batch.labels, end)) for batch in batches)

    def with_rows(self, rows: npt.NDArray[Any], log: LogState) -> LateLabels:
        """Return these labels plus the labels in `rows`. On average, a row is copied once for each doubling of the number of rows."""
        runs = [*self.runs]
        if len(rows):
            runs.append(_Run.of(len(self), rows))
        while len(runs) > 1 and len(runs[-2].rows) <= 2 * len(runs[-1].rows):
            last = runs.pop()
            runs[-1] = runs[-1].with_next(last)
        return LateLabels(tuple(runs), log)


def read_late_labels(path: Path, before: LateLabels | None = None, num_published: int = 0, may_lag: bool = False) -> LateLabels:
    """Read the valid labels. A missing file means that there are no late labels.

    Args: before: labels that were read earlier; only later labels are read. num_published, may_lag: see `Tombstones.open`.
    Raises: CorruptStateError: the file is damaged or truncated, or has fewer labels than were published, because it is missing or older.
    UnavailableError: the file cannot be read, or has fewer labels and `may_lag` is set.
    """
    before = before or LateLabels()
    try:
        try:
            found = _read(path, before)
        except CorruptStateError:
            # The head may have been written during the first read. This does not happen twice in succession.
            found = _read(path, before)
    except FileNotFoundError:
        found = LateLabels()
    except OSError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror or error}; make it readable for the service") from error
    if len(found) < num_published:
        state = f"it has {len(found):,} labels" if found.log.number else "it is missing"
        reason = f"{state}, but {num_published:,} or more came late"
        if may_lag:
            raise UnavailableError(
                f"{path} is older here than storage's, or is damaged: {reason}; try another payload server, or `modyn data scrub`"
            )
        raise _KIND.corrupt(path, reason)
    return found


def answers_to_labels(keys: Int64Array, labels: LabelArray, known: LabelArray) -> tuple[list[AppendedRecord], Int64Array]:
    """Compare new labels with the known labels of their samples, because only the first label of a sample counts. Returns the answer to each new
    label, and the positions of the labels that are the first label of their sample. Args: keys, labels, known: (n,). known: known labels, with a mark
    for samples without a label.
    """
    answers, new = list[AppendedRecord](), dict[int, int]()
    for i, (key, is_known) in enumerate(zip(keys.tolist(), has_label(known).tolist(), strict=True)):
        before = known[i] if is_known else labels[new[key]] if key in new else None
        if before is None:
            new[key] = i
        answers.append(AppendedRecord(key, before is not None, before is not None and before != labels[i]))
    return answers, np.array(list(new.values()), np.int64)


def check_late_labels(dataset: str, first: int, number: int) -> None:
    """Check the number of the first requested label.

    Args: number: number of existing labels.
    Raises: InvalidArgumentError: the number is negative. CorruptStateError: the caller has received more labels than exist.
    """
    if first < 0:
        raise InvalidArgumentError(f"the first label is {first}; they are numbered from 0 on")
    if first > number:
        raise CorruptStateError(
            f"dataset '{dataset}' has {number:,} labels that came after their samples, and {first:,} were received of it: some are lost, for example "
            f"since an older backup was restored; restore the file {LATE_LABELS} of its index, or begin a new run"
        )


def _read(path: Path, before: LateLabels) -> LateLabels:
    with open(path, "rb") as file:
        log = _HEAD.parse(path, file.read(_HEAD.size))
        known = before if len(before) <= log.fields[0] else LateLabels()
        file.seek(_HEAD.size + len(known) * _ROW.itemsize)
        content = file.read((log.fields[0] - len(known)) * _ROW.itemsize)
    if len(content) != (log.fields[0] - len(known)) * _ROW.itemsize or zlib.crc32(content, known.log.fields[1]) != log.fields[1]:
        raise _KIND.corrupt(path, "its rows do not match their checksum, or were cut")
    return known.with_rows(np.frombuffer(content, _ROW), log)


def append_late_labels(path: Path, before: LateLabels, keys: Int64Array, labels: LabelArray, at: int) -> LateLabels:
    """Durably append labels of samples without a label. Returns all labels of the file. Only one thread of one process may call this function at a
    time.

    Args: before: all labels in the file. at: time of arrival, in seconds since 1970.
    Raises: UnavailableError: the disk cannot be written to; then none of the new labels is valid.
    """
    rows = np.zeros(len(keys), _ROW)
    rows["key"], rows["label"], rows["at"] = keys, np.ascontiguousarray(labels).view(np.int64), at
    content, start = rows.tobytes(), _HEAD.size + len(before) * _ROW.itemsize
    fields = len(before) + len(rows), zlib.crc32(content, before.log.fields[1])
    try:
        if not before.log.number:
            write_atomically(path, [_HEAD.initial(*fields), content])
            return before.with_rows(rows, LogState(1, fields))
        with open(path, "r+b", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size < start:
                raise _KIND.corrupt(path, "it was cut")
            try:
                write_at(file.fileno(), content, start)
                os.fdatasync(file.fileno())
                log = _HEAD.commit(file.fileno(), before.log, *fields)
            except OSError:
                with suppress(OSError):  # The written data is not valid, but would take disk space.
                    file.truncate(size)
                raise
            # The new size makes readers that saw the size before the commit read the file again. Times are too coarse to show a change.
            file.truncate(max(size, start + len(content)) + 1)
            return before.with_rows(rows, log)
    except CorruptStateError:
        raise
    except OSError as error:
        raise UnavailableError(
            f"cannot write {path}: {error.strerror or error}; make it writable for the service and check the space on its disk"
        ) from error


def open_late_labels(path: Path, num_published: int) -> int:
    """Call `announce_late_labels`, and return the number of labels in the file. The process that will write the file calls this function. Args,
    Raises: see both functions."""
    announce_late_labels(path)
    return len(read_late_labels(path, None, num_published))


def announce_late_labels(path: Path) -> None:
    """Make readers in other processes read the file again, and make the rows that are in the file durable. The previous process may have been killed
    after its last commit, before the file grew or was synced. Raises: UnavailableError."""
    try:
        with open(path, "r+b", buffering=0) as file:
            # Readers compare the size, so a new size makes them read again.
            file.truncate(os.fstat(file.fileno()).st_size + 1)
            os.fsync(file.fileno())
        sync(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnavailableError(f"cannot write {path}: {error.strerror or error}; make it writable for the service") from error
