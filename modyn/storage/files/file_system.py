"""File systems of datasets: what ingestion and readers ask of the folder that a dataset's `base_path` names."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from modyn._core import FileAccessError
from modyn.config.system import is_s3
from modyn.errors import DataError, ModynError
from modyn.storage.files.listing import Listing, Names, Roots, SeenFile, check_folder, list_files

if TYPE_CHECKING:
    import pyarrow as pa


class UnusableNowError(DataError):
    """A file could not be read, for a reason that says nothing about its content: it is tried again though its size and time are the same."""


UNRELATED_TO_CONTENT = (UnusableNowError, FileAccessError)
"""Errors after which the content of a file is still unknown, of Python and of C++."""


@dataclass(frozen=True, slots=True)
class FileStatus:
    """Bytes of a file, and its last change in ns since 1970.

    tag: of `FileSystem.version` only; differs between two files of one name, and between two contents where that is known.
    """

    size: int
    mtime_ns: int
    tag: str = ""


class FileSystem(ABC):
    """The folder of one dataset. A full path is `base` joined with the path in the folder; formats and messages use full paths."""

    appends: ClassVar[bool] = True
    """A file can become longer without being replaced."""

    def __init__(self, base: str) -> None:
        self.base = base

    @abstractmethod
    def check_roots(self, roots: Roots) -> None:
        """Raises: SecurityError: the folder lies outside the roots, whether it exists or not."""

    @abstractmethod
    def check(self, roots: Roots) -> None:
        """Raises: NotFoundError: there is no such folder. SecurityError: it lies outside the roots."""

    @abstractmethod
    def list_files(self, names: Names, roots: Roots, indexed: Sequence[str] = ()) -> Listing:
        """List the files that hold samples by their names, in the order in which they are to be indexed.

        Args: indexed: paths of indexed files; of several links to one folder, the one in these paths is followed.
        Raises: as `check`.
        """

    @abstractmethod
    def status(self, path: str) -> FileStatus | None:
        """The status of the file at a full path; None if there is none."""

    @abstractmethod
    def version(self, seen: SeenFile) -> FileStatus | None:
        """The version of a file now, whatever was listed; None if it is gone. Raises: DataError, UnavailableError."""

    @abstractmethod
    def read_error(self, path: str, error: OSError) -> ModynError:
        """The error that an OSError in reading means: UnavailableError if trying again may help, else DataError of the file."""

    @abstractmethod
    def open(self, path: str) -> pa.NativeFile:
        """Open the file at a full path for random access. Raises: OSError."""

    def stamp(self, path: str) -> FileStatus | None:
        """A value that changes with the file, as far as it is known without a request; None if it is not known."""
        return None

    def full_path(self, path: str) -> str:
        """`path` in the folder, joined with `base`."""
        return os.path.join(self.base, path) if path else self.base

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """A context in which an OSError is raised as `read_error` of `path`."""
        try:
            yield
        except OSError as error:
            raise self.read_error(path, error) from error


class LocalFiles(FileSystem):
    """A folder that this machine mounts."""

    def check_roots(self, roots: Roots) -> None:
        roots.check(self.base)

    def check(self, roots: Roots) -> None:
        check_folder(self.base, roots)

    def list_files(self, names: Names, roots: Roots, indexed: Sequence[str] = ()) -> Listing:
        return list_files(self.base, names, roots, indexed)

    def status(self, path: str) -> FileStatus | None:
        with suppress(OSError):
            status = os.stat(path)
            return FileStatus(status.st_size, status.st_mtime_ns)
        return None

    def version(self, seen: SeenFile) -> FileStatus | None:
        path = self.full_path(seen.path)
        with self.reading(path), suppress(FileNotFoundError):
            status = os.stat(path)
            return FileStatus(status.st_size, status.st_mtime_ns, f"{status.st_dev}:{status.st_ino}")
        return None

    def read_error(self, path: str, error: OSError) -> DataError:
        return unreadable(path, error)

    def open(self, path: str) -> pa.NativeFile:
        import pyarrow as pa  # Heavy, and only row groups and indexing need it: a training worker may do without.

        return pa.OSFile(os.fsencode(path))

    def stamp(self, path: str) -> FileStatus | None:
        return self.status(path)


def open_filesystem(base_path: str) -> FileSystem:
    """The file system that a `base_path` names. Raises: ConfigError: it is a URL that cannot be used."""
    if is_s3(base_path):
        from modyn.storage.files.s3 import S3Files  # Loads pyarrow.fs, which most processes do not need.

        return S3Files(base_path)
    return LocalFiles(base_path)


def unreadable(path: str, error: OSError, offset: int = 0) -> DataError:
    """The DataError for an OSError on a user's file."""
    reason = os.strerror(error.errno) if error.errno else error
    return UnusableNowError(f"cannot read {path} at byte {offset}: {reason}; make the file readable for the storage service")


reading = LocalFiles("").reading
"""A context in which an OSError on a local file is raised as DataError that names the file: `with reading(path)`."""
