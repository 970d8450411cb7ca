"""Where the files of a dataset lie, chosen by its `base_path`. What ingestion asks of a folder stands here, what it does with the answer there."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from modyn.config.system import is_s3
from modyn.errors import UnavailableError
from modyn.storage.files.listing import Listing, Roots, SeenFile, check_folder, list_files
from modyn.storage.formats.base import FileFormat, unreadable

if TYPE_CHECKING:
    from modyn._core import PathTable
    from modyn.storage.model.samples import RecordReader


@dataclass(frozen=True, slots=True)
class FileStatus:
    """Bytes of a file, and its last change in ns since 1970."""

    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A file at one moment. `tag` is another one for another file of the same name, and for another content where that is known."""

    size: int
    mtime_ns: int
    tag: str


class FileSystem(ABC):
    """The folder of one dataset. A file's full path is its path in the folder behind `base`; formats and messages get full paths."""

    appends: ClassVar[bool] = True
    """A file can become longer without being replaced."""

    def __init__(self, base: str) -> None:
        self.base = base

    @abstractmethod
    def check_roots(self, roots: Roots) -> None:
        """Raises SecurityError if the folder lies outside the roots, whether it is there or not."""

    @abstractmethod
    def check(self, roots: Roots) -> None:
        """Raises NotFoundError if there is no such folder, SecurityError if it lies outside the roots."""

    @abstractmethod
    def list_files(self, file_format: FileFormat, roots: Roots, indexed: Sequence[str] = ()) -> Listing:
        """All files that hold samples by their name, in the order in which they are to be indexed. Of several links to one folder, that is
        followed through which `indexed` files were found. Raises as `check`."""

    @abstractmethod
    def status(self, path: str) -> FileStatus | None:
        """Of the file with this full path; None if there is none."""

    @abstractmethod
    def version(self, seen: SeenFile) -> FileVersion | None:
        """Of the file itself, now, whatever was listed; None if there is none. Raises DataError, UnavailableError."""

    @abstractmethod
    def outage(self, path: str, error: OSError) -> UnavailableError | None:
        """What an error in reading means that is not the file's."""

    @abstractmethod
    def open(self, path: str) -> pa.NativeFile:
        """The file with this full path, to read from any place of it. Raises OSError."""

    @abstractmethod
    def stamp(self, path: str) -> FileStatus | None:
        """Changes when the file does, as far as that can be known at no cost; None if it cannot, or if there is no such file."""

    @abstractmethod
    def adapt(self, file_format: FileFormat) -> FileFormat:
        """The same format for files that lie here."""

    @abstractmethod
    def range_source(self, paths: PathTable) -> RecordReader | None:
        """What reads ranges of bytes of these files; None: they are files of this machine."""

    def full_path(self, path: str) -> str:
        return os.path.join(self.base, path) if path else self.base

    def signature(self, seen: SeenFile, file_format: FileFormat) -> str:
        """State of a file and its companions: a file that was set aside is looked at again when this changes."""
        parts = [f"{seen.size}:{seen.mtime_ns}"]
        for companion in file_format.companions(self.full_path(seen.path)):
            status = self.status(companion)
            parts.append("missing" if status is None else f"{status.size}:{status.mtime_ns}")
        return " ".join(parts)


class LocalFiles(FileSystem):
    """A folder that this machine sees as its own."""

    def check_roots(self, roots: Roots) -> None:
        roots.check(self.base)

    def check(self, roots: Roots) -> None:
        check_folder(self.base, roots)

    def list_files(self, file_format: FileFormat, roots: Roots, indexed: Sequence[str] = ()) -> Listing:
        return list_files(self.base, file_format, roots, indexed)

    def status(self, path: str) -> FileStatus | None:
        try:
            status = os.stat(path)
        except OSError:
            return None
        return FileStatus(status.st_size, status.st_mtime_ns)

    def version(self, seen: SeenFile) -> FileVersion | None:
        path = self.full_path(seen.path)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from error
        return FileVersion(status.st_size, status.st_mtime_ns, f"{status.st_dev}:{status.st_ino}")

    def outage(self, path: str, error: OSError) -> UnavailableError | None:
        return None

    def open(self, path: str) -> pa.NativeFile:
        return pa.OSFile(path)

    def stamp(self, path: str) -> FileStatus | None:
        return self.status(path)

    def adapt(self, file_format: FileFormat) -> FileFormat:
        return file_format

    def range_source(self, paths: PathTable) -> RecordReader | None:
        return None


def open_filesystem(base_path: str) -> FileSystem:
    """The folder that a dataset's `base_path` names. Raises ConfigError if that is a URL which cannot be used."""
    if is_s3(base_path):
        # Not before it is needed: half of the processes that import this never see a bucket.
        from modyn.storage.files.s3 import S3Files

        return S3Files(base_path)
    return LocalFiles(base_path)
