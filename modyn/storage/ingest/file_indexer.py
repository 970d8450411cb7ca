"""Indexing of files that must not change meanwhile: the fingerprint that is kept of a file must be of the bytes that were indexed.

Formats read files of this machine. Objects of a bucket are read by ranges where a format can, or else copied to a temporary folder, indexed
there, and the copies removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from modyn._core import FIRST_SECOND, LAST_SECOND, TimeFormat, show_time
from modyn.errors import DataError, ModynError
from modyn.records import BoolArray, Int64Array, LabelArray, has_label
from modyn.rpc.logs import get_logger
from modyn.storage.files.file_system import (
    UNRELATED_TO_CONTENT,
    FileStatus,
    FileSystem,
    IndexedVersion,
    SeenFile,
)
from modyn.storage.files.local import LocalFiles
from modyn.storage.formats.bad_rows import BadRows, with_path
from modyn.storage.formats.base import FileFormat, FormatResume, OpenedFile, RangedFormat, WholeFileFormat
from modyn.storage.formats.timestamps import TimeRange
from modyn.storage.ingest.fingerprints import check_unchanged, fingerprint, tail_of
from modyn.storage.ingest.format_runner import FormatRunner, format_failed
from modyn.storage.ingest.limits import IngestLimits
from modyn.storage.model.file_table import FileRow
from modyn.storage.model.samples import BadRow, IndexedFiles, IndexedSamples
from modyn.storage.model.schema import DatasetSchema

if TYPE_CHECKING:
    from modyn.storage.files.local_copies import LocalCopies
    from modyn.storage.files.unpacked import UnpackedCopies

COPIES_AT_ONCE = 512
"""Most objects of one sample that are copied and indexed with one call."""
_ADVISED = 20
"""The number of samples of a chunk in the future whose times are tried in other units."""


class ChangedError(Exception):
    """The file changed since it was listed: it is indexed at the next scan."""


class FileJob:
    """One file to index: new, or the rest of one that grew, of which `row` is what is indexed.

    Args: num_skipped: rows of what is indexed that were skipped. runner: of formats. takes_unended: take a last row that does not end as it is.
        has_grown: the file is longer than when its last row was left for later.
        copies: of compressed files, if the format is one that takes them.
    """

    def __init__(
        self,
        folder: FileSystem,
        file_format: FileFormat,
        seen: SeenFile,
        row: FileRow | None = None,
        limits: IngestLimits = IngestLimits(),  # noqa: B008  (frozen)
        num_skipped: int = 0,
        runner: FormatRunner | None = None,
        takes_unended: bool = True,
        has_grown: bool = False,
        copies: UnpackedCopies | None = None,
    ) -> None:
        self.listed, self.seen, self.row = seen, seen, row
        """The file as it was listed; and as it is indexed: without a last row that is not taken."""
        self._has_grown = has_grown
        self.unended = ""
        """Why the last row of the file is not taken now, as `IndexedSamples.unended`, once `samples` has ended."""
        self.is_part = False
        """Whether the last row is only a part of a row, which is never taken as it is."""
        self._watched = ExitStack()
        self._begun = False
        self._runner = runner or FormatRunner()
        self._folder, self._format, self._limits = folder, file_format, limits
        self._path = folder.full_path(seen.path)
        self.is_packed = file_format.is_packed(seen.path)
        """The file is unpacked to a copy, which is indexed in its place."""
        self._is_whole = self.is_packed or not folder.appends
        self._takes_unended = takes_unended or self._is_whole
        self._copies = copies
        self._content, self._content_of = self._path, folder
        """Full path and file system of what is indexed: the file, or its unpacked copy."""
        self._resume = (
            FormatResume(row.indexed_end, row.num_samples, row.fingerprint, num_skipped) if row and row.num_samples else None
        )
        self.indexed = FormatResume(0, 0, "")
        """What is indexed of the file once `samples` has ended."""
        self.tail = -1
        """See `FileRow.tail`; set once `samples` has ended."""
        self.schema: DatasetSchema | None = None
        """The schema of the dataset, plus what this file says of it, once `samples` has ended; None: the format has none."""
        self.times: TimeRange | None = None
        """Range of the times of the new samples, once `samples` has ended; None: there are none."""
        self.skipped: Sequence[BadRow] = ()
        """Rows that cannot be used, which no sample is of, once `samples` has ended."""

    @staticmethod
    def found_in_each(jobs: Sequence[FileJob]) -> Iterator[Iterator[IndexedSamples]]:
        """What an isolated format finds in the files of its `jobs`, which were begun, for `samples` of each; as `FormatRunner.index_each`."""
        if not jobs:
            return iter(())
        first = jobs[0]
        return first._runner.index_each(first._format, [(job._path, job._resume) for job in jobs])

    def begin(self) -> None:
        """Look at the file, which must stay as it is from now on; a no-op the second time. Raises: DataError, ChangedError."""
        if self._begun:
            return
        with ExitStack() as watched:
            watched.enter_context(watching(self._folder, self._format, self.seen, self._limits.growing_bytes))
            if self.is_packed:
                self._unpack()
            if self._resume is not None:
                check_unchanged(self._content_of, self._content, self._resume, listed(self._content_of, self.seen))
            self._watched, self._begun = watched.pop_all(), True

    def _unpack(self) -> None:
        """Make what is indexed the unpacked copy of the file. Raises: DataError."""
        assert self._copies is not None, "a format that takes compressed files is given the place of their copies"
        self.tail = tail_of(self._folder, self._format, self.seen)
        self._content = self._copies.place(self.seen.path, self.seen.size, self.tail)
        version = IndexedVersion(self.seen.size, self.seen.mtime_ns, self.seen.tag)
        self._copies.make(self._folder, self._path, version, self._content, self._limits.unpacked_bytes)
        self._content_of, self._format = LocalFiles(""), copy(self._format)
        self._format.roots = ()  # The copy lies in storage's own folder.

    def samples(self, found: Iterator[IndexedSamples] | None = None) -> Iterator[IndexedSamples]:
        """Yield all new samples in file order.

        Args: found: what the format finds, if it is asked already; `begin` was called before.
        Raises: DataError, ChangedError; samples that were yielded before it are not to be used.
        """
        before = self._resume or self.indexed
        end, num_samples = before.end, before.num_samples
        bad_rows = BadRows(self._path, getattr(self._format.config, "max_bad_rows", None))
        self.begin()
        with self._watched:
            for chunk in self._chunks(found or self._found()):
                for row in chunk.skipped:
                    bad_rows.add(row)
                end, num_samples = chunk.end, num_samples + len(chunk)
                self.schema = chunk.schema or self.schema
                if len(chunk):
                    self.times = TimeRange.of(chunk.timestamps, are_digits=not chunk.typed_times).joined(self.times)
                    yield chunk
            bad_rows.check()
            self.skipped = bad_rows.take()
            self.indexed = FormatResume(
                end, num_samples, fingerprint(self._content_of, self._content, end, listed(self._content_of, self.seen))
            )
            if self.unended:
                self.seen = replace(self.seen, size=end)  # The rest is looked at again.
            self.tail = tail_of(self._folder, self._format, self.seen)

    def indexed_row(self, file_id: int) -> FileRow:
        """The file as it is indexed once `samples` has ended."""
        seen, indexed = self.seen, self.indexed
        return FileRow(
            file_id, seen.path, seen.size, seen.mtime_ns, indexed.end, indexed.num_samples, indexed.fingerprint, tail=self.tail
        )

    def _without_refused(self, chunk: IndexedSamples) -> IndexedSamples:
        """The chunk with the samples that storage refuses among its skipped rows, which `samples` counts."""
        are_digits = self._format.times_are_digits and not chunk.typed_times
        future = future_samples(chunk.timestamps, len(chunk), self._limits.future_tolerance_s, are_digits=are_digits)
        wrong = refused_samples(chunk.labels, chunk.timestamps)
        refused = future | {at: f"{reason}; correct the file" for at, reason in wrong.items()}
        if not refused:
            return chunk
        bad = [
            BadRow(offset := int(chunk.offsets[at]), f"{self._path}, the sample at {offset}: {reason}", at not in wrong)
            for at, reason in refused.items()
        ]
        return replace(part_of(chunk, np.setdiff1d(np.arange(len(chunk)), list(refused))), skipped=sorted([*chunk.skipped, *bad]))

    def _chunks(self, found: Iterator[IndexedSamples]) -> Iterator[IndexedSamples]:
        """The chunks of the format, up to the size with which the file was listed. Exceptions of a plug-in's format become DataError."""
        try:
            for number, chunk in enumerate(map(self._without_refused, found)):
                is_part = bool(chunk.unended) and not len(chunk) and not chunk.skipped
                if is_part and self._is_whole:
                    raise DataError(f"{self._path}: {chunk.unended}")
                if chunk.unended and (is_part or not self._takes_unended):
                    self.unended, self.is_part = chunk.unended, is_part
                    if number == 0 and self._resume is None and is_part and self._has_grown:
                        continue  # The last row is half-written, and not all read wrong.
                    return
                may_be_longer = self._format.can_grow and not self.is_packed
                part = beginning(self._format, chunk, self.seen.size) if may_be_longer else chunk
                if part is not None:
                    yield part
                elif len(chunk) and self._format.row_begin(int(chunk.offsets[0])) is None:
                    raise ChangedError
                if part is not chunk:
                    return
        except (ModynError, ChangedError, GeneratorExit):
            raise
        except Exception as error:
            get_logger("storage").exception("format_failed", path=self._path)
            raise format_failed(self._format, self._path, type(error).__name__) from error

    def _found(self) -> Iterator[IndexedSamples]:
        """What the format finds in the file."""
        version = listed(self._content_of, self.seen)
        if version is None:
            found = self._runner.index(self._format, self._content, self._resume)
            yield from with_path(found, self._content, self._path) if self.is_packed else found
            return
        companions = self._format.companions(self._path)
        if isinstance(self._format, RangedFormat) and not companions:
            # Here, also if it is isolated: what it reads comes over the connections of this process.
            with self._folder.open(self._path, version) as source:
                yield from self._format.index_opened(OpenedFile(self._path, self.seen.size, self.seen.mtime_ns, source))
            return
        with _copies(self._folder) as copies:
            copies.add(self._path, version)
            for companion in companions:
                copies.add(companion)
            with copies.naming_objects():
                place = copies.local(self._path)
                yield from with_path(self._runner.index(self._format, place, self._resume), place, self._path)


@contextmanager
def watching(folder: FileSystem, file_format: FileFormat, seen: SeenFile, growing_bytes: int) -> Iterator[None]:
    """A context in which the file `seen` must stay as it was listed, but for appends to one of `growing_bytes` or more that may grow.

    Raises: ChangedError: it has changed, also in place of a DataError: a file that is being written may look damaged. DataError.
    """
    path = folder.full_path(seen.path)
    may_grow = file_format.can_grow and not file_format.is_packed(path) and folder.appends and seen.size >= growing_bytes

    def status_now() -> FileStatus:
        if (version := folder.version(seen)) is None:
            raise ChangedError
        return version

    def grew(now: FileStatus) -> bool:
        return may_grow and now.size > seen.size and now.tag == first.tag

    def check() -> None:
        if (now := status_now()) != first and not (grew(now) and fingerprint(folder, path, seen.size) == indexed):
            raise ChangedError

    first = status_now()
    indexed = fingerprint(folder, path, seen.size) if may_grow else ""
    if (first.size, first.mtime_ns) != (seen.size, seen.mtime_ns) and not grew(first):
        raise ChangedError
    try:
        yield
    except DataError:
        check()
        raise
    check()


def index_whole_files(
    runner: FormatRunner, folder: FileSystem, file_format: WholeFileFormat, paths: Sequence[str], num_apart: int
) -> IndexedFiles:
    """Index the files of one sample each at `paths`, full paths in `folder`; objects of a bucket by way of copies, with content only if
    `file_format` reads it. The problem of one that was replaced since it was listed, or whose companion was, is a FileChangedError.

    Args: num_apart: as of `FormatRunner.index_files`.
    """
    if isinstance(folder, LocalFiles):
        return runner.index_files(file_format, paths, num_apart)
    with _copies(folder) as copies:
        companions = [companion for path in paths for companion in file_format.companions(path)]
        copies.add_small([*companions, *paths] if file_format.reads_payloads else companions)
        for path in () if file_format.reads_payloads else paths:
            copies.add_empty(path)
        found = runner.index_files(file_format, [copies.local(path) for path in paths], num_apart)
        problems = {i: _cause(copies, file_format, paths[i]) or copies.with_objects(error) for i, error in found.problems.items()}
        return replace(found, problems=problems)


def _cause(copies: LocalCopies, file_format: WholeFileFormat, path: str) -> DataError | None:
    """Why there is no copy of an object, or of a companion that is there but could not be read."""
    companions = (copies.errors.get(companion) for companion in file_format.companions(path))
    unread = (error for error in companions if isinstance(error, UNRELATED_TO_CONTENT))
    return copies.errors.get(path) or next(unread, None)


def listed(folder: FileSystem, seen: SeenFile) -> IndexedVersion | None:
    """Return the version in which an object was `seen` in the listing, which alone may be read; None for a file of this machine."""
    return None if isinstance(folder, LocalFiles) else IndexedVersion(seen.size, seen.mtime_ns, seen.tag)


def _copies(folder: FileSystem) -> LocalCopies:
    # A storage without buckets does not need them.
    from modyn.storage.files.bucket import BucketFiles
    from modyn.storage.files.local_copies import LocalCopies

    assert isinstance(folder, BucketFiles), "files lie on this machine or in a bucket"
    return LocalCopies(folder)


def beginning(file_format: FileFormat, chunk: IndexedSamples, num_bytes: int) -> IndexedSamples | None:
    """The rows of a chunk in the first `num_bytes` bytes of the file; None if there are none, or if their end is not known."""
    if chunk.end <= num_bytes:
        return chunk
    kept = int(np.append(chunk.offsets + chunk.lengths > num_bytes, True).argmax())
    end = num_bytes if kept == len(chunk) else file_format.row_begin(int(chunk.offsets[kept]))
    if not kept or end is None:
        return None
    # A skipped row may end behind them: it is looked at again with what comes.
    end = min(end, num_bytes, *(row.offset for row in chunk.skipped if row.offset > int(chunk.offsets[kept - 1])))
    return replace(part_of(chunk, np.arange(kept)), end=end, skipped=[row for row in chunk.skipped if row.offset < end])


def part_of(chunk: IndexedSamples, rows: Int64Array) -> IndexedSamples:
    """The samples at `rows`, int64 positions, ascending."""
    return replace(
        chunk,
        offsets=chunk.offsets[rows],
        lengths=chunk.lengths if isinstance(chunk.lengths, int) else chunk.lengths[rows],
        labels=chunk.labels[rows],
        timestamps=chunk.timestamps if isinstance(chunk.timestamps, int) else chunk.timestamps[rows],
    )


def refused_samples(labels: LabelArray, timestamps: Int64Array | int) -> dict[int, str]:
    """Position → why the sample is refused: its label is not finite or the mark of a missing one, or its time lies beyond the calendar. For all
    formats, also those of plug-ins.

    Args: labels: int64 or float64 (n,). timestamps: int64 (n,), or one for all; seconds since 1970.
    """
    times = np.asarray(timestamps)
    beyond = (times < FIRST_SECOND) | (times > LAST_SECOND)
    found = {
        at: f"its time {second} lies beyond the years 1 to 9999 in seconds since 1970"
        for at, second in _marked(times, beyond, len(labels))
    }
    for at in np.flatnonzero(~np.isfinite(labels)).tolist() if labels.dtype.kind == "f" else ():
        found[at] = f"the label {labels[at]} is no finite number"
    for at in np.flatnonzero(~has_label(labels)).tolist() if labels.dtype.kind != "f" else ():
        found[at] = f"the label {labels[at]} means that a sample has none; labels are larger"
    return found


def future_samples(
    timestamps: Int64Array | int, num_samples: int, tolerance_s: float | None, *, are_digits: bool
) -> dict[int, str]:
    """Position → why the sample is not taken now: it lies further in the future than `tolerance_s`; None: none does.

    Args: timestamps: int64 (n,), or one for all; seconds since 1970. are_digits: they may be digits that another `timestamp_format` reads.
    """
    if tolerance_s is None:
        return {}
    times = np.asarray(timestamps)
    late = _marked(times, times > time.time() + tolerance_s, num_samples)
    return {at: _why_late(found, tolerance_s, advises=are_digits and n < _ADVISED) for n, (at, found) in enumerate(late)}


def _marked(times: Int64Array, marks: BoolArray, num_samples: int) -> list[tuple[int, int]]:
    """Return (position, time) of the samples that are marked. Args: times, marks: (num_samples,), or () where one is for all."""
    if not marks.any():
        return []
    found = np.flatnonzero(np.broadcast_to(marks, num_samples))
    return list(zip(found.tolist(), np.broadcast_to(times, num_samples)[found].tolist(), strict=True))


def _why_late(timestamp: int, tolerance_s: float, *, advises: bool) -> str:
    """Args: advises: whether to look for other spellings of the number, which takes some microseconds."""
    shown = f", at {show_time(timestamp)}" if FIRST_SECOND <= timestamp <= LAST_SECOND else ""
    other = TimeFormat().advice_for(str(timestamp)) if advises else ""
    written = f"; if it is written as {timestamp}, {other}" if other else ""
    return (
        f"its time lies more than {tolerance_s:g} s in the future{shown}; correct it{written}; a time that is meant needs a larger "
        "storage.future_tolerance_s in the system file"
    )
