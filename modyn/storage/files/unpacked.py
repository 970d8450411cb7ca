"""Unpacked copies of compressed files, which storage keeps beside a dataset's index: samples are read by key anywhere in a file, and a compressed
one can be read from its beginning only.

A copy is made before a file is indexed and never changes. Its place follows from the path, size and tail with which the file was indexed
(`_core.unpacked_copy`), so that every reader of the index finds it, and another content has another copy.
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
"""Name of the file beside a copy that holds its checksum."""
_PART_BYTES = 1 << 20
_FREE_BYTES = 1 << 30
"""Bytes that stay free on the disk of storage's state."""
_KEPT_S = 60.0
"""Seconds that a copy of an older state of a file stays, because a reader may be about to open it."""


class NotUnpackedError(DataError):
    """A compressed file cannot be unpacked as it is now; what is indexed of it is not affected."""


def packed_kind(path: str) -> str | None:
    """Return the compression of a file, by its name; None: it has no known one."""
    return _KINDS.get(path[len(without_packed_ending(path)) :])


def same_unpacked(path: str) -> set[str]:
    """The other names under which a file with the same rows may lie in its folder: unpacked, or compressed with something else.

    >>> sorted(same_unpacked("a.csv.gz"))
    ['a.csv', 'a.csv.bz2', 'a.csv.zst']
    """
    stem = without_packed_ending(path)
    return {stem, *(stem + ending for ending in _KINDS)} - {path}


class UnpackedCopies:
    """The copies of one dataset. Several threads may make copies; one process at a time does."""

    def __init__(self, folder: Path) -> None:
        """Args: folder: UNPACKED in that of the dataset's index; made with the first copy."""
        self._folder = folder.absolute()
        self._lock = threading.Lock()
        """Protects `_num_bytes` and `_unfinished`, also while a copy becomes a finished one."""
        self._num_bytes: int | None = None
        """Size of all finished copies; None: they are not counted yet."""
        self._unfinished: dict[Path, int] = {}
        """Folders of copies that are being made, the oldest first, and their bytes so far."""
        self._outdated: dict[str, float] = {}
        """Places of copies that no file needs, and since when, on the monotonic clock."""

    def place(self, path: str, size: int, tail: int) -> str:
        """Where the copy of a file lies, whether it is there or not. Args: as of `_core.unpacked_copy`."""
        return _core.unpacked_copy(str(self._folder), path, size, tail)

    def make(self, folder: FileSystem, path: str, version: IndexedVersion, place: str, most_bytes: int) -> None:
        """Unpack a file to `place`; a no-op if its copy is there.

        Args: path: full path. version: of the file; its time becomes that of the copy. most_bytes: of all copies of the dataset.
        Raises: NotUnpackedError: it is damaged, cut or too large. UnusableNowError: there is no room, maybe for copies that are made meanwhile.
            What reading it raises.
        """
        if os.path.exists(place):
            return
        import pyarrow as pa  # Heavy, and most datasets do not need it.

        kind = packed_kind(path)
        assert kind is not None, "only compressed files are unpacked"
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
                shutil.rmtree(os.path.dirname(place), ignore_errors=True)  # of which the copy alone was removed
                with self._lock:
                    part.rename(os.path.dirname(place))
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
        """Remove a copy that is damaged, if it is there."""
        shutil.rmtree(os.path.dirname(place), ignore_errors=True)
        with self._lock:
            self._num_bytes = None

    def keep_only(self, places: Set[str], tick: float) -> bool:
        """Remove what no file needs: at once what was not finished, after a while what is outdated. No copy is being made meanwhile.

        Args: places: of the copies that are needed. tick: seconds of a clock that never jumps.
        Returns: whether something is left to remove.
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
            if self._num_bytes is None:
                self._num_bytes = self._counted()
            self._unfinished[part] += num_bytes
            own, together = (self._num_bytes + more for more in (self._unfinished[part], sum(self._unfinished.values())))
            is_oldest = next(iter(self._unfinished)) == part
        if own > most_bytes:
            raise NotUnpackedError(
                f"{path} is not unpacked: the unpacked copies of the dataset would have more than {most_bytes:,} bytes; unpack it yourself, or raise "
                "storage.unpacked_bytes in the system file"
            )
        if together > most_bytes and not is_oldest:  # of which it is known in this attempt whether it fits
            raise UnusableNowError(
                f"{path} is not unpacked now: with the files that are unpacked at the same time, the copies of the dataset would have more than "
                f"{most_bytes:,} bytes (storage.unpacked_bytes); it is tried again"
            )
        if shutil.disk_usage(self._folder).free < _FREE_BYTES:
            raise UnusableNowError(
                f"{path} is not unpacked now: less than {_FREE_BYTES:,} bytes are free where {self._folder} lies; make room there"
            )

    def _counted(self) -> int:
        found = 0
        for file in self._folder.glob("[!.]*/*"):  # of finished ones
            with suppress(FileNotFoundError):
                found += file.stat().st_size
        return found

    def _writing(self, path: str) -> _Writing:
        return _Writing(path, self._folder)


class _Writing:
    """Turn an OSError within the block into the error that the copy cannot be written."""

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
    """Write the checksum of a copy beside it, and give it the time of its file."""
    with open(copy.parent / _CHECKSUM, "x", opener=_private) as file:
        file.write(str(_core.checksum(_core.map_file(copy))))
        file.flush()
        os.fsync(file.fileno())
    os.utime(copy, ns=(mtime_ns, mtime_ns))
    sync(copy.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
