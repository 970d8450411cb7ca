"""The files of a dataset: those that are indexed, and those that lie in its folder now."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modyn import _core
from modyn.errors import NotFoundError, SecurityError
from modyn.records import Int64Array
from modyn.storage.formats.base import FileFormat
from modyn.storage.model.file_table import FileTable

UNKNOWN = int(np.iinfo(np.int64).min)
"""A time in `SeenFiles.changed_ns` that the listing does not tell."""

_SCAN_THREADS = 4
"""Looking at files waits for the disk, so that a few threads help on any number of cores."""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file as it lies in the folder. `path` is relative to the folder."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class SeenFiles:
    """Many files in the order in which they are to be indexed: file time, then path. Columns, because there may be millions: about 150 bytes
    each.

    sizes: int64 bytes. mtimes_ns: int64. changed_ns: int64, the last change of the file and of what must stand beside it; UNKNOWN where
    that is missing, or has to be asked for.
    """

    paths: list[str]
    sizes: Int64Array
    mtimes_ns: Int64Array
    changed_ns: Int64Array

    @staticmethod
    def of(files: Iterable[SeenFile]) -> SeenFiles:
        """`files` in any order; nothing is known of what stands beside them."""
        listed = list(files)
        columns = np.array([(file.size, file.mtime_ns, UNKNOWN) for file in listed], np.int64).reshape(-1, 3)
        return SeenFiles([file.path for file in listed], *columns.T)._in_order()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: int) -> SeenFile:
        return SeenFile(self.paths[position], int(self.sizes[position]), int(self.mtimes_ns[position]))

    def __iter__(self) -> Iterator[SeenFile]:
        return (self[position] for position in range(len(self)))

    def take(self, positions: Int64Array) -> SeenFiles:
        """Those at `positions`, int64 (m,), in that order."""
        paths = [self.paths[position] for position in positions.tolist()]
        return SeenFiles(paths, self.sizes[positions], self.mtimes_ns[positions], self.changed_ns[positions])

    def and_these(self, others: SeenFiles) -> SeenFiles:
        """Both together, in order."""
        columns = zip(
            (self.sizes, self.mtimes_ns, self.changed_ns), (others.sizes, others.mtimes_ns, others.changed_ns), strict=True
        )
        return SeenFiles(self.paths + others.paths, *map(np.concatenate, columns))._in_order()

    def _in_order(self) -> SeenFiles:
        times = self.mtimes_ns.tolist()
        order = sorted(range(len(self)), key=lambda i: (times[i], os.fsencode(self.paths[i])))
        return self.take(np.array(order, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Files in a folder against those that are indexed: positions in the listing, int64, ascending.

    unchanged: of the size and the time with which they were indexed, and not altered. absent: ids of indexed files that were not seen.
    """

    new: Int64Array
    changed: Int64Array
    unchanged: Int64Array
    absent: Int64Array


def compare(table: FileTable, seen: SeenFiles) -> Comparison:
    """What is new, changed, unchanged and absent in `seen` against the indexed files."""
    ids = table.ids_of(seen.paths)
    known = np.flatnonzero(ids >= 0)
    found = ids[known]
    sizes, mtimes_ns = table.stamps(found)
    same = (sizes == seen.sizes[known]) & (mtimes_ns == seen.mtimes_ns[known])
    if table.altered:
        same &= ~np.isin(found, list(table.altered))
    is_absent = np.ones(len(table), np.bool_)
    is_absent[found] = False
    return Comparison(_positions(ids < 0), known[~same], known[same], _positions(is_absent))


def _positions(where: npt.NDArray[np.bool_]) -> Int64Array:
    return np.flatnonzero(where).astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True)
class Listing:
    """What one look at a folder found. `refused`: relative path → why it was not looked into."""

    files: SeenFiles
    refused: dict[str, str]


@dataclass(frozen=True)
class Roots:
    """Folders that data may lie in; none: it may lie anywhere."""

    folders: tuple[str, ...] = field(default=())
    buckets: tuple[str, ...] = field(default=())
    """Roots that begin with `s3:/`."""

    @staticmethod
    def of(paths: Iterable[Path]) -> Roots:
        texts = [str(path) for path in paths]
        folders = tuple(os.path.realpath(text) for text in texts if not text.startswith("s3:/"))
        return Roots(folders, tuple(text for text in texts if text.startswith("s3:/")))

    def hold(self, path: str) -> bool:
        """Whether `path`, with symbolic links followed, lies in one of the roots."""
        real = os.path.realpath(path)
        return not (self.folders or self.buckets) or any(os.path.commonpath([real, root]) == root for root in self.folders)

    def check(self, path: str) -> None:
        """Raises SecurityError if `path` lies outside the roots."""
        if not self.hold(path):
            raise SecurityError(
                f"{path} lies outside the folders that storage may read ({', '.join(self.folders)}); "
                f"move it there or add its folder to storage.dataset_roots"
            )


def list_files(base: str, file_format: FileFormat, roots: Roots, indexed: Sequence[str] = ()) -> Listing:
    """All files below `base` that hold samples by their name, in the order in which they are to be indexed.

    Symbolic links are followed where they stay under the roots; of several to one folder, the one that paths in `indexed` go through, or the
    first by name. Raises NotFoundError if there is no folder `base`.
    """
    check_folder(base, roots)
    endings = file_format.endings()
    scan = _core.FolderScan(base, endings.samples if endings else "", endings.companions if endings else "", _SCAN_THREADS)
    refused: dict[str, str] = {}
    linked: list[SeenFile] = []
    scan.enter("")
    while links := scan.take_links():
        folders: dict[tuple[int, int], list[str]] = {}
        for link in links:
            full_path = os.path.join(base, link)
            try:
                roots.check(full_path)
                status = os.stat(full_path)
            except FileNotFoundError:
                continue  # A link to nothing.
            except OSError as error:
                refused[link] = f"the link cannot be followed: {error.strerror}"
                continue
            except SecurityError as error:
                refused[link] = error.message
                continue
            if stat.S_ISDIR(status.st_mode):
                folders.setdefault((status.st_dev, status.st_ino), []).append(link)
            elif stat.S_ISREG(status.st_mode) and file_format.holds_samples(full_path):
                linked.append(SeenFile(link, status.st_size, status.st_mtime_ns))
        for names in folders.values():
            scan.enter(names[0] if len(names) == 1 else _in_use(names, indexed))
    for path, error_number in scan.take_refused():
        refused[path] = f"it cannot be looked at: {os.strerror(error_number)}; make it readable for the storage service"
    files = SeenFiles(*scan.take_files())
    if endings is None:
        held = [i for i, path in enumerate(files.paths) if file_format.holds_samples(os.path.join(base, path))]
        files = replace(files.take(np.array(held, np.int64)), changed_ns=np.full(len(held), UNKNOWN, np.int64))
    return Listing(files.and_these(SeenFiles.of(linked)) if linked else files, refused)


def _in_use(links: Sequence[str], indexed: Sequence[str]) -> str:
    """The first of several links to one folder through which files were indexed, or the first: a file keeps its path when a link is added."""
    return next((link for link in links if any(path.startswith(f"{link}/") for path in indexed)), links[0])


def check_folder(base: str, roots: Roots) -> None:
    """Raises NotFoundError if there is no folder `base`, SecurityError if it lies outside the roots."""
    roots.check(base)
    try:
        status = os.stat(base)
    except OSError as error:
        raise NotFoundError(f"the dataset's folder {base} cannot be read: {error.strerror}; create it or mount it") from error
    if not stat.S_ISDIR(status.st_mode):
        raise NotFoundError(f"the dataset's base_path {base} is not a folder; give the folder that holds its files")
