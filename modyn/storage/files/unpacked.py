"""Unpacked copies of compressed files, which storage keeps next to a dataset's index.

Samples are read at any position of a file, but a compressed file can only be read from its beginning. A copy is made before a file is indexed and
never changes. The path of a copy is computed from the path, size and tail with which the file was indexed (`_core.unpacked_copy`). So every reader of
the index finds the copy, and a file with another content gets another copy.
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from modyn import _core
from modyn.atomic_write import make_folder, sync
from modyn.errors import CorruptStateError, DataError, UnavailableError
from modyn.storage.files.file_system import FileSystem, IndexedVersion, UnusableNowError, without_packed_ending

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_CHECKSUM = ".checksum"
"""Name of the file with a copy's checksum, next to the copy."""
_PART_BYTES = 1 << 20
"""Number of bytes that are unpacked at once."""
_FREE_BYTES = 1 << 30
"""Number of bytes that must stay free on the disk of the copies."""
_KEPT_S = 60.0
"""Seconds for which an outdated copy of a file is kept, because a reader may be about to open the copy."""


class NotUnpackedError(DataError):
    """The current content of a compressed file cannot be unpacked. The indexed samples of the file are not affected."""


def packed_kind(path: str) -> str | None:
    """Return the compression of a file, by its name; None: the name has no ending of a known compression."""
    return _KINDS.get(path[len(without_packed_ending(path)) :])


def same_unpacked(path: str) -> set[str]:
    """Return the names of other files that may contain the same rows: the unpacked file, and files with another compression.

    >>> sorted(same_unpacked("a.csv.gz"))
    ['a.csv', 'a.csv.bz2', 'a.csv.zst']
    """
    stem = without_packed_ending(path)
    return {stem, *(stem + ending for ending in _KINDS)} - {path}


class UnpackedCopies:
    """The copies of one dataset. Several threads of one process may make copies at once."""

    def __init__(self, folder: Path) -> None:
        """Args: folder: the folder UNPACKED in the folder of the dataset's index; created with the first copy."""
        self._folder = folder.absolute()
        self._lock = threading.Lock()
        """Protects `_num_bytes` and `_unfinished`. The lock is also held while an unfinished copy becomes a finished copy."""
        self._num_bytes: int | None = None
        """Size of all finished copies in bytes; None: the copies were not counted yet."""
        self._unfinished: dict[Path, int] = {}
        """Folders of unfinished copies, oldest first, and the number of bytes written so far."""
        self._outdated: dict[str, float] = {}
        """Folders of copies that no file needs any more, and the time on the monotonic clock since which the copy is not needed."""

    def place(self, path: str, size: int, tail: int) -> str:
        """Return the path of a file's copy, which may not exist. Args: see `_core.unpacked_copy`."""
        return _core.unpacked_copy(str(self._folder), path, size, tail)

    def make(self, folder: FileSystem, path: str, version: IndexedVersion, place: str, most_bytes: int) -> None:
        """Unpack a file to `place`, unless the copy exists.

        Args: path: full path. version: version of the file; the copy gets its modification time. most_bytes: largest size of all copies together.
        Raises: NotUnpackedError: the file is damaged, truncated or too large. UnusableNowError: there is no space now, possibly because of copies in
        progress. Other errors: the file cannot be read.
        """
        if os.path.exists(place):
            return
        import pyarrow as pa  # Imported here, because the import is slow, and most datasets do not need pyarrow.

        kind = packed_kind(path)
        assert kind is not None, "only compressed files are unpacked"
        # A folder whose name begins with a dot is an unfinished copy. The rename below makes it a finished copy.
        part = self._folder / f".{uuid.uuid4().hex}"
        target = part / os.path.basename(place)
        with self._lock:
            self._unfinished[part] = 0
        try:
            with folder.reading(path), folder.open(path, None if folder.appends else version) as source:
                with self._writing(path):
                    make_folder(self._folder, 0o700)
                    part.mkdir(mode=0o700)
                with open(target, "xb", opener=_private) as file, pa.CompressedInputStream(source, kind) as stream:
                    while found := _read(path, kind, stream):
                        self._add(path, part, len(found), most_bytes)
                        with self._writing(path):
                            file.write(found)
                    with self._writing(path):
                        file.flush()
                        os.fsync(file.fileno())
            with self._writing(path):
                _finish(target, version.mtime_ns)
                shutil.rmtree(os.path.dirname(place), ignore_errors=True)  # The folder of a removed copy may still exist.
                with self._lock:
                    part.rename(os.path.dirname(place))
                    # The bytes move from the unfinished to the finished copies.
                    self._num_bytes = None if self._num_bytes is None else self._num_bytes + self._unfinished[part]
                    self._unfinished[part] = 0
                sync(self._folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        finally:
            with self._lock:
                del self._unfinished[part]

    def drop(self, place: str) -> None:
        """Remove a damaged copy, if it exists."""
        shutil.rmtree(os.path.dirname(place), ignore_errors=True)
        with self._lock:
            self._num_bytes = None

    def keep_only(self, places: Set[str], tick: float) -> bool:
        """Remove copies that no file needs. Unfinished copies are removed immediately, outdated copies later. No copy may be in progress.

        Args: places: paths of the needed copies. tick: seconds of a monotonic clock. Returns: whether there are copies to remove later.
        """
        folders = {os.path.dirname(place) for place in places}
        found = [entry.path for entry in os.scandir(self._folder)] if self._folder.exists() else []
        outdated = {path: self._outdated.get(path, tick) for path in found if path not in folders}
        for path, since in list(outdated.items()):
            if os.path.basename(path).startswith(".") or tick - since >= _KEPT_S:
                shutil.rmtree(path, ignore_errors=True)
                del outdated[path]
                self._num_bytes = None
        self._outdated = outdated
        return bool(outdated)

    def _add(self, path: str, part: Path, num_bytes: int, most_bytes: int) -> None:
        with self._lock:
            # The size is unknown at first, and after copies were removed.
            if self._num_bytes is None:
                self._num_bytes = self._count_bytes()
            self._unfinished[part] += num_bytes
            own, together = (self._num_bytes + more for more in (self._unfinished[part], sum(self._unfinished.values())))
            is_oldest = next(iter(self._unfinished)) == part
        if own > most_bytes:
            raise NotUnpackedError(
                f"{path} is not unpacked: the unpacked copies of the dataset would have more than {most_bytes:,} bytes; unpack it yourself, or raise "
                "storage.unpacked_bytes in the system file"
            )
        # The oldest unfinished copy continues, so that this attempt shows whether the copy fits. The other copies are tried again later.
        if together > most_bytes and not is_oldest:
            raise UnusableNowError(
                f"{path} is not unpacked now: with the files that are unpacked at the same time, the copies of the dataset would have more than "
                f"{most_bytes:,} bytes (storage.unpacked_bytes); it is tried again"
            )
        if shutil.disk_usage(self._folder).free < _FREE_BYTES:
            raise UnusableNowError(
                f"{path} is not unpacked now: less than {_FREE_BYTES:,} bytes are free on the disk of {self._folder}; make room there"
            )

    def _count_bytes(self) -> int:
        found = 0
        for file in self._folder.glob("[!.]*/*"):  # Only finished copies: names of unfinished copies begin with a dot.
            with suppress(FileNotFoundError):
                found += file.stat().st_size
        return found

    def _writing(self, path: str) -> _Writing:
        return _Writing(path, self._folder)


class _Writing:
    """Convert an OSError in the block to an UnusableNowError: the copy cannot be written."""

    def __init__(self, path: str, folder: Path) -> None:
        self._path, self._folder = path, folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise UnusableNowError(
                f"the unpacked copy of {self._path} cannot be written to {self._folder}: {error.strerror or error}; it is tried again"
            ) from error


def check_copy(path: Path) -> None:
    """Compare a copy with its checksum.

    Args: path: folder of one copy. Raises: CorruptStateError, UnavailableError.
    """
    try:
        wanted = (path / _CHECKSUM).read_text()
        (copy,) = (file for file in path.iterdir() if file.name != _CHECKSUM)
        found = str(_core.checksum(_core.map_file(copy)))
    except (OSError, ValueError, DataError) as error:
        raise UnavailableError(f"the unpacked copy in {path} cannot be read: {error}") from error
    if found != wanted:
        raise CorruptStateError(
            f"the unpacked copy in {path} is damaged: its checksum is another; `modyn data ingest` makes it again"
        )


def _read(path: str, kind: str, stream: pa.CompressedInputStream) -> bytes:
    try:
        found: bytes = stream.read(_PART_BYTES)
        return found
    except OSError as error:
        if error.errno is not None:
            raise
        if "runcated" in str(error):
            what = "ends within its compressed data: it is cut, or still being written; it is read once it is whole"
        else:
            what = f"is damaged, or not compressed with {kind}: {error}; write it again"
        raise NotUnpackedError(f"{path} {what}") from error


def _finish(copy: Path, mtime_ns: int) -> None:
    """Write the checksum of a copy next to the copy, and set the modification time of the copy to `mtime_ns`."""
    with open(copy.parent / _CHECKSUM, "x", opener=_private) as file:
        file.write(str(_core.checksum(_core.map_file(copy))))
        file.flush()
        os.fsync(file.fileno())
    os.utime(copy, ns=(mtime_ns, mtime_ns))
    sync(copy.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
