"""Copies of objects in temporary folders: formats index files of this machine, so an object is copied before it is indexed.

The folder of a killed process is removed when copies are made a minute later.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO, Self

from modyn.errors import DataError
from modyn.storage.files.bucket import BucketFiles, in_parallel, version_of
from modyn.storage.files.bucket_url import is_file_name
from modyn.storage.files.file_system import IndexedVersion, UnusableNowError

PREFIX = "modyn-bucket-"
_LOCK = "in-use"
"""A file that is locked while the folder is used: a process id would mean another process in another container that sees this folder."""
_YOUNG_S = 60.0
"""A younger folder without a lock may be one that is just being made."""


class LocalCopies:
    """A folder in `TMPDIR` with copies of objects under their own names; it is removed on exit.

    Args of its methods: path, paths: full paths of objects, `s3://BUCKET/PREFIX/NAME`.
    """

    def __init__(self, files: BucketFiles) -> None:
        """Make the folder, and remove those that killed processes left. Raises DataError if it cannot be made."""
        self._files = files
        with files.reading(files.base), ExitStack() as opened:
            _sweep_once(Path(tempfile.gettempdir()), int(time.monotonic() // _YOUNG_S))
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
            lock = opened.enter_context(open(os.path.join(folder, _LOCK), "wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # Other processes do not sweep the folder away.
            self._opened = opened.pop_all()
        self._copies = os.path.join(folder, "copies")
        self.errors: dict[str, DataError] = {}
        """Objects that have no copy, and why."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def local(self, path: str) -> str:
        """The path of the copy of `path`. Raises: DataError: it would not be in the folder."""
        name = path[len(self._files.base) + 1 :]
        if not is_file_name(name):
            raise DataError(f"{path} cannot be copied: its name is none that a file may have")
        return os.path.join(self._copies, name)

    def add(self, path: str, indexed: IndexedVersion | None = None) -> None:
        """Copy one object, of the version `indexed` if one is given. Raises: DataError, UnavailableError."""
        with self._files.reading(path), self._new_file(path) as file:
            self._files.copy(path, file, indexed)
        self._set_time(path)

    def add_small(self, paths: Sequence[str]) -> None:
        """Copy many objects at once, each of the version that was listed. One that cannot be read has no copy, and is in `errors`: a
        FileChangedError if there is another version by now."""
        versions = [None if (status := self._files.status(path)) is None else version_of(status) for path in paths]
        reads = [
            (version.size if version else 0, partial(self._read, path, version))
            for path, version in zip(paths, versions, strict=True)
        ]
        for path, content in zip(paths, in_parallel(self._files.requests, reads), strict=True):
            if content is not None:
                self._write(path, content, len(content))

    def add_empty(self, path: str) -> None:
        """Make a file of the object's size and time, without its content."""
        if (status := self._files.status(path)) is not None:
            self._write(path, b"", status.size)

    def with_objects(self, error: DataError) -> DataError:
        """The same error with the names of objects in place of those of copies."""
        kind = type(error) if isinstance(error, UnusableNowError) else DataError
        return kind(error.message.replace(self._copies, self._files.base))

    @contextmanager
    def naming_objects(self) -> Iterator[None]:
        """A context in which a DataError is raised as `with_objects`."""
        try:
            yield
        except DataError as error:
            raise self.with_objects(error) from error

    def _new_file(self, path: str) -> BinaryIO:
        place = self.local(path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        return open(place, "wb")

    def _write(self, path: str, content: bytes, size: int) -> None:
        try:
            with self._files.reading(path), self._new_file(path) as file:
                file.write(content)
                file.truncate(size)
            self._set_time(path)
        except DataError as error:
            self.errors[path] = error

    def _read(self, path: str, version: IndexedVersion | None) -> bytes | None:
        try:
            with self._files.reading(path):
                return bytes(self._files.read(path, indexed=version))
        except DataError as error:
            self.errors[path] = error
            return None

    def _set_time(self, path: str) -> None:
        if (status := self._files.status(path)) is not None:
            os.utime(self.local(path), ns=(status.mtime_ns, status.mtime_ns))


@lru_cache(maxsize=1)
def _sweep_once(place: Path, minute: int) -> None:
    """Sweep once a minute, not for every object: there may be many, and much else in the place. No folder is left over before that."""
    sweep(place)


def sweep(place: Path) -> None:
    """Remove the folders of processes that have ended.

    Args: place: the folder that holds them; what other programs have put there stays.
    """
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if _is_left_over(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left_over(folder: Path) -> bool:
    """Return whether the process that made the folder has ended. Raises OSError if that cannot be known, as for other users' folders."""
    if time.time() - folder.stat().st_mtime < _YOUNG_S:
        return False
    try:
        with open(folder / _LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass  # The process was killed before it made the lock.
    except BlockingIOError:
        return False
    return True
