"""Folders on this machine, and the choice of a dataset's file system."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from modyn import _core
from modyn.config.system import is_s3
from modyn.errors import DataError, NotFoundError, SecurityError
from modyn.storage.files.file_system import (
    UNKNOWN,
    FileStatus,
    FileSystem,
    Listing,
    NameEndings,
    Names,
    Roots,
    SeenFile,
    SeenFiles,
    UnusableNowError,
    mtime_ns,
)

if TYPE_CHECKING:
    import pyarrow as pa

_SCAN_THREADS = 4
"""Looking at files waits for the disk, so that a few threads help on any number of cores."""


class LocalFiles(FileSystem):
    """A folder that this machine mounts."""

    def __init__(self, base: str, roots: Roots = Roots()) -> None:  # noqa: B008  (frozen)
        """roots: what `open` may open."""
        super().__init__(base)
        self._roots = roots

    def check_roots(self, roots: Roots) -> None:
        """Raise SecurityError if the folder, with symbolic links followed, lies outside the roots."""
        roots.check(self.base)

    def check(self, roots: Roots) -> None:
        """As `FileSystem.check`; NotFoundError also for a path that is not a folder."""
        self.check_roots(roots)
        try:
            status = os.stat(self.base)
        except OSError as error:
            raise NotFoundError(
                f"the dataset's folder {self.base} cannot be read: {error.strerror}; create it or mount it"
            ) from error
        if not stat.S_ISDIR(status.st_mode):
            raise NotFoundError(f"the dataset's base_path {self.base} is not a folder; give the folder that holds its files")

    def list_files(self, names: Names, roots: Roots, indexed: Sequence[str] = ()) -> Listing:
        """As `FileSystem.list_files`. Symbolic links are followed where they stay under the roots; of several links to one folder, the one in
        the paths of `indexed`, or the first by name."""
        self.check(roots)
        endings = names if isinstance(names, NameEndings) else NameEndings("")
        scan = _core.FolderScan(self.base, endings.samples, endings.companions, _SCAN_THREADS)
        refused: dict[str, str] = {}
        linked: list[SeenFile] = []
        scan.enter("")
        while links := scan.take_links():
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
                    pass  # The link leads to nothing.
                except OSError as error:
                    refused[link] = f"the link cannot be followed: {error.strerror}"
                except SecurityError as error:
                    refused[link] = error.message
            for same in folders.values():
                # A file keeps its path when another link to its folder is added.
                in_use = (link for link in same if any(path.startswith(f"{link}/") for path in indexed)) if len(same) > 1 else ()
                scan.enter(next(iter(in_use), same[0]))
        for path, error_number in scan.take_refused():
            refused[path] = f"it cannot be looked at: {os.strerror(error_number)}; make it readable for the storage service"
        files = SeenFiles(*scan.take_files())
        if not isinstance(names, NameEndings):
            held = [i for i, path in enumerate(files.paths) if names(self.full_path(path))]
            files = replace(files.take(np.array(held, np.int64)), changed_ns=np.full(len(held), UNKNOWN, np.int64))
        return Listing(files.merged_with(SeenFiles.of(linked)) if linked else files, refused)

    def status(self, path: str) -> FileStatus | None:
        """Size and time by `stat`; None also for a file that cannot be looked at."""
        with suppress(OSError):
            status = os.stat(path)
            return FileStatus(status.st_size, mtime_ns(status))
        return None

    def version(self, seen: SeenFile) -> FileStatus | None:
        """The version is named by device and inode: a file put in its place has another one, even of equal size and time."""
        path = self.full_path(seen.path)
        with self.reading(path), suppress(FileNotFoundError):
            status = os.stat(path)
            return FileStatus(status.st_size, mtime_ns(status), f"{status.st_dev}:{status.st_ino}")
        return None

    def read_error(self, path: str, error: OSError) -> DataError:
        """An UnusableNowError: the file is tried again later, though its size and time are the same."""
        reason = os.strerror(error.errno) if error.errno else error
        return UnusableNowError(f"cannot read {path} at byte 0: {reason}; make the file readable for the storage service")

    def open(self, path: str) -> pa.NativeFile:
        """Open the file for random access by Arrow, if it lies below the roots. Raises: OSError, DataError: it does not."""
        return open_native(path, self._roots.folders)

    def stamp(self, path: str) -> FileStatus | None:
        """The status now: a look at a local file needs no request."""
        return self.status(path)


def open_native(path: str, roots: Sequence[str]) -> pa.NativeFile:
    """Open a file that lies below one of the folders `roots` (none: anywhere) for Arrow. Raises: OSError, DataError: it lies elsewhere."""
    import pyarrow as pa  # Heavy, and only row groups and indexing need it: a training worker may do without.

    if not roots:
        return pa.OSFile(os.fsencode(path))
    descriptor = _core.open_file(path, roots)
    try:
        return pa.OSFile(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def open_filesystem(base_path: str, roots: Roots = Roots()) -> FileSystem:  # noqa: B008  (frozen)
    """The file system that a `base_path` names, in which only files below `roots` are opened. Raises: ConfigError: it is a URL that cannot be
    used."""
    if is_s3(base_path):
        from modyn.storage.files.s3 import S3Files  # Loads pyarrow.fs, which most processes do not need.

        return S3Files(base_path)
    return LocalFiles(base_path, roots)


reading = LocalFiles("").reading
"""A context in which an OSError on a local file is raised as DataError that names the file: `with reading(path)`."""
