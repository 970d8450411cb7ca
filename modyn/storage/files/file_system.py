"""File systems of datasets: the interface through which ingestion and readers use the folder in a dataset's `base_path`, and the records of
listings.
"""

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
from modyn.config.system_sections.buckets import BUCKETS
from modyn.errors import ConfigError, DataError, ModynError, SecurityError
from modyn.records import Int64Array
from modyn.storage.model.file_table import UNKNOWN_TAG, Comparison, FileTable

if TYPE_CHECKING:
    import pyarrow as pa

    from modyn.storage.files.object_file import ObjectFile

PACKED_ENDINGS = (".gz", ".zst", ".bz2")
"""Endings of compressed files that are read."""
UNPACKED = "unpacked"
"""Folder of the unpacked copies of compressed files, inside the folder of a dataset's index."""
UNKNOWN = int(np.iinfo(np.int64).min)
"""Value of `SeenFiles.changed_ns` if the last change of a file or of its companion is not known from the listing."""


class UnusableNowError(DataError):
    """A file could not be read, for a reason unrelated to its content. Ingestion tries the file again even if its size and time stay the same."""


class FailedAloneError(UnusableNowError):
    """A file made its process hang or end when the file was indexed alone. From then on the file is indexed alone, after the other files."""


UNRELATED_TO_CONTENT = (UnusableNowError, FileAccessError)
"""Errors of Python and of C++ after which the content of a file is still unknown."""


@dataclass(frozen=True, slots=True)
class NameEndings:
    """Endings of the names of a dataset's files. `samples`: ending of files with samples. `companions`: ending of the companion, a file that must
    exist next to each file with samples, and has the same name except for the ending; empty: no companion is needed."""

    samples: str
    companions: str = ""
    packed: bool = False
    """Whether files with samples may be compressed. The name of a compressed file has .gz, .zst or .bz2 after `samples`. Then no companions exist."""

    def __post_init__(self) -> None:
        for ending in (self.samples, self.companions):
            if "/" in ending or ".." in ending or "\0" in ending:
                raise ConfigError(
                    f"{ending!r} is not an ending of a file's name: it holds a '/', a '..' or a NUL, and could lead into another folder; write "
                    "the end of the name alone, such as '.label'"
                )

    def __call__(self, path: str) -> bool:
        """Whether a file of this name contains samples."""
        return path.endswith(self.samples) or (self.packed and without_packed_ending(path).endswith(self.samples))

    def companions_of(self, path: str) -> tuple[str, ...]:
        """Return the paths of the files that must exist next to `path`: one or none."""
        return (path[: len(path) - len(self.samples)] + self.companions,) if self.companions else ()


def without_packed_ending(path: str) -> str:
    """Return the name of a compressed file without the ending of the compression.

    >>> without_packed_ending("a.csv.gz"), without_packed_ending("a.csv")
    ('a.csv', 'a.csv')
    """
    return next((path.removesuffix(ending) for ending in PACKED_ENDINGS if path.endswith(ending)), path)


Names = NameEndings | Callable[[str], bool]
"""The rule for names of files with samples: endings, or a predicate on the full path. With endings, a folder is scanned without a call for each file.
"""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file in the folder when it was listed. `path` is relative to the folder. tag: tag of an object, see `FileRow.tail`."""

    path: str
    size: int
    mtime_ns: int
    tag: int = UNKNOWN_TAG


@dataclass(frozen=True, slots=True)
class IndexedVersion:
    """The version of a file whose samples are indexed: bytes, ns since 1970, and `FileRow.tail`, which identifies an object."""

    size: int
    mtime_ns: int
    tag: int = UNKNOWN_TAG

    @staticmethod
    def of(paths: PathTable, file_id: int) -> IndexedVersion | None:
        """Return the published version of a file; None if no version is published."""
        stamp = paths.stamp(file_id)
        return None if stamp is None else IndexedVersion(*stamp, paths.tail(file_id))


@dataclass(frozen=True, slots=True, eq=False)
class SeenFiles:
    """Files in the order of indexing: modification time, then path. The record has columns instead of objects, because there may be millions of
    files. A file takes about 150 bytes.

    sizes: int64 bytes. mtimes_ns: int64.
    changed_ns: int64, the last change of the file and of its companion; UNKNOWN if the companion is missing, or was not listed.
    tags: int64, as `SeenFile.tag`; None: no file has a tag.
    """

    paths: list[str]
    sizes: Int64Array
    mtimes_ns: Int64Array
    changed_ns: Int64Array
    tags: Int64Array | None = None

    @staticmethod
    def of(files: Iterable[SeenFile]) -> SeenFiles:
        """Make the record from `files` in any order; `changed_ns` is UNKNOWN."""
        return SeenFiles.columns(list(files))._in_order()

    @staticmethod
    def columns(listed: Sequence[SeenFile]) -> SeenFiles:
        """Make the record from `listed` in the given order."""
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
        """Return the files at `positions`, int64 (m,), in that order."""
        paths = [self.paths[position] for position in positions.tolist()]
        tags = None if self.tags is None else self.tags[positions]
        return SeenFiles(paths, self.sizes[positions], self.mtimes_ns[positions], self.changed_ns[positions], tags)

    def merged_with(self, others: SeenFiles) -> SeenFiles:
        """Merge two records without tags in the order of indexing."""
        mine, theirs = ((files.sizes, files.mtimes_ns, files.changed_ns) for files in (self, others))
        return SeenFiles(self.paths + others.paths, *map(np.concatenate, zip(mine, theirs, strict=True)))._in_order()

    def _in_order(self) -> SeenFiles:
        times = self.mtimes_ns.tolist()
        # Paths are compared as bytes, because names of files need not be valid UTF-8.
        order = sorted(range(len(self)), key=lambda i: (times[i], os.fsencode(self.paths[i])))
        return self.take(np.array(order, np.int64))


@dataclass(frozen=True, slots=True)
class Listing:
    """Result of listing a folder. files: files with samples, except unchanged indexed files. refused: relative path → reason why the file was not
    examined. absent: ids of indexed files that are missing, int64, ascending.
    """

    files: SeenFiles
    refused: dict[str, str]
    absent: Int64Array

    @staticmethod
    def compared(files: SeenFiles, refused: dict[str, str], known: FileTable) -> Listing:
        """Compare the folder's files with the index. Args: files: all files that have samples. known: the indexed files. Returns: the differences."""
        found = Comparison(known)
        differing = found.differing(files.paths, files.sizes, files.mtimes_ns)
        return Listing(files.take(differing), refused, found.absent())


@dataclass(frozen=True)
class Roots:
    """Folders and buckets (`s3:/…`, as a path) that may contain data; empty: any folder or bucket may contain data."""

    folders: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()

    @staticmethod
    def of(paths: Iterable[Path]) -> Roots:
        """Divide configured paths into folders and buckets, and resolve links of folders."""
        texts = [str(path) for path in paths]
        folders = tuple(os.path.realpath(text) for text in texts if not _is_bucket_root(text))
        return Roots(folders, tuple(text for text in texts if _is_bucket_root(text)))

    def check(self, path: str) -> None:
        """Check a path of this machine. Raises SecurityError if `path`, with symbolic links followed, is outside all roots."""
        # Links are followed before the comparison, because a link inside a root may point to a path outside.
        real = os.path.realpath(path)
        if (self.folders or self.buckets) and not any(os.path.commonpath([real, root]) == root for root in self.folders):
            raise SecurityError(
                f"{path} is outside the folders that storage may read ({', '.join(self.folders)}); "
                f"move it there or add its folder to storage.dataset_roots"
            )


def _is_bucket_root(root: str) -> bool:
    """Whether a configured root is a bucket. The configuration stores the URL as a path, with one slash instead of two."""
    scheme, found, _ = root.partition(":/")
    return bool(found) and scheme in BUCKETS


def mtime_ns(status: os.stat_result) -> int:
    """Return a file's modification time, int64 nanoseconds since 1970. A time outside of the years 1677 to 2262 becomes the nearest int64."""
    return min(max(status.st_mtime_ns, -(2**63)), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class FileStatus:
    """Bytes of a file, and its last change in ns since 1970.

    tag: set only by `FileSystem.version`. The tag differs between two files of one name. If the file system can detect it, the tag differs between
    two contents of one file too.
    """

    size: int
    mtime_ns: int
    tag: str = ""


class FileSystem(ABC):
    """The folder of one dataset. A full path is `base` joined with the path in the folder. Formats and messages use full paths."""

    appends: ClassVar[bool] = True
    """Whether a file can become longer without being replaced."""

    def __init__(self, base: str) -> None:
        """Args: base: path of the folder, or `s3://BUCKET/PREFIX`."""
        self.base = base

    @abstractmethod
    def check_roots(self, roots: Roots) -> None:
        """Check the path of the folder, which need not exist. Raises SecurityError if the path is outside the roots."""

    @abstractmethod
    def check(self, roots: Roots) -> None:
        """Check that the folder can be read. Raises: NotFoundError: there is no folder. SecurityError: the folder is outside the roots."""

    @abstractmethod
    def list_files(self, names: Names, roots: Roots, known: FileTable, *, complete: bool = True) -> Listing:
        """List the files with samples, according to `names`, in the order of indexing, without unchanged files of `known`.

        Args: known: indexed files. If several links lead to one folder, the paths of `known` determine which link is followed. complete: whether to
        examine the whole folder. If not, files that have not changed since the last listing with the same `known` may be left out.
        Raises: the errors of `check`.
        """

    def is_quiet(self, known: FileTable) -> bool:
        """Whether the next incomplete listing against `known` would certainly be empty. The check reads no file."""
        return False

    @abstractmethod
    def status(self, path: str) -> FileStatus | None:
        """Return the status of the file at a full path; None if there is no file."""

    @abstractmethod
    def version(self, seen: SeenFile) -> FileStatus | None:
        """Return the current version of a file; None if the file is missing or certainly differs from `seen`. Raises: DataError, UnavailableError."""

    @abstractmethod
    def read_error(self, path: str, error: OSError) -> ModynError:
        """Convert an OSError of a read. The result is an UnavailableError if a retry may help, else a DataError of the file."""

    @abstractmethod
    def open(
        self, path: str, indexed: IndexedVersion | None = None, ranges: Sequence[tuple[int, int]] = ()
    ) -> pa.NativeFile | ObjectFile:
        """Open the file at a full path for random access.

        Args: indexed: the only version of an object that may be read. ranges: [start, stop) of later reads, which may be fetched together. Raises:
        OSError; FileChangedError, also during reads: the object has another version.
        """

    def stamp(self, path: str) -> FileStatus | None:
        """Return a value that differs after a change of the file; None if a request would be needed for the value."""
        return None

    def full_path(self, path: str) -> str:
        """Return `path` in the folder, joined with `base`."""
        return os.path.join(self.base, path) if path else self.base

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Convert an OSError in the block with `read_error`."""
        try:
            yield
        except OSError as error:
            raise self.read_error(path, error) from error


def changed(path: str, offset: int, place: str) -> FileChangedError:
    """Return the error for a file that changed since it was indexed.

    Args: path: full path. offset: offset of the requested sample in the index. place: position of the sample, as text for the message.
    """
    error = FileChangedError(
        f"file changed: {path} ({place} wanted) is not as it was when it was indexed: it was replaced, written again or touched since; "
        f"ingest its dataset, which looks at it again"
    )
    error.path, error.offset = path, offset
    return error
