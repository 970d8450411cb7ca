"""Indexing one file, which must be the same all the while: what is remembered of it must speak of the bytes that were read."""

from __future__ import annotations

from collections.abc import Iterator

from modyn.errors import DataError, ModynError
from modyn.rpc.logs import get_logger
from modyn.storage.files.file_system import FileSystem, FileVersion
from modyn.storage.files.listing import SeenFile
from modyn.storage.formats.base import FileFormat, FormatResume, UnusableNowError, beginning, refused_samples
from modyn.storage.model.file_table import FileRow
from modyn.storage.model.samples import IndexedSamples

GROWS_BYTES = 16 << 20
"""Indexing a file of so many bytes may take longer than the pauses of whoever appends to it: waiting for one could be for ever."""


class ChangedError(Exception):
    """The file changed since it was listed: it is indexed at the next look."""


class FileJob:
    """A file to index: new, or the rest of one that grew, of which `row` says what is indexed."""

    def __init__(self, folder: FileSystem, file_format: FileFormat, seen: SeenFile, row: FileRow | None = None) -> None:
        self.seen, self.row = seen, row
        self._folder, self._format = folder, file_format
        self._path = folder.full_path(seen.path)
        self._resume: FormatResume | None = None
        if row is not None and row.num_samples:
            self._resume = FormatResume(row.indexed_end, row.num_samples, row.fingerprint)
        self.remembered = FormatResume(0, 0, "")
        """Of the whole file, once `samples` has come to its end."""

    def samples(self) -> Iterator[IndexedSamples]:
        """All that are new, in file order. Raises DataError, ChangedError; samples that were yielded before it are not to be used."""
        unchanged = _Unchanged(self._folder, self._format, self.seen)
        before = self._resume or FormatResume(0, 0, "")
        end, num_samples = before.end, before.num_samples
        try:
            for chunk in self._chunks():
                yield chunk
                end, num_samples = chunk.end, num_samples + len(chunk)
            self.remembered = self._format.resume_point(self._path, end, num_samples)
        except DataError:
            unchanged.check()  # What is being written may look like a file that is bad.
            raise
        unchanged.check()

    def _chunks(self) -> Iterator[IndexedSamples]:
        """As the format gives them, up to the size with which the file was listed. What a user's own format raises is told like any other
        bad file."""
        try:
            for chunk in self._format.index(self._path, self._resume):
                for at, reason in refused_samples(chunk.labels, chunk.timestamps).items():
                    raise DataError(f"{self._path}, the sample at {int(chunk.offsets[at])}: {reason}; correct the file")
                part = beginning(self._format, chunk, self.seen.size) if self._format.can_grow else chunk
                if part is not None:
                    yield part
                elif self._format.row_begin(int(chunk.offsets[0])) is None:
                    raise ChangedError
                if part is not chunk:
                    return
        except (ModynError, ChangedError, GeneratorExit):
            raise
        except Exception as error:
            get_logger("storage").exception("format_failed", path=self._path)
            # The next version of the format, or more memory, may do.
            raise UnusableNowError(
                f"{type(self._format).__name__} failed on {self._path}: {type(error).__name__}: {error}; the log of storage has the details"
            ) from error


class _Unchanged:
    """Watches one file from here to `check`."""

    def __init__(self, folder: FileSystem, file_format: FileFormat, seen: SeenFile) -> None:
        """Raises ChangedError if the file is no longer what was listed, DataError if it cannot be looked at."""
        self._folder, self._format, self._seen = folder, file_format, seen
        self._path = folder.full_path(seen.path)
        self._may_grow = file_format.can_grow and folder.appends and seen.size >= GROWS_BYTES
        self._version = self._look()
        self._fingerprint = file_format.fingerprint(self._path, seen.size) if self._may_grow else ""
        if (self._version.size, self._version.mtime_ns) != (seen.size, seen.mtime_ns) and not self._grew(self._version):
            raise ChangedError

    def check(self) -> None:
        """Raises ChangedError if the file has changed, other than by what was appended to a large one that may grow."""
        now = self._look()
        if now == self._version:
            return
        if not self._grew(now) or self._format.fingerprint(self._path, self._seen.size) != self._fingerprint:
            raise ChangedError

    def _look(self) -> FileVersion:
        version = self._folder.version(self._seen)
        if version is None:
            raise ChangedError
        return version

    def _grew(self, now: FileVersion) -> bool:
        return self._may_grow and now.size > self._seen.size and now.tag == self._version.tag
