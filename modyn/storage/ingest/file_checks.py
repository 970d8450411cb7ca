"""Checks that data files still contain the indexed bytes: a scan checks one file that it found changed, a scrub checks all files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from modyn.errors import DataError
from modyn.json_codec import sanitize
from modyn.rpc.logs import get_logger
from modyn.storage.files.file_system import UNRELATED_TO_CONTENT, SeenFile
from modyn.storage.files.local import LocalFiles
from modyn.storage.formats.base import FormatResume, WholeFileFormat
from modyn.storage.ingest.file_indexer import ChangedError, listed, watching
from modyn.storage.ingest.fingerprints import check_unchanged, compared_checksum
from modyn.storage.ingest.locks import hold_dataset
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.ingest.problems import REFUSED, ProblemReporter
from modyn.storage.ingest.segment_writer import SegmentWriter
from modyn.storage.model.file_table import UNKNOWN_TAG, CheckedFile, Checksum
from modyn.storage.model.records import FileProblem

_FILES_AT_ONCE: Final = 1024
"""Number of rows in memory while their files are read, and largest number of checksums that wait to be written."""
_WRITE_EVERY_S: Final = 5.0
"""Seconds between two writes of checksums."""


@dataclass(frozen=True, slots=True)
class ScrubbedFile:
    """The result of a scrub for a data file. is_first: whether no scrub has read the file before. problem: None: the file is unchanged."""

    is_first: bool
    problem: FileProblem | None = None


def check_known_file(dataset: OpenDataset, known: CheckedFile, seen: SeenFile) -> None:
    """Compare an uncompressed indexed file in its `seen` state with its known size, and with its fingerprint or time. A file marked as altered is
    also compared with its checksum, if it has one.

    Raises: DataError: the file was rewritten, or cannot be read.
    """
    row, folder, path = known.row, dataset.filesystem, dataset.filesystem.full_path(seen.path)
    if seen.tag != UNKNOWN_TAG and (seen.tag, seen.size) == (row.tail, row.size):
        return  # An object that was written again with the same content.
    if not dataset.format.can_grow and seen.size != row.size:
        raise DataError(
            f"{path} was rewritten: it had {row.size} bytes when it was indexed and has {seen.size} now. "
            f"Restore the file, or index what it contains now with `modyn data reindex`"
        )
    if not isinstance(dataset.format, WholeFileFormat):
        check_unchanged(folder, path, FormatResume(row.indexed_end, row.num_samples, row.fingerprint), listed(folder, seen))
    elif seen.mtime_ns != row.mtime_ns:  # No fingerprint is kept of files of one sample: there may be millions.
        raise DataError(
            f"{path} was written again after it was indexed, maybe with something else. Restore the file with the time that it "
            f"had, or index what it contains now with `modyn data reindex`"
        )
    if row.altered and known.checksum.num_bytes:
        compared_checksum(folder, path, known.checksum, known.checksum.num_bytes)


def scrub_files(dataset: OpenDataset) -> Iterator[ScrubbedFile]:
    """Compare all indexed bytes of the data files of a dataset with their checksums, one file after the other.

    The first scrub of a file compares it with its fingerprint, if it has one, and computes its checksum. A file that grew is compared up to the end
    that the last scrub read, and its checksum is extended to the new end. A rewrite that keeps size and time is therefore found from the second scrub
    on. The file's samples are then refused. If the size or time of a file changed, only its fingerprint is compared, and the next scan decides about
    the file. A scrub compares a refused file again: the file stays a problem, or its samples are served again if its indexed bytes are restored.
    Objects in buckets are identified by their ETags, compressed files are read from copies, and record logs have their own checksums.

    Raises: UnavailableError: the database or the disk cannot be used.
    """
    if dataset.row.config.holds_records or not isinstance(dataset.filesystem, LocalFiles):
        return
    first_id = 0
    while files := dataset.catalogue.files_to_check(dataset.row.id, first_id, _FILES_AT_ONCE):
        first_id = files[-1].row.file_id + 1
        yield from _scrub_some(dataset, [file for file in files if not dataset.format.is_packed(file.row.path)])


def _scrub_some(dataset: OpenDataset, files: Sequence[CheckedFile]) -> Iterator[ScrubbedFile]:
    read: list[CheckedFile] = []
    written = time.monotonic()
    for file in files:
        path, row, problem = dataset.filesystem.full_path(file.row.path), file.row, None
        is_first, seen = not (file.checksum.num_bytes or row.altered), SeenFile(row.path, row.size, row.mtime_ns)
        try:
            if row.altered:
                seen = _present(dataset, seen)
            checksum = _compare(dataset, file, seen)
            if row.altered:
                _record(dataset, file, seen, None)
        except ChangedError:
            continue
        except DataError as error:
            if isinstance(error, UNRELATED_TO_CONTENT):
                if dataset.filesystem.status(path) is None:
                    continue  # The next scan of the folder reports that it is gone.
                get_logger("storage").error("file_not_read", dataset=dataset.name, path=path, reason=error.message)
            elif not _record(dataset, file, seen, error):
                continue
            problem = FileProblem(sanitize(path), sanitize(error.message), time.time())
        else:
            if checksum != file.checksum:
                read.append(file._replace(checksum=checksum))
        if read and time.monotonic() - written >= _WRITE_EVERY_S:
            dataset.catalogue.keep_checksums(dataset.row.id, read)
            read, written = [], time.monotonic()
        yield ScrubbedFile(is_first, problem)
    if read:
        dataset.catalogue.keep_checksums(dataset.row.id, read)


def _present(dataset: OpenDataset, seen: SeenFile) -> SeenFile:
    """Return the file as it is now. Raises: DataError: it cannot be examined. ChangedError: it is gone, or a scan has refused to examine it."""
    if dataset.problems.get(seen.path) == REFUSED or (now := dataset.filesystem.version(seen)) is None:
        raise ChangedError
    return SeenFile(seen.path, now.size, now.mtime_ns)


def _compare(dataset: OpenDataset, file: CheckedFile, seen: SeenFile) -> Checksum:
    """Return the checksum of the indexed part of a file, or the known one of a file that is marked as altered. Raises: DataError: the content
    differs, or is not readable. ChangedError: the file is not as it was `seen`."""
    row, folder = file.row, dataset.filesystem
    path = folder.full_path(row.path)
    if row.fingerprint and not row.altered:
        check_unchanged(folder, path, FormatResume(row.indexed_end, row.num_samples, row.fingerprint))
    with watching(folder, dataset.format, seen, growing_bytes=0):
        if not row.altered:
            return compared_checksum(folder, path, file.checksum, row.indexed_end)
        check_known_file(dataset, file, seen)
        return file.checksum


def _record(dataset: OpenDataset, file: CheckedFile, seen: SeenFile, error: DataError | None) -> bool:
    """Refuse the samples of a file from now on, or serve them again if there is no error. Returns False without a change if the row of the file has
    changed meanwhile, unless the file only grew.
    """
    with hold_dataset(dataset):
        dataset.refresh()
        now = dataset.catalogue.checked_file(dataset.row.id, file.row.file_id)
        has_grown = now.row.indexed_end > file.row.indexed_end and not (now.row.altered or file.row.altered)
        if now.times_forgotten != file.times_forgotten or not (now.row == file.row or has_grown):
            return False
        writer, row = SegmentWriter(dataset), now.row
        if error is None:
            if seen.size == row.size:  # Otherwise the next scan indexes the rows that were appended.
                row = row._replace(mtime_ns=seen.mtime_ns)
            writer.solve(row.path)
        else:
            aside = seen if file.row.altered else SeenFile(row.path, row.size, row.mtime_ns)
            ProblemReporter(dataset, writer, lambda: None).set_aside(aside, error)
        writer.change_file(row._replace(altered=error is not None))
        writer.flush()
        return True
