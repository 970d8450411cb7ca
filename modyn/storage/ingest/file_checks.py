"""Whether data files still hold what was indexed of them: one that a look at the folder found, and all of them by a scrub."""

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
from modyn.storage.ingest.locks import locked
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.ingest.problems import ProblemReporter
from modyn.storage.ingest.segment_writer import SegmentWriter
from modyn.storage.model.file_table import UNKNOWN_TAG, CheckedFile, Checksum
from modyn.storage.model.records import FileProblem

_FILES_AT_ONCE: Final = 1024
"""Rows that are held while their files are read, and most checksums that wait to be written."""
_WRITE_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ScrubbedFile:
    """What a scrub found of a data file. is_first: no scrub had read it before. problem: None: it is as it was indexed."""

    is_first: bool
    problem: FileProblem | None = None


def check_known_file(dataset: OpenDataset, known: CheckedFile, seen: SeenFile) -> None:
    """Compare an indexed file, which is no compressed one, as it was `seen` with what is known of it; one that is altered as a whole where it has
    a checksum.

    Raises: DataError: it was rewritten, or cannot be read.
    """
    row, folder, path = known.row, dataset.filesystem, dataset.filesystem.full_path(seen.path)
    if seen.tag != UNKNOWN_TAG and (seen.tag, seen.size) == (row.tail, row.size):
        return  # An object that was written again with the same content.
    if not dataset.format.can_grow and seen.size != row.size:
        raise DataError(
            f"{path} was rewritten: it had {row.size} bytes when it was indexed and has {seen.size} now. "
            f"Restore the file, or take what it holds now with `modyn data reindex`"
        )
    if not isinstance(dataset.format, WholeFileFormat):
        check_unchanged(folder, path, FormatResume(row.indexed_end, row.num_samples, row.fingerprint), listed(folder, seen))
    elif seen.mtime_ns != row.mtime_ns:  # No fingerprint is kept of files of one sample: there may be millions.
        raise DataError(
            f"{path} was written again after it was indexed, maybe with something else. Restore the file with the time that it "
            f"had, or take what it holds now with `modyn data reindex`"
        )
    if row.altered and known.checksum.num_bytes:
        compared_checksum(folder, path, known.checksum, known.checksum.num_bytes)


def scrub_files(dataset: OpenDataset) -> Iterator[ScrubbedFile]:
    """Compare all indexed bytes of the data files of a dataset with their checksums, one file after the other.

    A file that no scrub has read before is compared with its fingerprint, if it has one, and gets its checksum then; one that grew is compared up
    to where it was read before, and its checksum is carried on. So a file that was rewritten with the size and the time that it had is found from the
    second scrub on. From then on its samples are refused. A file of which size or time are others is left to the next look at the folder, but for
    what its fingerprint says. Objects in buckets are known by their ETags, compressed files are read from copies, and record logs have
    checksums of their own.

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
        path, is_first, problem = dataset.filesystem.full_path(file.row.path), not file.checksum.num_bytes, None
        try:
            checksum = _compared(dataset, file)
        except ChangedError:
            continue
        except DataError as error:
            if isinstance(error, UNRELATED_TO_CONTENT):
                if dataset.filesystem.status(path) is None:
                    continue  # The next scan of the folder says that it is gone.
                get_logger("storage").error("file_not_read", dataset=dataset.name, path=path, reason=error.message)
            elif not _set_aside(dataset, file, error):
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


def _compared(dataset: OpenDataset, file: CheckedFile) -> Checksum:
    """The checksum of what is indexed of a file. Raises: DataError: it is not what was indexed, or not readable. ChangedError: it is not known."""
    row, folder = file.row, dataset.filesystem
    path = folder.full_path(row.path)
    if row.fingerprint:
        check_unchanged(folder, path, FormatResume(row.indexed_end, row.num_samples, row.fingerprint))
    with watching(folder, dataset.format, SeenFile(row.path, row.size, row.mtime_ns), growing_bytes=0):
        return compared_checksum(folder, path, file.checksum, row.indexed_end)


def _set_aside(dataset: OpenDataset, file: CheckedFile, error: DataError) -> bool:
    """Refuse the samples of a file from now on, unless it was looked at again meanwhile, and not only grew: then return False."""
    with locked(dataset):
        dataset.refresh()
        now = dataset.catalogue.checked_file(dataset.row.id, file.row.file_id)
        has_grown = now.row.indexed_end > file.row.indexed_end and not now.row.altered
        if now.times_forgotten != file.times_forgotten or not (now.row == file.row or has_grown):
            return False
        writer = SegmentWriter(dataset)
        seen = SeenFile(now.row.path, now.row.size, now.row.mtime_ns)
        ProblemReporter(dataset, writer, lambda: None).set_aside(seen, error)
        writer.change_file(now.row._replace(altered=True))
        writer.flush()
        return True
