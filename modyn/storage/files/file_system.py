"""File systems of datasets: what ingestion and readers ask of the folder that a dataset's `base_path` names, and the records of its listings."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from modyn._core import FileAccessError, FileChangedError, PathTable
from modyn.config.buckets import BUCKETS
from modyn.errors import ConfigError, DataError, ModynError, SecurityError
from modyn.records import Int64Array
from modyn.storage.model.file_table import UNKNOWN_TAG, Comparison, FileTable

if TYPE_CHECKING:
    import pyarrow as pa

    from modyn.storage.files.object_file import ObjectFile

PACKED_ENDINGS = (".gz", ".zst", ".bz2")
"""Endings of compressed files that are read."""
UNPACKED = "unpacked"
"""Folder of the unpacked copies of compressed files, in that of a dataset's index."""
UNKNOWN = int(np.iinfo(np.int64).min)
"""A time in `SeenFiles.changed_ns` that the listing does not give."""


class UnusableNowError(DataError):
    """A file could not be read, for a reason that says nothing about its content: it is tried again though its size and time are the same."""


class FailedAloneError(UnusableNowError):
    """A file that was indexed alone made its process wait or end: from then on it is asked for alone, after the others."""


UNRELATED_TO_CONTENT = (UnusableNowError, FileAccessError)
"""Errors after which the content of a file is still unknown, of Python and of C++."""


@dataclass(frozen=True, slots=True)
class NameEndings:
    """Endings of the names of a dataset's files: `samples` of files with samples, `companions` in its place of the file that must exist beside
    each of them; empty if there is none."""

    samples: str
    companions: str = ""
    packed: bool = False
    """Files of samples may be compressed: then their names end with .gz, .zst or .bz2 after `samples`. They have no companions."""

    def __post_init__(self) -> None:
        for ending in (self.samples, self.companions):
            if "/" in ending or ".." in ending or "\0" in ending:
                raise ConfigError(
                    f"{ending!r} is no ending of a file's name: it holds a '/', a '..' or a NUL, and could lead into another folder; write "
                    "the end of the name alone, such as '.label'"
                )

    def __call__(self, path: str) -> bool:
        """Whether a file of this name holds samples."""
        return path.endswith(self.samples) or (self.packed and without_packed_ending(path).endswith(self.samples))

    def companions_of(self, path: str) -> tuple[str, ...]:
        """Paths of the files that must exist beside `path`: one or none."""
        return (path[: len(path) - len(self.samples)] + self.companions,) if self.companions else ()


def without_packed_ending(path: str) -> str:
    """The name of a compressed file without the ending that says so.

    >>> without_packed_ending("a.csv.gz"), without_packed_ending("a.csv")
    ('a.csv', 'a.csv')
    """
    return next((path.removesuffix(ending) for ending in PACKED_ENDINGS if path.endswith(ending)), path)


Names = NameEndings | Callable[[str], bool]
"""Which files hold samples: endings, with which a folder is scanned without a call for each file, or a predicate on the full path."""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file in the folder when it was listed. `path` is relative to the folder. tag: as `FileRow.tail` of an object."""

    path: str
    size: int
    mtime_ns: int
    tag: int = UNKNOWN_TAG


@dataclass(frozen=True, slots=True)
class IndexedVersion:
    """The version of a file whose samples are indexed: bytes, ns since 1970, and `FileRow.tail`, by which an object is known."""

    size: int
    mtime_ns: int
    tag: int = UNKNOWN_TAG

    @staticmethod
    def of(paths: PathTable, file_id: int) -> IndexedVersion | None:
        """What is published of a file; None if nothing is."""
        stamp = paths.stamp(file_id)
        return None if stamp is None else IndexedVersion(*stamp, paths.tail(file_id))


@dataclass(frozen=True, slots=True, eq=False)
class SeenFiles:
    """Files in the order in which they are to be indexed: file time, then path. Columns, because there may be millions: about 150 bytes each.

    sizes: int64 bytes. mtimes_ns: int64.
    changed_ns: int64, the last change of the file and of its companion; UNKNOWN where that is missing, or was not listed.
    tags: int64, as `SeenFile.tag`; None: no file has one.
    """

    paths: list[str]
    sizes: Int64Array
    mtimes_ns: Int64Array
    changed_ns: Int64Array
    tags: Int64Array | None = None

    @staticmethod
    def of(files: Iterable[SeenFile]) -> SeenFiles:
        """`files`, which come in any order; nothing is known of their companions."""
        return SeenFiles.columns(list(files))._in_order()

    @staticmethod
    def columns(listed: Sequence[SeenFile]) -> SeenFiles:
        """`listed`, in the order in which they are given."""
        columns = np.array([(file.size, file.mtime_ns, UNKNOWN, file.tag) for file in listed], np.int64).reshape(-1, 4)
        return SeenFiles([file.path for file in listed], *columns.T)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: int) -> SeenFile:
        tag = UNKNOWN_TAG if self.tags is None else int(self.tags[position])
        return SeenFile(self.paths[position], int(self.sizes[position]), int(self.mtimes_ns[position]), tag)

    def __iter__(self) -> Iterator[SeenFile]:
        return (self[position] for position in range(len(self)))

    def take(self, positions: Int64Array) -> SeenFiles:
        """The files at `positions`, int64 (m,), in that order."""
        paths = [self.paths[position] for position in positions.tolist()]
        tags = None if self.tags is None else self.tags[positions]
        return SeenFiles(paths, self.sizes[positions], self.mtimes_ns[positions], self.changed_ns[positions], tags)

    def merged_with(self, others: SeenFiles) -> SeenFiles:
        """Merge both, neither of which has tags, in the order in which files are to be indexed."""
        mine, theirs = ((files.sizes, files.mtimes_ns, files.changed_ns) for files in (self, others))
        return SeenFiles(self.paths + others.paths, *map(np.concatenate, zip(mine, theirs, strict=True)))._in_order()

    def _in_order(self) -> SeenFiles:
        times = self.mtimes_ns.tolist()
        order = sorted(range(len(self)), key=lambda i: (times[i], os.fsencode(self.paths[i])))
        return self.take(np.array(order, np.int64))


@dataclass(frozen=True, slots=True)
class Listing:
    """What one look at a folder found.

    files: that hold samples, but for indexed ones that are as they were. refused: relative path → why it was not looked into. absent: ids of
    indexed files that are not there, int64, ascending.
    """

    files: SeenFiles
    refused: dict[str, str]
    absent: Int64Array

    @staticmethod
    def compared(files: SeenFiles, refused: dict[str, str], known: FileTable) -> Listing:
        """A listing of all `files` that hold samples, compared with those that are indexed."""
        found = Comparison(known)
        differing = found.differing(files.paths, files.sizes, files.mtimes_ns)
        return Listing(files.take(differing), refused, found.absent())


@dataclass(frozen=True)
class Roots:
    """Folders and buckets (`s3:/…`, as a path) that data may lie in; none: it may lie anywhere."""

    folders: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()

    @staticmethod
    def of(paths: Iterable[Path]) -> Roots:
        """Sort configured paths into folders, with links resolved, and buckets."""
        texts = [str(path) for path in paths]
        folders = tuple(os.path.realpath(text) for text in texts if not _is_bucket_root(text))
        return Roots(folders, tuple(text for text in texts if _is_bucket_root(text)))

    def check(self, path: str) -> None:
        """Check a path of this machine. Raises SecurityError if `path`, with symbolic links followed, lies in none of the roots."""
        real = os.path.realpath(path)
        if (self.folders or self.buckets) and not any(os.path.commonpath([real, root]) == root for root in self.folders):
            raise SecurityError(
                f"{path} lies outside the folders that storage may read ({', '.join(self.folders)}); "
                f"move it there or add its folder to storage.dataset_roots"
            )


def _is_bucket_root(root: str) -> bool:
    """Whether a configured root is a bucket. It is kept as a path, which makes one slash of two."""
    scheme, found, _ = root.partition(":/")
    return bool(found) and scheme in BUCKETS


def mtime_ns(status: os.stat_result) -> int:
    """Return a file's modification time, int64 nanoseconds since 1970: the nearest of them beyond the years 1677 to 2262."""
    return min(max(status.st_mtime_ns, -(2**63)), 2**63 - 1)


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
        """Args: base: path of the folder, or `s3://BUCKET/PREFIX`."""
        self.base = base

    @abstractmethod
    def check_roots(self, roots: Roots) -> None:
        """Check where the folder lies, whether it exists or not. Raises SecurityError if that is outside the roots."""

    @abstractmethod
    def check(self, roots: Roots) -> None:
        """Check that the folder can be read. Raises: NotFoundError: there is none. SecurityError: it lies outside the roots."""

    @abstractmethod
    def list_files(self, names: Names, roots: Roots, known: FileTable, *, complete: bool = True) -> Listing:
        """List the files that hold samples by their names, in the order in which they are to be indexed, but for those that `known` has as they are.

        Args: known: indexed files; of several links to one folder, the one in their paths is followed. complete: look at everything; otherwise
        what is known not to have changed since the last listing against the same `known` may be left out.
        Raises: as `check`.
        """

    def is_quiet(self, known: FileTable) -> bool:
        """Whether it is known, without a look at the files, that the next incomplete listing against `known` would be empty."""
        return False

    @abstractmethod
    def status(self, path: str) -> FileStatus | None:
        """The status of the file at a full path; None if there is none."""

    @abstractmethod
    def version(self, seen: SeenFile) -> FileStatus | None:
        """The version of a file now; None if it is gone, or is known not to be the one that was listed. Raises: DataError, UnavailableError."""

    @abstractmethod
    def read_error(self, path: str, error: OSError) -> ModynError:
        """The error that an OSError in reading means: UnavailableError if trying again may help, else DataError of the file."""

    @abstractmethod
    def open(
        self, path: str, indexed: IndexedVersion | None = None, ranges: Sequence[tuple[int, int]] = ()
    ) -> pa.NativeFile | ObjectFile:
        """Open the file at a full path for random access.

        Args: indexed: of an object, the one version that may be read. ranges: [start, stop) that will be read, which may be fetched together.
        Raises: OSError; FileChangedError, also while it is read: an object is of another version.
        """

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


def changed(path: str, offset: int, place: str) -> FileChangedError:
    """The error of a file that changed since it was indexed.

    Args: path: full path. offset: as in the index. place: of a sample that was asked for, for the message.
    """
    error = FileChangedError(
        f"file changed: {path} ({place} wanted) is not as it was when it was indexed: it was replaced, written again or touched since; "
        f"ingest its dataset, which looks at it again"
    )
    error.path, error.offset = path, offset
    return error
