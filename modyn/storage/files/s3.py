"""Datasets in S3 buckets, or on servers that speak its language: listing, indexing by way of a copy, and reading ranges of objects.

Formats read files of this machine, in Python and in C++. An object that is to be indexed is therefore copied to a temporary folder, once;
payloads are read from the bucket by ranges (`s3_ranges`), and only what is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import pyarrow as pa
from pyarrow import fs

from modyn.errors import DataError, NotFoundError, SecurityError, UnavailableError
from modyn.storage.files.file_system import FileStatus, FileSystem, FileVersion
from modyn.storage.files.listing import Listing, Roots, SeenFile, SeenFiles
from modyn.storage.files.s3_url import S3Url
from modyn.storage.files.temp_folders import scratch_folder
from modyn.storage.formats.base import (
    FileFormat,
    FormatResume,
    UnusableNowError,
    WholeFileFormat,
    fingerprint_of,
)
from modyn.storage.model.samples import IndexedFiles, IndexedSamples
from modyn.storage.read.s3_ranges import PART_BYTES, S3RangeReader, in_parallel, key_of, outage, unreadable_object, written_ns

if TYPE_CHECKING:
    from modyn._core import PathTable
    from modyn.storage.model.samples import RecordReader

_REQUESTS_AT_ONCE = 16
_CONNECT_S, _ANSWER_S, _ATTEMPTS = 10.0, 60.0, 4
_FILES_AT_ONCE = 512
"""Files that lie in the temporary folder at once when files of one sample are indexed."""


class S3Files(FileSystem):
    """A prefix of a bucket. Full paths are `s3://BUCKET/PREFIX/NAME`, without the options of the URL. Safe to share between threads."""

    appends: ClassVar[bool] = False

    def __init__(self, base_path: str) -> None:
        """Connects to nothing. Raises ConfigError."""
        self.url = S3Url.parse(base_path)
        super().__init__(f"s3://{self.url.folder}")
        self._listed: dict[str, FileStatus] | None = None

    @cached_property
    def client(self) -> fs.S3FileSystem:
        options = dict(self.url.options)
        found = {name: options[name] for name in ("endpoint_override", "region", "scheme") if name in options}
        return fs.S3FileSystem(
            **found,
            anonymous=options.get("anonymous") == "true",
            connect_timeout=_CONNECT_S,
            request_timeout=_ANSWER_S,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        )

    @cached_property
    def requests(self) -> ThreadPoolExecutor:
        """Threads that wait for the server."""
        return ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="s3")

    def check_roots(self, roots: Roots) -> None:
        # A root is kept as a path, which makes one slash of two.
        allowed = [S3Url.parse(f"s3://{root[4:]}") for root in roots.buckets]
        if (roots.folders or roots.buckets) and not any(root.holds(self.url) for root in allowed):
            raise SecurityError(
                f"{self.url} is not below what storage may read ({', '.join(map(str, allowed)) or 'no bucket'}); add its bucket to "
                f"storage.dataset_roots, with the same options"
            )

    def check(self, roots: Roots) -> None:
        self.check_roots(roots)
        with _reachable(self.base):
            found = self.client.get_file_info(self.url.folder)
        if found.type == fs.FileType.NotFound:
            raise NotFoundError(f"there are no objects below {self.base}; check bucket and prefix, or put the first object there")

    def list_files(self, file_format: FileFormat, roots: Roots, indexed: Sequence[str] = ()) -> Listing:
        self.check_roots(roots)
        files: list[SeenFile] = []
        listed: dict[str, FileStatus] = {}
        refused: dict[str, str] = {}
        with _reachable(self.base):
            for info in self.client.get_file_info(fs.FileSelector(self.url.folder, recursive=True)):
                if info.type != fs.FileType.File:
                    continue
                path = f"s3://{info.path}"
                name = path[len(self.base) + 1 :]
                listed[path] = FileStatus(info.size, info.mtime_ns)
                if not file_format.holds_samples(path):
                    continue
                if _is_file_name(name):
                    files.append(SeenFile(name, info.size, info.mtime_ns))
                else:
                    refused[name] = "the object's name is none that a file may have; copy it to another name"
        self._listed = listed
        return Listing(SeenFiles.of(files), refused)

    def status(self, path: str) -> FileStatus | None:
        """As it was listed last: asking for each object would take longer than listing all."""
        if self._listed is not None:
            return self._listed.get(path)
        with _reachable(path):
            info = self.client.get_file_info(key_of(path))
        return FileStatus(info.size, info.mtime_ns) if info.type == fs.FileType.File else None

    def version(self, seen: SeenFile) -> FileVersion | None:
        path = self.full_path(seen.path)
        with _readable(path):
            try:
                with self.open(path) as file:
                    tags = {str(name): str(value) for name, value in file.metadata().items()}
                    tag = tags.get("ETag", "") + tags.get("VersionId", "")
                    return FileVersion(int(file.size()), written_ns(file, seen.mtime_ns), tag)
            except FileNotFoundError:
                return None

    def outage(self, path: str, error: OSError) -> UnavailableError | None:
        return outage(path, 0, error)

    def open(self, path: str) -> pa.NativeFile:
        """Raises OSError."""
        return self.client.open_input_file(key_of(path))

    def stamp(self, path: str) -> FileStatus | None:
        return None

    def adapt(self, file_format: FileFormat) -> FileFormat:
        return CopiedFiles(self, file_format) if isinstance(file_format, WholeFileFormat) else CopiedFile(self, file_format)

    def range_source(self, paths: PathTable) -> RecordReader:
        return S3RangeReader(self.open, self.requests, paths)

    def read(self, path: str) -> bytes:
        """A whole small object. Raises OSError."""
        with self.open(path) as file:
            content: bytes = file.read()
            return content

    def copy(self, path: str, target: str) -> None:
        """Copies an object, in parts that are read in parallel. Raises OSError."""
        with self.open(path) as source, open(target, "wb") as file:
            size = source.size()
            parts = [(min(PART_BYTES, size - at), at) for at in range(0, size, PART_BYTES)]
            reads = [(num_bytes, partial(source.read_at, num_bytes, at)) for num_bytes, at in parts]
            for part in in_parallel(self.requests, reads):
                file.write(part)


class CopiedFile(FileFormat):
    """A format whose files are copied to this machine before they are indexed. The copies are gone when it is done."""

    def __init__(self, files: S3Files, inner: FileFormat) -> None:
        self.config, self.timestamps = inner.config, inner.timestamps
        self.can_grow = inner.can_grow  # type: ignore[misc]  # what the inner one's class says
        self._files, self._inner = files, inner

    def holds_samples(self, path: str) -> bool:
        return self._inner.holds_samples(path)

    def companions(self, path: str) -> tuple[str, ...]:
        return self._inner.companions(path)

    def row_begin(self, offset: int) -> int | None:
        return self._inner.row_begin(offset)

    def row_source(self, paths: PathTable, folder: FileSystem, cache_bytes: int) -> RecordReader | None:
        return self._inner.row_source(paths, folder, cache_bytes)

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        with _Copies(self._files) as copies:
            copies.add(path)
            for companion in self._inner.companions(path):
                copies.add(companion)
            with copies.told_as_asked():
                yield from self._inner.index(copies.local(path), resume)

    def file_size(self, path: str) -> int:
        with _readable(path), self._files.open(path) as file:
            size: int = file.size()
            return size

    def fingerprint(self, path: str, num_bytes: int) -> str:
        with _readable(path), self._files.open(path) as file:
            return fingerprint_of(file, num_bytes)


class CopiedFiles(CopiedFile, WholeFileFormat):
    """The same for a format of one sample a file: only what it looks into is copied."""

    _inner: WholeFileFormat

    def index_files(self, paths: Sequence[str]) -> IndexedFiles:
        parts = [self._index_some(paths[first : first + _FILES_AT_ONCE]) for first in range(0, len(paths), _FILES_AT_ONCE)]
        problems = {number * _FILES_AT_ONCE + i: error for number, part in enumerate(parts) for i, error in part.problems.items()}
        return IndexedFiles(
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.timestamps for part in parts]),
            problems,
        )

    def _index_some(self, paths: Sequence[str]) -> IndexedFiles:
        with _Copies(self._files) as copies:
            companions = [companion for path in paths for companion in self._inner.companions(path)]
            copies.add_small([*companions, *(paths if self._inner.reads_payloads else ())])
            for path in () if self._inner.reads_payloads else paths:
                copies.add_shape(path)
            found = self._inner.index_files([copies.local(path) for path in paths])
            problems = {i: copies.error(paths[i]) or copies.as_asked(error) for i, error in found.problems.items()}
            return replace(found, problems=problems)


class _Copies:
    """A temporary folder with copies of objects under their own names."""

    def __init__(self, files: S3Files) -> None:
        self._files = files
        with _readable(files.base):
            self._folder = scratch_folder()
        self._errors: dict[str, DataError] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._folder.cleanup()

    def local(self, path: str) -> str:
        """Where the copy lies. Raises DataError if that would not be in the folder."""
        name = path[len(self._files.base) + 1 :]
        if not _is_file_name(name):
            raise DataError(f"{path} cannot be copied: its name is none that a file may have")
        return os.path.join(self._folder.name, name)

    def add(self, path: str) -> None:
        """Raises DataError, UnavailableError."""
        with _readable(path):
            self._files.copy(path, self._place(path))
        self._set_time(path)

    def add_small(self, paths: Sequence[str]) -> None:
        """Many at once. What cannot be read is not there then."""
        sizes = [0 if (status := self._files.status(path)) is None else status.size for path in paths]
        reads = [(size, partial(self._read, path)) for size, path in zip(sizes, paths, strict=True)]
        for path, content in zip(paths, in_parallel(self._files.requests, reads), strict=True):
            if content is not None:
                self._write(path, content, len(content))

    def add_shape(self, path: str) -> None:
        """A file of the object's size and time, without its content."""
        status = self._files.status(path)
        if status is not None:
            self._write(path, b"", status.size)

    def error(self, path: str) -> DataError | None:
        """Why this object is not there."""
        return self._errors.get(path)

    def as_asked(self, error: DataError) -> DataError:
        """The same error with the names of objects in place of those of copies."""
        kind = UnusableNowError if isinstance(error, UnusableNowError) else DataError
        return kind(error.message.replace(self._folder.name, self._files.base))

    @contextmanager
    def told_as_asked(self) -> Iterator[None]:
        try:
            yield
        except DataError as error:
            raise self.as_asked(error) from error

    def _place(self, path: str) -> str:
        place = self.local(path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        return place

    def _write(self, path: str, content: bytes, size: int) -> None:
        try:
            with _readable(path), open(self._place(path), "wb") as file:
                file.write(content)
                file.truncate(size)
        except DataError as error:
            self._errors[path] = error
        else:
            self._set_time(path)

    def _read(self, path: str) -> bytes | None:
        try:
            with _readable(path):
                return self._files.read(path)
        except DataError as error:
            self._errors[path] = error
            return None

    def _set_time(self, path: str) -> None:
        status = self._files.status(path)
        if status is not None:
            os.utime(self.local(path), ns=(status.mtime_ns, status.mtime_ns))


def _is_file_name(name: str) -> bool:
    """Whether the name of an object, with the slashes in it, may be that of a file below a folder: keys may hold anything."""
    return all(part not in {"", ".", ".."} and "\0" not in part for part in name.split("/"))


@contextmanager
def _reachable(path: str) -> Iterator[None]:
    """For what needs the server and not one file of it."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise NotFoundError(f"{path} cannot be read: {error}; create the bucket or correct base_path") from error
        raise UnavailableError(f"{path} cannot be read: {error}; check network, region, endpoint and credentials") from error


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unreadable_object(path, 0, error) from error
