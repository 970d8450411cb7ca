"""Datasets in S3 buckets, or on servers with the same interface: listing, copying and opening objects, and what their errors mean."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property, partial
from typing import BinaryIO, ClassVar, TypeVar

import pyarrow as pa
from pyarrow import fs

from modyn.errors import DataError, ModynError, NotFoundError, SecurityError, UnavailableError
from modyn.storage.files.file_system import (
    FileStatus,
    FileSystem,
    Listing,
    Names,
    Roots,
    SeenFile,
    SeenFiles,
    UnusableNowError,
)
from modyn.storage.files.s3_url import S3Url
from modyn.storage.model.file_table import FileTable

T = TypeVar("T")

PART_BYTES = 8 << 20
"""Most bytes of one request, unless a single sample is larger."""
_READS_AHEAD = 32
"""Most requests that are under way or whose answers wait to be taken, for each call of `in_parallel`."""
_BYTES_AHEAD = 64 << 20
"""Most bytes of their answers, unless a single one is larger."""
_REQUESTS_AT_ONCE = 16
_CONNECT_S, _ANSWER_S, _ATTEMPTS = 10.0, 60.0, 4

_OUTAGES = (
    "NETWORK_CONNECTION",
    "SLOW_DOWN",
    "SERVICE_UNAVAILABLE",
    "INTERNAL_FAILURE",
    "THROTTLING",
    "REQUEST_TIMEOUT",
    "curlCode",
)
"""Words in errors of the S3 client that concern the server and not the object."""


class S3Files(FileSystem):
    """A prefix of a bucket. Full paths are `s3://BUCKET/PREFIX/NAME`, without the options of the URL. Thread-safe."""

    appends: ClassVar[bool] = False

    def __init__(self, base_path: str) -> None:
        """Opens no connection.

        Args: base_path: `s3://BUCKET/PREFIX?OPTION=VALUE&…`, as in `DatasetConfig.base_path`.
        Raises: ConfigError.
        """
        self.url = S3Url.parse(base_path)
        super().__init__(f"s3://{self.url.folder}")
        self._listed: dict[str, FileStatus] | None = None

    @cached_property
    def client(self) -> fs.S3FileSystem:
        """Arrow's client of the server, made at the first use."""
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
        """Raise SecurityError unless a configured root holds the prefix, with the same options. Asks no server."""
        # A root is kept as a path, which makes one slash of two.
        allowed = [S3Url.parse(f"s3://{root[4:]}") for root in roots.buckets]
        if (roots.folders or roots.buckets) and not any(root.holds(self.url) for root in allowed):
            raise SecurityError(
                f"{self.url} is not below what storage may read ({', '.join(map(str, allowed)) or 'no bucket'}); add its bucket to "
                f"storage.dataset_roots, with the same options"
            )

    def check(self, roots: Roots) -> None:
        """As `FileSystem.check`, with one request. Raises UnavailableError if the server does not answer or refuses."""
        self.check_roots(roots)
        with _reachable(self.base):
            found = self.client.get_file_info(self.url.folder)
        if found.type == fs.FileType.NotFound:
            raise NotFoundError(f"there are no objects below {self.base}; check bucket and prefix, or put the first object there")

    def list_files(self, names: Names, roots: Roots, known: FileTable, *, complete: bool = True) -> Listing:
        """List the prefix, all of it, for `status` too. Raises: NotFoundError, SecurityError, UnavailableError."""
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
                if not names(path):
                    continue
                if is_file_name(name):
                    files.append(SeenFile(name, info.size, info.mtime_ns))
                else:
                    refused[name] = "the object's name is none that a file may have; copy it to another name"
        self._listed = listed
        return Listing.compared(SeenFiles.of(files), refused, known)

    def status(self, path: str) -> FileStatus | None:
        """The status in the last listing: a request for each object would take longer than listing all."""
        if self._listed is not None:
            return self._listed.get(path)
        with _reachable(path):
            info = self.client.get_file_info(path.removeprefix("s3://"))
        return FileStatus(info.size, info.mtime_ns) if info.type == fs.FileType.File else None

    def version(self, seen: SeenFile) -> FileStatus | None:
        """The version is named by the ETag, and the version id in buckets that have them: one request."""
        path = self.full_path(seen.path)
        with self.reading(path), suppress(FileNotFoundError), self.open(path) as file:
            tags = {str(name): str(value) for name, value in file.metadata().items()}
            tag = tags.get("ETag", "") + tags.get("VersionId", "")
            return FileStatus(int(file.size()), written_ns(file, seen.mtime_ns), tag)
        return None

    def read_error(self, path: str, error: OSError) -> ModynError:
        """As `unreadable_object`: UnavailableError where the server is at fault, else DataError of the object."""
        return unreadable_object(path, 0, error)

    def open(self, path: str) -> pa.NativeFile:
        """Open an object for reads of ranges; asks the server for its size. Raises: OSError."""
        return self.client.open_input_file(path.removeprefix("s3://"))

    def read(self, path: str) -> bytes:
        """Read a whole small object.

        Args: path: full path.
        Raises: OSError.
        """
        with self.open(path) as file:
            content: bytes = file.read()
            return content

    def copy(self, path: str, file: BinaryIO) -> None:
        """Copy an object to an open local file, in parts that are read in parallel.

        Args: path: full path.
        Raises: OSError.
        """
        with self.open(path) as source:
            size = source.size()
            parts = [(min(PART_BYTES, size - at), at) for at in range(0, size, PART_BYTES)]
            reads = [(num_bytes, partial(source.read_at, num_bytes, at)) for num_bytes, at in parts]
            for part in in_parallel(self.requests, reads):
                file.write(part)


def is_file_name(name: str) -> bool:
    """Whether the name of an object, with the slashes in it, may be that of a file below a folder: keys may hold anything."""
    return all(part not in {"", ".", ".."} and "\0" not in part for part in name.split("/"))


def in_parallel(pool: ThreadPoolExecutor, calls: Sequence[tuple[int, Callable[[], T]]]) -> Iterator[T]:
    """Yield the results of `calls` in order, running a bounded number of calls and bytes ahead of the consumer.

    Args: calls: bytes of the result, and the call. A call must not use `in_parallel` itself: it would wait for its own thread.
    """
    running: deque[tuple[int, Future[T]]] = deque()
    ahead = 0
    try:
        for size, call in calls:
            while running and (len(running) >= _READS_AHEAD or ahead + size > _BYTES_AHEAD):
                ahead -= running[0][0]
                yield running.popleft()[1].result()
            running.append((size, pool.submit(call)))
            ahead += size
        while running:
            yield running.popleft()[1].result()
    finally:
        # Calls that have begun end by themselves, in threads that others use as well; their results are dropped.
        for _, future in running:
            future.cancel()


def written_ns(opened: pa.NativeFile, indexed_ns: int) -> int:
    """When an open object was written, ns since 1970; `indexed_ns` if that is the same second: servers answer in whole seconds, or not at all."""
    text = {str(name): value for name, value in opened.metadata().items()}.get("Last-Modified")
    if text is None:
        return indexed_ns
    seconds = int(datetime.fromisoformat(text.decode() if isinstance(text, bytes) else text).timestamp())
    return indexed_ns if seconds == indexed_ns // 10**9 else seconds * 10**9


def unreadable_object(path: str, offset: int, error: OSError) -> ModynError:
    """The error that an OSError on an object means: DataError for the object, UnavailableError for the server.

    Args: path: full path. offset: first byte of what was to be read.
    """
    if isinstance(error, FileNotFoundError):
        return DataError(f"cannot read {path} at byte {offset}: there is no such object; put it back or delete its samples")
    if error.errno == errno.ENOSPC:
        return UnusableNowError(
            f"cannot copy {path}: there is no room for it in the temporary folder; set TMPDIR to a larger one"
        )
    if any(word in str(error) for word in _OUTAGES):
        return UnavailableError(f"cannot read {path} at byte {offset}: {error}")
    return UnusableNowError(f"cannot read {path} at byte {offset}: {error}; make the object readable for storage")


@contextmanager
def _reachable(path: str) -> Iterator[None]:
    """A context in which an OSError concerns the server and not one object."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} cannot be read: {error}; create the bucket or correct base_path") from error
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error}; check network, region, endpoint and credentials") from error
