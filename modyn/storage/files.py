"""The files of a dataset: those that are indexed, and those that lie in its folder now."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from modyn.errors import NotFoundError, SecurityError
from modyn.storage.catalogue import FileRow
from modyn.storage.formats.base import FileFormat


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file as it lies in the folder. `path` is relative to the folder."""

    path: str
    size: int
    mtime_ns: int

    @property
    def order(self) -> tuple[int, str]:
        """Files are indexed in this order: file time, then path."""
        return self.mtime_ns, self.path


class FileTable:
    """Indexed files by id (dense from 0) and by path, about 200 bytes each. One writer; readers may look up ids that they know."""

    def __init__(self, rows: Iterable[FileRow] = ()) -> None:
        self.paths: list[str] = []
        self._ids: dict[str, int] = {}
        self._sizes = array("q")
        self._mtimes = array("q")
        self.altered: frozenset[int] = frozenset()
        self.add(rows)

    def __len__(self) -> int:
        return len(self.paths)

    def add(self, rows: Iterable[FileRow]) -> None:
        altered = set(self.altered)
        for row in rows:
            if row.file_id != len(self.paths):
                raise ValueError(f"file {row.file_id} does not follow {len(self.paths) - 1}")
            self.paths.append(row.path)
            self._ids[row.path] = row.file_id
            self._sizes.append(row.size)
            self._mtimes.append(row.mtime_ns)
            if row.altered:
                altered.add(row.file_id)
        self.altered = frozenset(altered)

    def change(self, rows: Iterable[FileRow]) -> None:
        altered = set(self.altered)
        for row in rows:
            self._sizes[row.file_id], self._mtimes[row.file_id] = row.size, row.mtime_ns
            (altered.add if row.altered else altered.discard)(row.file_id)
        self.altered = frozenset(altered)

    def id_of(self, path: str) -> int | None:
        return self._ids.get(path)

    def is_unchanged(self, file_id: int, seen: SeenFile) -> bool:
        """Whether the file has the size and the time with which it was indexed."""
        return self._sizes[file_id] == seen.size and self._mtimes[file_id] == seen.mtime_ns


@dataclass(frozen=True, slots=True)
class Listing:
    """What one look at a folder found. `refused`: relative path → why it was not looked into."""

    files: Sequence[SeenFile]
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


def list_files(base: str, file_format: FileFormat, roots: Roots) -> Listing:
    """All files below `base` that hold samples by their name, in the order in which they are to be indexed.

    Symbolic links are followed where they stay under the roots. Raises NotFoundError if there is no folder `base`.
    """
    refused: dict[str, str] = {}
    files = list(_walk(base, file_format, roots, refused))
    files.sort(key=lambda file: file.order)
    return Listing(files, refused)


def check_folder(base: str, roots: Roots) -> os.stat_result:
    """The status of the folder `base`. Raises NotFoundError if there is none, SecurityError if it lies outside the roots."""
    roots.check(base)
    try:
        status = os.stat(base)
    except OSError as error:
        raise NotFoundError(f"the dataset's folder {base} cannot be read: {error.strerror}; create it or mount it") from error
    if not stat.S_ISDIR(status.st_mode):
        raise NotFoundError(f"the dataset's base_path {base} is not a folder; give the folder that holds its files")
    return status


def _walk(base: str, file_format: FileFormat, roots: Roots, refused: dict[str, str]) -> Iterator[SeenFile]:
    top = check_folder(base, roots)
    entered = {(top.st_dev, top.st_ino)}  # A link to a folder above would be followed forever.
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            entries = os.scandir(os.path.join(base, folder) if folder else base)
        except OSError as error:
            refused[folder] = f"the folder cannot be read: {error.strerror}; make it readable for the storage service"
            continue
        with entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    if entry.is_symlink():
                        roots.check(entry.path)
                    if not (is_folder := entry.is_dir()) and not file_format.holds_samples(entry.path):
                        continue
                    status = entry.stat()
                except FileNotFoundError:
                    continue  # It vanished between the listing and the look, or is a link to nothing.
                except OSError as error:
                    refused[path] = f"the file cannot be looked at: {error.strerror}"
                    continue
                except SecurityError as error:
                    refused[path] = error.message
                    continue
                if is_folder and (status.st_dev, status.st_ino) not in entered:
                    entered.add((status.st_dev, status.st_ino))
                    pending.append(path)
                elif stat.S_ISREG(status.st_mode):  # A pipe or a device would block whoever opens it.
                    yield SeenFile(path, status.st_size, status.st_mtime_ns)
