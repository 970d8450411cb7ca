"""Indexes files. A file must not change while it is indexed, because its stored fingerprint must belong to the indexed bytes.

Formats read local files. If a format supports it, only ranges of a bucket's objects are read. Otherwise objects are copied to a temporary folder and
indexed there, and the copies are removed.
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
from modyn.storage.formats.bad_rows import BadRows, LineCounter, with_path
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
"""Largest number of objects of one sample that are copied and indexed with one call."""
_ADVISED = 20
"""If samples have times in the future, error messages suggest other units for at most this number of samples of a chunk."""


class ChangedError(Exception):
    """A file changed after it was listed. The next scan indexes the file."""


class FileJob:
    """One file to index: a new file, or the new bytes of a file that grew.

    Args: row: row of the indexed bytes, if the file is known. num_skipped: number of skipped rows in the indexed bytes. runner: runner of formats.
        takes_unended: use an incomplete last row as it is. has_grown: the file has become longer since its last row was left for later. copies: the
        unpacked copies, if the format accepts compressed files.
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
        """`listed`: the file as it was listed. `seen`: the file as it is indexed, without a last row that is left for later. `row`: see `Args`."""
        self._has_grown = has_grown
        self.unended = ""
        """Reason why the last row of the file is left for later, see `IndexedSamples.unended`; set once `samples` has ended."""
        self.is_part = False
        """Whether the last row is incomplete and therefore never used in its current state."""
        self._watched = ExitStack()
        self._begun = False
        self._runner = runner or FormatRunner()
        self._folder, self._format, self._limits = folder, file_format, limits
        self._path = folder.full_path(seen.path)
        self.is_packed = file_format.is_packed(seen.path)
        """Whether the file is unpacked to a copy, which is indexed instead."""
        self._is_whole = self.is_packed or not folder.appends
        self._takes_unended = takes_unended or self._is_whole
        self._copies = copies
        self._content, self._content_of = self._path, folder
        """Full path and file system of the indexed file: the file itself, or its unpacked copy."""
        self._local: str | None = self._path if isinstance(folder, LocalFiles) else None
        """Full path of the local file that is indexed: the file, its unpacked copy or the copy of an object; None: the object is read by ranges."""
        self._lines = LineCounter()
        self._resume = (
            FormatResume(row.indexed_end, row.num_samples, row.fingerprint, num_skipped) if row and row.num_samples else None
        )
        self.indexed = FormatResume(0, 0, "")
        """The indexed bytes of the file; set once `samples` has ended."""
        self.tail = -1
        """See `FileRow.tail`; set once `samples` has ended."""
        self.schema: DatasetSchema | None = None
        """The schema of the dataset, updated by this file; set once `samples` has ended. None: the format has no schema."""
        self.times: TimeRange | None = None
        """Range of the times of the new samples; set once `samples` has ended. None: there are no new samples."""
        self.skipped: Sequence[BadRow] = ()
        """Unusable rows, which have no sample; set once `samples` has ended."""

    @staticmethod
    def found_in_each(jobs: Sequence[FileJob]) -> Iterator[Iterator[IndexedSamples]]:
        """Index the files of `jobs` with an isolated format, see `FormatRunner.index_each`. `begin` must have been called for each job. Yields for
        each job the argument `found` of `samples`."""
        if not jobs:
            return iter(())
        first = jobs[0]
        return first._runner.index_each(first._format, [(job._path, job._resume) for job in jobs])

    def begin(self) -> None:
        """Read the state of the file. From now on, the file must not change. A second call does nothing. Raises: DataError, ChangedError."""
        if self._begun:
            return
        # If a step fails, this block ends the watch. Otherwise `samples` ends the watch.
        with ExitStack() as watched:
            watched.enter_context(watching(self._folder, self._format, self.seen, self._limits.growing_bytes))
            if self.is_packed:
                self._unpack()
            if self._resume is not None:
                check_unchanged(self._content_of, self._content, self._resume, listed(self._content_of, self.seen))
            self._watched, self._begun = watched.pop_all(), True

    def _unpack(self) -> None:
        """Unpack the file, and index the copy instead. Raises: DataError."""
        assert self._copies is not None, "a format that takes compressed files is given the place of their copies"
        self.tail = tail_of(self._folder, self._format, self.seen)
        self._content = self._copies.place(self.seen.path, self.seen.size, self.tail)
        version = IndexedVersion(self.seen.size, self.seen.mtime_ns, self.seen.tag)
        self._copies.make(self._folder, self._path, version, self._content, self._limits.unpacked_bytes)
        # The format is copied, because other files use the same format object and its roots.
        self._local, self._content_of, self._format = self._content, LocalFiles(""), copy(self._format)
        self._format.roots = ()  # The copy is in storage's own folder.

    def samples(self, found: Iterator[IndexedSamples] | None = None) -> Iterator[IndexedSamples]:
        """Yield all new samples in file order.

        Args: found: samples from the format, if they were already requested after `begin`. Raises: DataError, ChangedError; the caller must then
        discard the samples that were yielded before.
        """
        before = self._resume or self.indexed
        end, num_samples = before.end, before.num_samples
        bad_rows = BadRows(self._path, getattr(self._format.config, "max_bad_rows", None))
        self.begin()
        # The end of this block checks that the file did not change. Therefore the fingerprint belongs to the indexed bytes.
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
                self.seen = replace(self.seen, size=end)  # The rest is indexed at a later scan.
            self.tail = tail_of(self._folder, self._format, self.seen)

    def indexed_row(self, file_id: int) -> FileRow:
        """Return the row of the file with its indexed bytes. Call this method after `samples` has ended."""
        seen, indexed = self.seen, self.indexed
        return FileRow(
            file_id, seen.path, seen.size, seen.mtime_ns, indexed.end, indexed.num_samples, indexed.fingerprint, tail=self.tail
        )

    def _without_refused(self, chunk: IndexedSamples) -> IndexedSamples:
        """Return the chunk without the samples that storage refuses. Refused samples become skipped rows, which `samples` counts."""
        are_digits = self._format.times_are_digits and not chunk.typed_times
        future = future_samples(chunk.timestamps, len(chunk), self._limits.future_tolerance_s, are_digits=are_digits)
        wrong = refused_samples(chunk.labels, chunk.timestamps)
        refused = future | {at: f"{reason}; correct the file" for at, reason in wrong.items()}
        if not refused:
            return chunk
        offsets = {at: int(chunk.offsets[at]) for at in sorted(refused)}
        places = self._places(list(offsets.values()))
        bad = [
            BadRow(offset, f"{self._path}, {place}: {refused[at]}", at not in wrong)
            for (at, offset), place in zip(offsets.items(), places, strict=True)
        ]
        return replace(part_of(chunk, np.setdiff1d(np.arange(len(chunk)), list(refused))), skipped=sorted([*chunk.skipped, *bad]))

    def _places(self, offsets: Sequence[int]) -> list[str]:
        """Describe the positions of samples for messages. Args: offsets: ascending, also from call to call."""
        name = self._format.offsets_name
        if name != "line" or self._local is None:
            return [f"row {offset}" if name == "row" else f"the sample at byte {offset}" for offset in offsets]
        with self._content_of.reading(self._path), self._format.open(self._local) as file:
            return [f"line {self._lines.number(file, offset)} at byte {offset}" for offset in offsets]

    def _chunks(self, found: Iterator[IndexedSamples]) -> Iterator[IndexedSamples]:
        """Yield the chunks of the format, up to the listed size of the file. Exceptions of a plug-in's format become DataError."""
        try:
            for number, chunk in enumerate(map(self._without_refused, found)):
                is_part = bool(chunk.unended) and not len(chunk) and not chunk.skipped
                if is_part and self._is_whole:
                    raise DataError(f"{self._path}: {chunk.unended}")
                if chunk.unended and (is_part or not self._takes_unended):
                    self.unended, self.is_part = chunk.unended, is_part
                    if number == 0 and self._resume is None and is_part and self._has_grown:
                        continue  # Only the last row is incomplete; the rows before it were read correctly.
                    return
                may_be_longer = self._format.can_grow and not self.is_packed
                part = beginning(self._format, chunk, self.seen.size) if may_be_longer else chunk
                if part is not None:
                    yield part
                # The chunk extends beyond the listed size of the file, and its rows cannot be separated at this size.
                elif len(chunk) and self._format.row_begin(int(chunk.offsets[0])) is None:
                    raise ChangedError
                # Later rows were appended after the listing. The next scan indexes them.
                if part is not chunk:
                    return
        except (ModynError, ChangedError, GeneratorExit):
            raise
        except Exception as error:
            get_logger("storage").exception("format_failed", path=self._path)
            raise format_failed(self._format, self._path, type(error).__name__) from error

    def _found(self) -> Iterator[IndexedSamples]:
        """Yield the samples that the format finds in the file."""
        version = listed(self._content_of, self.seen)
        if version is None:
            found = self._runner.index(self._format, self._content, self._resume)
            yield from with_path(found, self._content, self._path) if self.is_packed else found
            return
        companions = self._format.companions(self._path)
        if isinstance(self._format, RangedFormat) and not companions:
            # Isolated formats run in this process too, because reads use the connections of this process.
            with self._folder.open(self._path, version) as source:
                yield from self._format.index_opened(OpenedFile(self._path, self.seen.size, self.seen.mtime_ns, source))
            return
        with _copies(self._folder) as copies:
            copies.add(self._path, version)
            for companion in companions:
                copies.add(companion)
            with copies.naming_objects():
                place = self._local = copies.local(self._path)
                yield from with_path(self._runner.index(self._format, place, self._resume), place, self._path)


@contextmanager
def watching(folder: FileSystem, file_format: FileFormat, seen: SeenFile, growing_bytes: int) -> Iterator[None]:
    """Check that the file `seen` does not change during the block, except for appends to a growing file of at least `growing_bytes`.

    Raises: ChangedError: the file has changed. ChangedError replaces a DataError, because a file that is being written may seem damaged. DataError.
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
    # A change of the file may be the cause of the error, so the change is reported instead.
    except DataError:
        check()
        raise
    check()


def index_whole_files(
    runner: FormatRunner, folder: FileSystem, file_format: WholeFileFormat, paths: Sequence[str], num_apart: int
) -> IndexedFiles:
    """Index the files of one sample each at `paths`, full paths in `folder`. Objects of a bucket are copied first; their content is copied only if
    `file_format` reads it. If an object or its companion was replaced after the listing, its problem is a FileChangedError.

    Args: num_apart: see `FormatRunner.index_files`.
    """
    if isinstance(folder, LocalFiles):
        return runner.index_files(file_format, paths, num_apart)
    with _copies(folder) as copies:
        companions = [companion for path in paths for companion in file_format.companions(path)]
        copies.add_small([*companions, *paths] if file_format.reads_payloads else companions)
        # If the format uses only names, sizes and companions, the copies have no content.
        for path in () if file_format.reads_payloads else paths:
            copies.add_empty(path)
        found = runner.index_files(file_format, [copies.local(path) for path in paths], num_apart)
        problems = {i: _cause(copies, file_format, paths[i]) or copies.with_objects(error) for i, error in found.problems.items()}
        return replace(found, problems=problems)


def _cause(copies: LocalCopies, file_format: WholeFileFormat, path: str) -> DataError | None:
    """Return the reason why there is no copy of an object, or no copy of its companion; None: there are copies, or the companion does not exist."""
    companions = (copies.errors.get(companion) for companion in file_format.companions(path))
    unread = (error for error in companions if isinstance(error, UNRELATED_TO_CONTENT))
    return copies.errors.get(path) or next(unread, None)


def listed(folder: FileSystem, seen: SeenFile) -> IndexedVersion | None:
    """Return the listed version of an object, because no other version may be read; None for a local file."""
    return None if isinstance(folder, LocalFiles) else IndexedVersion(seen.size, seen.mtime_ns, seen.tag)


def _copies(folder: FileSystem) -> LocalCopies:
    # Imported here, because storage without buckets does not need these modules.
    from modyn.storage.files.bucket import BucketFiles
    from modyn.storage.files.local_copies import LocalCopies

    assert isinstance(folder, BucketFiles), "files are on this machine or in a bucket"
    return LocalCopies(folder)


def beginning(file_format: FileFormat, chunk: IndexedSamples, num_bytes: int) -> IndexedSamples | None:
    """Return the rows of a chunk in the first `num_bytes` bytes of the file; None if there are no such rows, or if the format does not know the end
    of the rows.
    """
    if chunk.end <= num_bytes:
        return chunk
    # `kept`: position of the first sample that extends beyond `num_bytes`; if there is no such sample, the number of samples.
    kept = int(np.append(chunk.offsets + chunk.lengths > num_bytes, True).argmax())
    end = num_bytes if kept == len(chunk) else file_format.row_begin(int(chunk.offsets[kept]))
    if not kept or end is None:
        return None
    # A skipped row after the last kept sample may extend beyond `num_bytes`, so it is read again later.
    end = min(end, num_bytes, *(row.offset for row in chunk.skipped if row.offset > int(chunk.offsets[kept - 1])))
    return replace(part_of(chunk, np.arange(kept)), end=end, skipped=[row for row in chunk.skipped if row.offset < end])


def part_of(chunk: IndexedSamples, rows: Int64Array) -> IndexedSamples:
    """Return the samples at `rows`, int64 positions, ascending."""
    return replace(
        chunk,
        offsets=chunk.offsets[rows],
        lengths=chunk.lengths if isinstance(chunk.lengths, int) else chunk.lengths[rows],
        labels=chunk.labels[rows],
        timestamps=chunk.timestamps if isinstance(chunk.timestamps, int) else chunk.timestamps[rows],
    )


def refused_samples(labels: LabelArray, timestamps: Int64Array | int) -> dict[int, str]:
    """Return the refused samples: position → reason. A sample is refused if its label is not finite or is the mark of a missing label, or if its time
    is outside the years 1 to 9999. These rules apply to all formats, including formats of plug-ins.

    Args: labels: int64 or float64 (n,). timestamps: int64 (n,), or one int for all; seconds since 1970.
    """
    times = np.asarray(timestamps)
    beyond = (times < FIRST_SECOND) | (times > LAST_SECOND)
    found = {
        at: f"its time {second} is beyond the years 1 to 9999 in seconds since 1970"
        for at, second in _marked(times, beyond, len(labels))
    }
    for at in np.flatnonzero(~np.isfinite(labels)).tolist() if labels.dtype.kind == "f" else ():
        found[at] = f"the label {labels[at]} is not a finite number"
    for at in np.flatnonzero(~has_label(labels)).tolist() if labels.dtype.kind != "f" else ():
        found[at] = f"the label {labels[at]} means that a sample has none; labels are larger"
    return found


def future_samples(
    timestamps: Int64Array | int, num_samples: int, tolerance_s: float | None, *, are_digits: bool
) -> dict[int, str]:
    """Return position → reason for the samples that are refused for now, because their times are too far in the future.

    Args: timestamps: int64 (n,), or one int for all; seconds since 1970. tolerance_s: seconds in the future that are allowed; None: no sample is
    refused. are_digits: whether the timestamps may be digits in another `timestamp_format`.
    """
    if tolerance_s is None:
        return {}
    times = np.asarray(timestamps)
    late = _marked(times, times > time.time() + tolerance_s, num_samples)
    return {at: _why_late(found, tolerance_s, advises=are_digits and n < _ADVISED) for n, (at, found) in enumerate(late)}


def _marked(times: Int64Array, marks: BoolArray, num_samples: int) -> list[tuple[int, int]]:
    """Return (position, time) of the samples for which `marks` is true. Args: times, marks: (num_samples,), or () for one value for all samples."""
    if not marks.any():
        return []
    found = np.flatnonzero(np.broadcast_to(marks, num_samples))
    return list(zip(found.tolist(), np.broadcast_to(times, num_samples)[found].tolist(), strict=True))


def _why_late(timestamp: int, tolerance_s: float, *, advises: bool) -> str:
    """Return why a time in the future is refused. Args: advises: whether to suggest other meanings of the number, which takes some microseconds."""
    shown = f", at {show_time(timestamp)}" if FIRST_SECOND <= timestamp <= LAST_SECOND else ""
    other = TimeFormat().advice_for(str(timestamp)) if advises else ""
    written = f"; if it is written as {timestamp}, {other}" if other else ""
    return (
        f"its time is more than {tolerance_s:g} s in the future{shown}; correct it{written}; a time that is meant needs a larger "
        "storage.future_tolerance_s in the system file"
    )
