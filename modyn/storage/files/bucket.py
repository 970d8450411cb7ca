"""Datasets in buckets of S3, Google Cloud Storage or Azure. Objects are listed, copied and read; of each object, only the listed version is read."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, ClassVar, TypeVar

from modyn.errors import DataError, ModynError, NotFoundError, SecurityError
from modyn.storage.files.bucket_store import BadKeyError, StoreLimits, bucket_error, object_error, open_store, status_of
from modyn.storage.files.bucket_url import BucketUrl, is_file_name
from modyn.storage.files.file_system import (
    FileStatus,
    FileSystem,
    IndexedVersion,
    Listing,
    NameEndings,
    Names,
    Roots,
    SeenFile,
    SeenFiles,
    UnusableNowError,
    changed,
)
from modyn.storage.files.object_file import ObjectFile, joined, parts_of
from modyn.storage.model.file_table import UNKNOWN_TAG, Comparison, FileTable

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

T = TypeVar("T")

_PAGE = 1000
"""Number of objects that are compared with the index at once. One response of a server lists this number of objects."""
_READS_AHEAD = 32
"""Largest number of running requests and unread results, for each call of `in_parallel`."""
_BYTES_AHEAD = 64 << 20
"""Largest total number of bytes of these results, unless a single result is larger."""
_REQUESTS_AT_ONCE = 16
"""Number of threads that send requests and wait for responses."""
_ETAGS = 1 << 16
"""Number of objects whose ETags are kept in memory. A request with the ETag never gets another version from the server."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Client:
    """The client of one process, and the threads that send requests."""

    pid: int
    store: ObjectStore
    requests: ThreadPoolExecutor


@dataclass(frozen=True, slots=True)
class _Listed:
    """Result of the last listing: statuses of new and changed objects and of their companions, but not of unchanged indexed objects."""

    statuses: dict[str, FileStatus]
    names: Names
    known: FileTable

    def leaves_out(self, name: str) -> bool:
        """Whether an object may exist although its status is not in `statuses`. Args: name: name relative to the folder."""
        return self.known.id_of(_sample_of(name, self.names)) is not None


class BucketFiles(FileSystem):
    """A prefix of a bucket. Full paths are `s3://BUCKET/PREFIX/NAME`, without the options of the URL. Thread-safe. After a fork, the child process
    makes its own client.
    """

    appends: ClassVar[bool] = False

    def __init__(
        self,
        base_path: str,
        limits: StoreLimits = StoreLimits(),  # noqa: B008  (frozen)
        make_store: Callable[[BucketUrl, StoreLimits], ObjectStore] = open_store,
    ) -> None:
        """Make the file system without opening a connection.

        Args: base_path: `s3://BUCKET/PREFIX?OPTION=VALUE&…`, or gs://, az://, as in `DatasetConfig.base_path`. make_store: makes the client.
        Raises: ConfigError.
        """
        self.url = BucketUrl.parse(base_path)
        super().__init__(self.url.base)
        self._limits, self._make_store = limits, make_store
        self._client: _Client | None = None
        self._listed: _Listed | None = None
        self._etags: dict[tuple[str, IndexedVersion], str] = {}

    def _of_this_process(self) -> _Client:
        client = self._client
        if client is None or client.pid != os.getpid():
            store = self._make_store(self.url, self._limits)
            # A forked child process does not have the parent's threads, so it makes new threads.
            requests = ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="bucket")
            self._client = client = _Client(os.getpid(), store, requests)
        return client

    @property
    def requests(self) -> ThreadPoolExecutor:
        """The threads that send requests."""
        return self._of_this_process().requests

    def check_roots(self, roots: Roots) -> None:
        """Raise SecurityError unless a configured root with the same options contains the prefix. The method sends no request."""
        allowed = [BucketUrl.of_root(root) for root in roots.buckets]
        if (roots.folders or roots.buckets) and not any(root.holds(self.url) for root in allowed):
            raise SecurityError(
                f"{self.url} is not below what storage may read ({', '.join(map(str, allowed)) or 'no bucket'}); add its bucket to "
                f"storage.dataset_roots, with the same options"
            )

    def check(self, roots: Roots) -> None:
        """See `FileSystem.check`. The check sends one request. Further errors: ConfigError; UnavailableError: the server does not respond."""
        self.check_roots(roots)
        with suppress(BadKeyError):  # The bucket has objects, and the listing reports the bad key.
            if next(self._pages(), []) or not self.url.prefix:
                return
            raise NotFoundError(f"there are no objects below {self.base}; check bucket and prefix, or put the first object there")

    def list_files(self, names: Names, roots: Roots, known: FileTable, *, complete: bool = True) -> Listing:
        """List the whole prefix, page by page. Only new and changed objects, and a byte for each indexed object, are kept in memory. Raises:
        NotFoundError, SecurityError, UnavailableError. BadKeyError: a bad key directly below the prefix prevents the listing of all other keys."""
        self.check_roots(roots)
        try:
            return self._compare(self._pages(), names, known, {})
        except BadKeyError:
            refused: dict[str, str] = {}
            return self._compare(self._pages_of_folders(refused), names, known, refused)

    def _compare(self, pages: Iterator[Sequence[ObjectMeta]], names: Names, known: FileTable, refused: dict[str, str]) -> Listing:
        compared, found = Comparison(known), list[SeenFile]()
        statuses: dict[str, FileStatus] = {}
        for page in pages:
            files, others = list[tuple[SeenFile, FileStatus]](), list[tuple[str, FileStatus]]()
            for meta in page:
                path = f"{self.url.kind}://{self.url.bucket}/{meta['path']}"
                name, status = path[len(self.base) + 1 :], _status_of(meta)
                if not names(path):
                    if _may_be_companion(name, names):
                        others.append((name, status))
                elif is_file_name(name):
                    files.append((SeenFile(name, status.size, status.mtime_ns, tag_of(status.tag)), status))
                else:
                    refused[name] = "the object's name is not allowed for a file; copy it to another name"
            seen = SeenFiles.columns([file for file, _ in files])
            for at in compared.differing(seen.paths, seen.sizes, seen.mtimes_ns, seen.tags).tolist():
                found.append(files[at][0])
                statuses[self.full_path(files[at][0].path)] = files[at][1]
            # An indexed object no longer needs its companion. The companion of another object may have been listed before the object.
            samples = known.ids([_sample_of(name, names) for name, _ in others]).tolist()
            statuses |= {self.full_path(name): status for (name, status), id_ in zip(others, samples, strict=True) if id_ < 0}
        self._listed = _Listed(statuses, names, known)
        return Listing(SeenFiles.of(found), refused, compared.absent())

    def _pages(self) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages of the listing of the prefix, in any order. Raises: the errors of `bucket_error`."""
        store = self._of_this_process().store
        import obstore
        from obstore.exceptions import BaseError

        try:
            yield from obstore.list(store, self.url.prefix or None, chunk_size=_PAGE)
        except (BaseError, OSError, ValueError) as error:
            raise bucket_error(error, self.url) from error

    def _pages_of_folders(self, refused: dict[str, str]) -> Iterator[Sequence[ObjectMeta]]:
        """Yield pages with one request for each folder. So a bad key prevents only the listing of its own folder, which is added to `refused`."""
        store, prefix = self._of_this_process().store, self.url.prefix
        import obstore
        from obstore.exceptions import BaseError

        folders = [prefix]
        while folders:
            folder = folders.pop()
            try:
                found = obstore.list_with_delimiter(store, folder or None)
            except (BaseError, OSError, ValueError) as error:
                reason = bucket_error(error, self.url)
                if not isinstance(reason, BadKeyError) or folder == prefix:
                    raise reason from error
                refused[folder.removeprefix(f"{prefix}/") if prefix else folder] = reason.message
                continue
            yield found["objects"]
            folders += [path.rstrip("/") for path in found["common_prefixes"]]

    def status(self, path: str) -> FileStatus | None:
        """Return the status from the last listing, or, if the listing does not contain it, from the server. One request for every object would take
        longer than a listing of all objects.
        """
        listed = self._listed
        if listed is not None and (path in listed.statuses or not listed.leaves_out(path[len(self.base) + 1 :])):
            return listed.statuses.get(path)
        meta = self._head(path)
        return None if meta is None else _status_of(meta)

    def version(self, seen: SeenFile) -> FileStatus | None:
        """Return the version with its ETag, by one request."""
        if (meta := self._head(self.full_path(seen.path))) is None:
            return None
        tag = meta["e_tag"] or ""
        if UNKNOWN_TAG not in (seen.tag, tag_of(tag)) and seen.tag != tag_of(tag):
            return None
        return FileStatus(meta["size"], written_ns(meta, seen.mtime_ns), tag)

    def _head(self, path: str) -> ObjectMeta | None:
        store = self._of_this_process().store
        import obstore
        from obstore.exceptions import BaseError

        try:
            return obstore.head(store, self._key(path))
        except FileNotFoundError:
            return None
        except (BaseError, OSError, ValueError) as error:
            raise object_error(error, path, 0) from error

    def read_error(self, path: str, error: OSError) -> ModynError:
        """Return an UnusableNowError. Errors of the server are not passed to this method: the requests convert them to errors of Modyn."""
        if error.errno == errno.ENOSPC:
            return UnusableNowError(
                f"cannot copy {path}: there is no room for it in the temporary folder; set TMPDIR to a larger one"
            )
        return UnusableNowError(f"cannot read {path} at byte 0: {error}; make the object readable for storage")

    def open(self, path: str, indexed: IndexedVersion | None = None, ranges: Sequence[tuple[int, int]] = ()) -> ObjectFile:
        """Open an object for reads of ranges, in the version `indexed`. Without `indexed`, the current version is opened, which takes a request.

        Raises: DataError, UnavailableError.
        """
        if indexed is None:
            if (meta := self._head(path)) is None:
                raise object_error(FileNotFoundError(), path, 0)
            indexed = version_of(status := _status_of(meta))
            self._remember(path, indexed, status.tag)
        of_version = partial(self._read_version, path, indexed)
        wanted = [(start, stop, parts_of(start, stop)) for start, stop in joined(ranges)]
        calls = [(end - begin, partial(of_version, begin, end)) for _, _, parts in wanted for begin, end in parts]
        # A single request is not sent in advance, because this would save no time.
        answers = in_parallel(self.requests, calls) if len(calls) > 1 else iter(())
        fetched = [(start, b"".join(next(answers) for _ in parts)) for start, _, parts in wanted if len(calls) > 1]
        return ObjectFile(of_version, indexed.size, fetched)

    def _read_version(self, path: str, indexed: IndexedVersion, start: int, stop: int) -> bytes | memoryview:
        """Read bytes [start, stop) in chunks; see `read`. Threads of `requests` must not call this method, because it waits for these threads."""
        calls = [(end - begin, partial(self.read, path, begin, end, indexed)) for begin, end in parts_of(start, stop)]
        return calls[0][1]() if len(calls) == 1 else b"".join(in_parallel(self.requests, calls))

    def read(self, path: str, start: int = 0, stop: int | None = None, indexed: IndexedVersion | None = None) -> memoryview:
        """Read bytes [start, stop) of an object with one request; without `stop`, to the end of the object. Bytes of another version than `indexed`
        are never returned: the request contains the ETag if the ETag is known, and this method compares the version of the response.

        Args: path: full path.
        Raises: FileChangedError: the object has another version. DataError, UnavailableError.
        """
        if stop is not None and stop <= start:
            return memoryview(b"")
        options: GetOptions = {} if stop is None else {"range": (start, stop)}
        if indexed is not None and (etag := self._etag(path, indexed)):
            # The server compares the ETag, so it does not send a changed object.
            options["if_match"] = etag
        store = self._of_this_process().store
        import obstore
        from obstore.exceptions import BaseError

        try:
            answer = obstore.get(store, self._key(path), options=options)
            if indexed is not None:
                if _is_another(answer.meta, indexed):
                    raise changed(path, start, f"byte {start}")
                self._remember(path, indexed, answer.meta["e_tag"] or "")
            content = memoryview(answer.bytes())
        except (BaseError, OSError, ValueError) as error:
            # Status 416: the object is shorter than the indexed version, so it has another version. The ETag was not known.
            if indexed is not None and status_of(error) == 416:
                raise changed(path, start, f"byte {start}") from error
            raise object_error(error, path, start) from error
        if stop is not None and len(content) < stop - start:
            raise DataError(
                f"{path} was cut: {stop - start} bytes wanted at byte {start}, {len(content)} are there; restore the object or delete its "
                "samples"
            )
        return content

    def copy(self, path: str, file: BinaryIO, indexed: IndexedVersion | None = None) -> None:
        """Copy one version of an object to an open local file, in chunks that are read in parallel.

        Args: path: full path. indexed: see `open`.
        Raises: OSError; further errors: see `open`.
        """
        opened = self.open(path, indexed)
        reads = [(end - begin, partial(opened.read_at, end - begin, begin)) for begin, end in parts_of(0, opened.size())]
        for part in in_parallel(self.requests, reads):
            file.write(part)

    def _key(self, path: str) -> str:
        return path[len(f"{self.url.kind}://{self.url.bucket}/") :]

    def _etag(self, path: str, indexed: IndexedVersion) -> str:
        """Return the ETag of a version for `If-Match`; empty: the ETag is not known, or it is weak."""
        etag = self._etags.get((path, indexed), "")
        if not etag and self._listed is not None and (listed := self._listed.statuses.get(path)) is not None:
            etag = listed.tag if tag_of(listed.tag) == indexed.tag else ""
        # Weak ETags never match in `If-Match`.
        if etag.startswith("W/"):
            return ""
        # Listings of Azure contain ETags without quotes.
        return etag if not etag or etag.startswith('"') else f'"{etag}"'

    def _remember(self, path: str, indexed: IndexedVersion, etag: str) -> None:
        # A full cache is emptied, which is simple and rare. Without an ETag, `read` compares the version after the request, instead of the server.
        if len(self._etags) >= _ETAGS:
            self._etags = {}
        self._etags[path, indexed] = etag


def tag_of(etag: str) -> int:
    """Return 63 bits of a hash of an ETag without its quotes; UNKNOWN_TAG if there is no ETag.

    >>> tag_of('"d41d8cd9"') == tag_of("d41d8cd9") >= 0, tag_of("")
    (True, -1)
    """
    bare = etag.removeprefix("W/").strip('"')
    if not bare:
        return UNKNOWN_TAG
    # The tag has 63 bits, so that it fits into a signed column.
    return int.from_bytes(hashlib.blake2b(bare.encode(), digest_size=8).digest(), "big") >> 1


def version_of(status: FileStatus) -> IndexedVersion:
    """Return the version of an object with the status `status`."""
    return IndexedVersion(status.size, status.mtime_ns, tag_of(status.tag))


def _status_of(meta: ObjectMeta) -> FileStatus:
    return FileStatus(meta["size"], _ns(meta["last_modified"]), meta["e_tag"] or "")


def _ns(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000


def _is_another(meta: ObjectMeta, indexed: IndexedVersion) -> bool:
    """Whether a response belongs to another version than `indexed`. If a tag is unknown, size and time in whole seconds are compared."""
    tag = tag_of(meta["e_tag"] or "")
    if UNKNOWN_TAG not in (tag, indexed.tag):
        return tag != indexed.tag
    return (meta["size"], written_ns(meta, indexed.mtime_ns)) != (indexed.size, indexed.mtime_ns)


def written_ns(meta: ObjectMeta, indexed_ns: int) -> int:
    """Return the time at which an object was written, ns since 1970. If this time is in the same second as `indexed_ns`, `indexed_ns` is returned,
    because responses to reads contain whole seconds, and listings contain fractions of seconds.

    Args: meta: metadata from a response or a listing.
    """
    found = _ns(meta["last_modified"])
    return indexed_ns if found // 10**9 == indexed_ns // 10**9 else found


def _sample_of(name: str, names: Names) -> str:
    """Return the name of the object whose companion is `name`; if `name` is not a companion, return `name` itself."""
    if isinstance(names, NameEndings) and _may_be_companion(name, names):
        return name[: len(name) - len(names.companions)] + names.samples
    return name


def _may_be_companion(name: str, names: Names) -> bool:
    return not isinstance(names, NameEndings) or bool(names.companions and name.endswith(names.companions))


def in_parallel(pool: ThreadPoolExecutor, calls: Sequence[tuple[int, Callable[[], T]]]) -> Iterator[T]:
    """Yield the results of `calls` in order. Calls run before the consumer needs their results, up to a largest number of calls and of bytes.

    Args: calls: pairs of the size of the result in bytes and the call. A call must not use `in_parallel` itself, because it would wait for its own
    thread.
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
        # Running calls continue in shared threads until their end; their results are dropped.
        for _, future in running:
            future.cancel()
