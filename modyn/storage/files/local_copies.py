"""Copies of objects in temporary folders. Formats index files of this machine, so an object is copied before it is indexed.

The folder of a killed process is removed when another process makes copies at least a minute later.
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
"""Name of a file that is locked while the folder is in use. A process id would not identify the owner of the folder, because a process in another
container that shares `TMPDIR` may have the same id."""
_YOUNG_S = 60.0
"""Age in seconds below which a folder without a lock may still be incomplete."""


class LocalCopies:
    """A folder in `TMPDIR` with copies of objects under their own names. The folder is removed on exit.

    Args of all methods: path, paths: full paths of objects, `s3://BUCKET/PREFIX/NAME`.
    """

    def __init__(self, files: BucketFiles) -> None:
        """Make the folder, and remove folders that killed processes left. Raises DataError if the folder cannot be made."""
        self._files = files
        with files.reading(files.base), ExitStack() as opened:
            _sweep_once(Path(tempfile.gettempdir()), int(time.monotonic() // _YOUNG_S))
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
            lock = opened.enter_context(open(os.path.join(folder, _LOCK), "wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # The lock prevents other processes from removing the folder.
            self._opened = opened.pop_all()
        self._copies = os.path.join(folder, "copies")
        self.errors: dict[str, DataError] = {}
        """Errors of the objects that could not be copied, by path."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def local(self, path: str) -> str:
        """Return the path of the copy of `path`. Raises: DataError: the copy would not be in the folder."""
        name = path[len(self._files.base) + 1 :]
        if not is_file_name(name):
            raise DataError(f"{path} cannot be copied: its name is not allowed for a file")
        return os.path.join(self._copies, name)

    def add(self, path: str, indexed: IndexedVersion | None = None) -> None:
        """Copy one object, in the version `indexed` if this is not None. Raises: DataError, UnavailableError."""
        with self._files.reading(path), self._new_file(path) as file:
            self._files.copy(path, file, indexed)
        self._set_time(path)

    def add_small(self, paths: Sequence[str]) -> None:
        """Copy many objects at once, each in the listed version. If an object cannot be copied, its error is stored in `errors`: FileChangedError if
        the object has another version."""
        versions = [None if (status := self._files.status(path)) is None else version_of(status) for path in paths]
        reads = [
            (version.size if version else 0, partial(self._read, path, version))
            for path, version in zip(paths, versions, strict=True)
        ]
        for path, content in zip(paths, in_parallel(self._files.requests, reads), strict=True):
            if content is not None:
                self._write(path, content, len(content))

    def add_empty(self, path: str) -> None:
        """Make a file with the size and time of the object, but without the content."""
        if (status := self._files.status(path)) is not None:
            self._write(path, b"", status.size)

    def with_objects(self, error: DataError) -> DataError:
        """Return the error with the paths of objects instead of the paths of copies."""
        kind = type(error) if isinstance(error, UnusableNowError) else DataError
        return kind(error.message.replace(self._copies, self._files.base))

    @contextmanager
    def naming_objects(self) -> Iterator[None]:
        """Convert a DataError in the block by `with_objects`."""
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
                # Formats read the size of the file. An extended file without content takes no disk space.
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
    """Call `sweep` at most once a minute, and not for every object, because there may be many objects, and many other files in `TMPDIR`. A folder is
    not removed in its first minute."""
    sweep(place)


def sweep(place: Path) -> None:
    """Remove the folders of processes that have ended.

    Args: place: the parent of these folders. Files of other programs in `place` stay.
    """
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if _is_left_over(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left_over(folder: Path) -> bool:
    """Return whether the process that made the folder has ended. Raises OSError if the folder cannot be read, such as a folder of another user."""
    # A young folder may not have its lock yet.
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
