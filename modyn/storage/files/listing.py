"""Listing of a folder on this machine: the files that hold samples by their names, in the order in which they are to be indexed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from modyn import _core
from modyn.errors import NotFoundError, SecurityError
from modyn.records import Int64Array

UNKNOWN = int(np.iinfo(np.int64).min)
"""A time in `SeenFiles.changed_ns` that the listing does not give."""

_SCAN_THREADS = 4
"""Looking at files waits for the disk, so that a few threads help on any number of cores."""


@dataclass(frozen=True, slots=True)
class NameEndings:
    """Endings of the names of a dataset's files: `samples` of files with samples, `companions` in its place of the file that must exist beside
    each of them; empty if there is none."""

    samples: str
    companions: str = ""

    def match(self, path: str) -> bool:
        """Whether a file of this name holds samples."""
        return path.endswith(self.samples)

    def companions_of(self, path: str) -> tuple[str, ...]:
        """Paths of the files that must exist beside `path`: one or none."""
        return (path[: len(path) - len(self.samples)] + self.companions,) if self.companions else ()


Names = NameEndings | Callable[[str], bool]
"""Which files hold samples: endings, with which a folder is scanned without a call for each file, or a predicate on the full path."""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file in the folder when it was listed. `path` is relative to the folder."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class SeenFiles:
    """Files in the order in which they are to be indexed: file time, then path. Columns, because there may be millions: about 150 bytes each.

    sizes: int64 bytes. mtimes_ns: int64.
    changed_ns: int64, the last change of the file and of its companion; UNKNOWN where that is missing, or was not listed.
    """

    paths: list[str]
    sizes: Int64Array
    mtimes_ns: Int64Array
    changed_ns: Int64Array

    @staticmethod
    def of(files: Iterable[SeenFile]) -> SeenFiles:
        """`files` in any order; nothing is known of their companions."""
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
        """The files at `positions`, int64 (m,), in that order."""
        paths = [self.paths[position] for position in positions.tolist()]
        return SeenFiles(paths, self.sizes[positions], self.mtimes_ns[positions], self.changed_ns[positions])

    @property
    def columns(self) -> tuple[list[str], Int64Array, Int64Array]:
        """Paths, sizes and times, as `FileTable.compare` takes them."""
        return self.paths, self.sizes, self.mtimes_ns

    def merged_with(self, others: SeenFiles) -> SeenFiles:
        """Both together, in order."""
        mine, theirs = ((files.sizes, files.mtimes_ns, files.changed_ns) for files in (self, others))
        return SeenFiles(self.paths + others.paths, *map(np.concatenate, zip(mine, theirs, strict=True)))._in_order()

    def _in_order(self) -> SeenFiles:
        times = self.mtimes_ns.tolist()
        order = sorted(range(len(self)), key=lambda i: (times[i], os.fsencode(self.paths[i])))
        return self.take(np.array(order, np.int64))


@dataclass(frozen=True, slots=True)
class Listing:
    """What one look at a folder found. `refused`: relative path → why it was not looked into."""

    files: SeenFiles
    refused: dict[str, str]


@dataclass(frozen=True)
class Roots:
    """Folders and buckets (`s3:/…`) that data may lie in; none: it may lie anywhere."""

    folders: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()

    @staticmethod
    def of(paths: Iterable[Path]) -> Roots:
        """Sort configured paths into folders, with links resolved, and buckets."""
        texts = [str(path) for path in paths]
        folders = tuple(os.path.realpath(text) for text in texts if not text.startswith("s3:/"))
        return Roots(folders, tuple(text for text in texts if text.startswith("s3:/")))

    def check(self, path: str) -> None:
        """Raises: SecurityError: `path`, with symbolic links followed, lies in none of the roots."""
        real = os.path.realpath(path)
        if (self.folders or self.buckets) and not any(os.path.commonpath([real, root]) == root for root in self.folders):
            raise SecurityError(
                f"{path} lies outside the folders that storage may read ({', '.join(self.folders)}); "
                f"move it there or add its folder to storage.dataset_roots"
            )


def list_files(base: str, names: Names, roots: Roots, indexed: Sequence[str] = ()) -> Listing:
    """List all files below `base` that hold samples by their names, in the order in which they are to be indexed.

    Symbolic links are followed where they stay under the roots. Of several links to one folder, the one in the paths of `indexed` is
    followed, or the first by name.
    Raises: NotFoundError: there is no folder `base`. SecurityError: it lies outside the roots.
    """
    check_folder(base, roots)
    endings, match = (names, names.match) if isinstance(names, NameEndings) else (NameEndings(""), names)
    scan = _core.FolderScan(base, endings.samples, endings.companions, _SCAN_THREADS)
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
                if stat.S_ISDIR(status.st_mode):
                    folders.setdefault((status.st_dev, status.st_ino), []).append(link)
                elif stat.S_ISREG(status.st_mode) and match(full_path):
                    linked.append(SeenFile(link, status.st_size, status.st_mtime_ns))
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
        held = [i for i, path in enumerate(files.paths) if match(os.path.join(base, path))]
        files = replace(files.take(np.array(held, np.int64)), changed_ns=np.full(len(held), UNKNOWN, np.int64))
    return Listing(files.merged_with(SeenFiles.of(linked)) if linked else files, refused)


def check_folder(base: str, roots: Roots) -> None:
    """Raises NotFoundError if there is no folder `base`, SecurityError if it lies outside the roots."""
    roots.check(base)
    try:
        status = os.stat(base)
    except OSError as error:
        raise NotFoundError(f"the dataset's folder {base} cannot be read: {error.strerror}; create it or mount it") from error
    if not stat.S_ISDIR(status.st_mode):
        raise NotFoundError(f"the dataset's base_path {base} is not a folder; give the folder that holds its files")
