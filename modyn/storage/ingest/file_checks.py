"""Checks that data files still contain the indexed bytes. A scan checks the files that seem changed, a scrub checks all files."""

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
from modyn.storage.model.dataset_records import FileProblem
from modyn.storage.model.file_table import UNKNOWN_TAG, CheckedFile, Checksum

_FILES_AT_ONCE: Final = 1024
"""Number of files whose rows are read at once from the catalogue, and largest number of checksums that wait to be written."""
_WRITE_EVERY_S: Final = 5.0
"""Seconds between two writes of checksums."""


@dataclass(frozen=True, slots=True)
class ScrubbedFile:
    """The result of a scrub for a data file. is_first: whether no scrub has read the file before. problem: None: the file is unchanged."""

    is_first: bool
    problem: FileProblem | None = None


def check_known_file(dataset: OpenDataset, known: CheckedFile, seen: SeenFile) -> None:
    """Compare an uncompressed file in the state `seen` with its indexed size, and with its fingerprint or time. If the file is marked as altered and
    has a checksum, it is compared with the checksum too.

    Raises: DataError: the file was rewritten, or cannot be read.
    """
    row, folder, path = known.row, dataset.filesystem, dataset.filesystem.full_path(seen.path)
    if seen.tag != UNKNOWN_TAG and (seen.tag, seen.size) == (row.tail, row.size):
        return  # The object was written again with the same content.
    if not dataset.format.can_grow and seen.size != row.size:
        raise DataError(
            f"{path} was rewritten: it had {row.size} bytes when it was indexed and has {seen.size} now. "
            f"Restore the file, or index what it contains now with `modyn data reindex`"
        )
    if not isinstance(dataset.format, WholeFileFormat):
        check_unchanged(folder, path, FormatResume(row.indexed_end, row.num_samples, row.fingerprint), listed(folder, seen))
    elif seen.mtime_ns != row.mtime_ns:  # Files of one sample have no fingerprint, because there may be millions of files.
        raise DataError(
            f"{path} was written again after it was indexed, maybe with something else. Restore the file with the time that it "
            f"had, or index what it contains now with `modyn data reindex`"
        )
    if row.altered and known.checksum.num_bytes:
        compared_checksum(folder, path, known.checksum, known.checksum.num_bytes)


def scrub_files(dataset: OpenDataset) -> Iterator[ScrubbedFile]:
    """Compare all indexed bytes of the data files of a dataset with their checksums, one file after the other.

    The first scrub of a file compares the fingerprint, if the file has one, and computes the checksum. If a file has grown, the bytes that the last
    scrub read are compared, and the checksum is extended to the new end. So from the second scrub on, a rewrite that keeps size and time is detected,
    and the samples of the file are refused. If size or time of a file changed, only the fingerprint is compared, and the next scan decides about the
    file. A refused file is compared again by each scrub: when its indexed bytes are restored, its samples are served again. Objects in buckets,
    compressed files and record logs are not compared: objects have ETags, compressed files are read from copies, and logs contain checksums.

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
                    continue  # The next scan of the folder reports that the file is missing.
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
    """Return the current state of a file. Raises: DataError: the file cannot be examined. ChangedError: it is missing, or a scan has refused it."""
    if dataset.problems.get(seen.path) == REFUSED or (now := dataset.filesystem.version(seen)) is None:
        raise ChangedError
    return SeenFile(seen.path, now.size, now.mtime_ns)


def _compare(dataset: OpenDataset, file: CheckedFile, seen: SeenFile) -> Checksum:
    """Return the checksum of the indexed bytes of a file; if the file is marked as altered, return the known checksum. Raises: DataError: the content
    differs, or is not readable. ChangedError: the file is not in the state `seen`."""
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
    """Refuse the samples of a file because of `error`; None: serve the samples again. If the row of the file has changed meanwhile, and the file has
    not only grown, the method changes nothing and returns False.
    """
    with hold_dataset(dataset):
        dataset.refresh()
        now = dataset.catalogue.checked_file(dataset.row.id, file.row.file_id)
        has_grown = now.row.indexed_end > file.row.indexed_end and not (now.row.altered or file.row.altered)
        if now.times_forgotten != file.times_forgotten or not (now.row == file.row or has_grown):
            return False
        writer, row = SegmentWriter(dataset), now.row
        if error is None:
            if seen.size == row.size:  # If the sizes differ, the next scan must detect the change and index the appended rows.
                row = row._replace(mtime_ns=seen.mtime_ns)
            writer.solve(row.path)
        else:
            aside = seen if file.row.altered else SeenFile(row.path, row.size, row.mtime_ns)
            ProblemReporter(dataset, writer, lambda: None).set_aside(aside, error)
        writer.change_file(row._replace(altered=error is not None))
        writer.flush()
        return True
