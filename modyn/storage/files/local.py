"""Folders on this machine, and the choice of a dataset's file system."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modyn import _core
from modyn.config.system_sections.buckets import is_bucket
from modyn.errors import DataError, NotFoundError, SecurityError
from modyn.records import Int64Array
from modyn.storage.files.file_system import (
    UNKNOWN,
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
    mtime_ns,
)
from modyn.storage.model.file_table import Comparison, FileTable

if TYPE_CHECKING:
    import pyarrow as pa

_SCAN_THREADS = 4
"""Number of threads that read the status of files. The threads wait for the disk, so a few threads help on any number of cores."""


_FILES_AT_ONCE = 1 << 13
"""Number of files that one call passes from the core to Python. The call holds the GIL."""
COMPLETE_EVERY_S = 600.0
"""Longest time in seconds between complete listings. The listings between them examine only files that the kernel reports as changed. The kernel
reports neither writes through memory maps nor a new hard link in another folder."""


@dataclass(slots=True)
class _Watched:
    """State from which the next listing continues. watch: None: the folder cannot be watched. until: time on the monotonic clock until which the
    state is valid. unsettled: paths that differed from the index in the last listing; the next listing examines these paths again."""

    watch: _core.FolderWatch | None
    known: FileTable
    state: tuple[int, int, bytes]
    until: float
    unsettled: set[str] = field(default_factory=set)

    def continues(self, known: FileTable, state: tuple[int, int, bytes]) -> bool:
        return self.known is known and self.state == state and time.monotonic() < self.until


class LocalFiles(FileSystem):
    """A folder that this machine mounts."""

    def __init__(self, base: str, roots: Roots = Roots()) -> None:  # noqa: B008  (frozen)
        """Args: base: path of the folder. roots: `open` opens only files in these folders."""
        super().__init__(base)
        self._roots = roots
        self._watched: _Watched | None = None

    def check_roots(self, roots: Roots) -> None:
        """Raise SecurityError if the folder, with symbolic links followed, is outside the roots."""
        roots.check(self.base)

    def check(self, roots: Roots) -> None:
        """See `FileSystem.check`. Raises NotFoundError also if the path is not a folder."""
        self.check_roots(roots)
        try:
            status = os.stat(self.base)
        except OSError as error:
            raise NotFoundError(
                f"the dataset's folder {self.base} cannot be read: {error.strerror}; create it or mount it"
            ) from error
        if not stat.S_ISDIR(status.st_mode):
            raise NotFoundError(f"the dataset's base_path {self.base} is not a folder; give the folder that holds its files")

    def list_files(self, names: Names, roots: Roots, known: FileTable, *, complete: bool = True) -> Listing:
        """See `FileSystem.list_files`. Symbolic links are followed within the roots. If several links lead to one folder, the link in the paths of
        `known` is followed, or else the first link by name. If `complete` is false and the kernel can report changes, only files that the kernel
        reports as changed are examined."""
        self.check(roots)
        # A rule in Python cannot be applied during the scan, so all files are listed and then filtered.
        if not isinstance(names, NameEndings):
            found, refused, _ = self._list_all(NameEndings(""), names, roots, FileTable())
            held = [i for i, path in enumerate(found.paths) if names(self.full_path(path))]
            return Listing.compared(
                replace(found.take(np.array(held, np.int64)), changed_ns=np.full(len(held), UNKNOWN)), refused, known
            )
        watched, state = self._watched, self._state()
        if watched is not None and not watched.continues(known, state):
            self._watched = watched = None
        if not complete and watched is not None and watched.watch is not None:
            if (changes := self._changes(names, known, watched.watch, watched.unsettled)) is not None:
                watched.unsettled = _unsettled(changes, known)
                return changes
            self._watched = watched = None
        if complete or watched is not None:
            listing = Listing(*self._list_all(names, names, roots, known))
        else:
            watch = _core.FolderWatch()
            listing = Listing(*self._list_all(names, names, roots, known, watch))
            until = time.monotonic() + COMPLETE_EVERY_S
            self._watched = watched = _Watched(watch if watch.holds else None, known, state, until)
        if watched is not None and watched.watch is not None:
            watched.unsettled = _unsettled(listing, known)
        return listing

    def is_quiet(self, known: FileTable) -> bool:
        """See `FileSystem.is_quiet`. The method uses the changes that the kernel reports."""
        watched = self._watched
        try:
            if watched is None or watched.watch is None or not watched.continues(known, self._state()):
                return False
        except OSError:  # The folder is missing; the next listing reports this.
            return False
        if (changes := watched.watch.take()) is None:
            self._watched = None
            return False
        watched.unsettled.update(changes)
        return not watched.unsettled

    def _state(self) -> tuple[int, int, bytes]:
        """Identify the folder, and the mounts above and below it. If this value differs, reported changes are incomplete."""
        status = os.stat(self.base)
        return status.st_dev, status.st_ino, mounts_about(self.base, Path("/proc/self/mountinfo").read_bytes())

    def _changes(self, names: NameEndings, known: FileTable, watch: _core.FolderWatch, unsettled: set[str]) -> Listing | None:
        """Return a listing of the changed files; None if the changes are not completely known."""
        if (changes := watch.take()) is None:
            return None
        scan = _core.FolderScan(self.base, names.samples, names.companions, _SCAN_THREADS, known.known, watch, names.packed)
        scan.look_at(sorted(unsettled.union(changes)))
        if scan.take_links() or not watch.holds:
            return None
        return Listing(_files_of(scan), _refused_by(scan), scan.absent(of_all=False))

    def _list_all(
        self, endings: NameEndings, names: Names, roots: Roots, known: FileTable, watch: _core.FolderWatch | None = None
    ) -> tuple[SeenFiles, dict[str, str], Int64Array]:
        """Return the fields of a listing of the whole folder. `names` selects the linked files with samples. The first link ends the watch, because
        the target of a link may be outside the folder."""
        scan = _core.FolderScan(self.base, endings.samples, endings.companions, _SCAN_THREADS, known.known, watch, endings.packed)
        refused: dict[str, str] = {}
        linked: list[SeenFile] = []
        scan.enter("")
        while links := scan.take_links():
            if watch is not None:
                watch.end()
            folders: dict[tuple[int, int], list[str]] = {}
            for link in links:
                full_path = self.full_path(link)
                try:
                    roots.check(full_path)
                    status = os.stat(full_path)
                    if stat.S_ISDIR(status.st_mode):
                        folders.setdefault((status.st_dev, status.st_ino), []).append(link)
                    elif stat.S_ISREG(status.st_mode) and names(full_path):
                        linked.append(SeenFile(link, status.st_size, mtime_ns(status)))
                except FileNotFoundError:
                    pass  # The target of the link does not exist.
                except OSError as error:
                    refused[link] = f"the link cannot be followed: {error.strerror}"
                except SecurityError as error:
                    refused[link] = error.message
            for same in folders.values():
                # Files keep their paths when another link to their folder is added.
                in_use = (link for link in same if known.known.any_below(link)) if len(same) > 1 else ()
                scan.enter(next(iter(in_use), same[0]))
        refused |= _refused_by(scan)
        files, absent = _files_of(scan), scan.absent(of_all=True)
        if linked:
            through_links = SeenFiles.of(linked)
            compared = Comparison(known)
            differing = compared.differing(through_links.paths, through_links.sizes, through_links.mtimes_ns)
            files = files.merged_with(through_links.take(differing))
            absent = np.intersect1d(absent, compared.absent())
        return files, refused, absent

    def status(self, path: str) -> FileStatus | None:
        """Return size and modification time by `stat`; None if the file is missing or inaccessible."""
        with suppress(OSError):
            status = os.stat(path)
            return FileStatus(status.st_size, mtime_ns(status))
        return None

    def version(self, seen: SeenFile) -> FileStatus | None:
        """Return the version with device and inode as tag. A file that replaces another file has another inode, even with equal size and time."""
        path = self.full_path(seen.path)
        with self.reading(path), suppress(FileNotFoundError):
            status = os.stat(path)
            return FileStatus(status.st_size, mtime_ns(status), f"{status.st_dev}:{status.st_ino}")
        return None

    def read_error(self, path: str, error: OSError) -> DataError:
        """Return an UnusableNowError, so that ingestion tries the file again even if its size and time stay the same."""
        reason = os.strerror(error.errno) if error.errno else error
        return UnusableNowError(f"cannot read {path} at byte 0: {reason}; make the file readable for the storage service")

    def open(self, path: str, indexed: IndexedVersion | None = None, ranges: Sequence[tuple[int, int]] = ()) -> pa.NativeFile:
        """Open the file for random access by Arrow. Raises: OSError. DataError: the file is not below the roots."""
        return open_native(path, self._roots.folders)

    def stamp(self, path: str) -> FileStatus | None:
        """Return the current status, which needs no request for a local file."""
        return self.status(path)


def mounts_about(base: str, mountinfo: bytes) -> bytes:
    """Return the lines of `/proc/self/mountinfo` whose mount point is the folder `base`, or is above or below it."""
    folder = os.path.join(os.path.realpath(os.fsencode(base)), b"")

    def concerns(line: bytes) -> bool:
        escaped = line.split(b" ", 5)[4]  # a space is \040
        point = os.path.join(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), escaped), b"")
        return folder.startswith(point) or point.startswith(folder)

    return b"\n".join(line for line in mountinfo.removesuffix(b"\n").split(b"\n") if concerns(line))


def _files_of(scan: _core.FolderScan) -> SeenFiles:
    """Return the files that the scan found. The files are copied from the scan in chunks, so that other threads can run between the chunks."""
    parts = [scan.take_files(_FILES_AT_ONCE)]
    while len(parts[-1][0]) == _FILES_AT_ONCE:
        parts.append(scan.take_files(_FILES_AT_ONCE))
    paths = [path for part in parts for path in part[0]]
    return SeenFiles(paths, *(np.concatenate(columns) for columns in list(zip(*parts, strict=True))[1:]))


def _refused_by(scan: _core.FolderScan) -> dict[str, str]:
    return {
        path: f"it cannot be looked at: {os.strerror(error_number)}; make it readable for the storage service"
        for path, error_number in scan.take_refused()
    }


def _unsettled(listing: Listing, known: FileTable) -> set[str]:
    return {*listing.files.paths, *listing.refused, *map(known.path, listing.absent.tolist())}


def open_native(path: str, roots: Sequence[str]) -> pa.NativeFile:
    """Open a file for Arrow. The file must be in one of the folders `roots`; if `roots` is empty, in any folder.

    Args: path: full path.
    Raises: OSError. DataError: the file is outside `roots`.
    """
    import pyarrow as pa  # Imported here, because the import is slow, and only row groups and indexing need pyarrow.

    if not roots:
        return pa.OSFile(os.fsencode(path))
    descriptor = _core.open_file(path, roots)
    try:
        return pa.OSFile(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def open_filesystem(base_path: str, roots: Roots = Roots()) -> FileSystem:  # noqa: B008  (frozen)
    """Return the file system of a `base_path`, which opens only files below `roots`. Raises: ConfigError: `base_path` is a URL that cannot be
    used.
    """
    if is_bucket(base_path):
        from modyn.storage.files.bucket import BucketFiles  # Imported here, because most processes do not need buckets.

        return BucketFiles(base_path)
    return LocalFiles(base_path, roots)


reading = LocalFiles("").reading
"""A context manager, `with reading(path)`, that converts an OSError to a DataError with the name of the file."""
