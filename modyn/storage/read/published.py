"""What storage publishes of a dataset for readers in other processes: files in the dataset's folder, complete at any moment.

`index.json` says everything but what stands in other files: the segments, the deleted keys, and the names of the data files in blocks
that only grow in number. A block also has sizes and times of its files, by which readers notice that others changed them; those that are
others by now stand in a file of their own. Each publication is a new file that takes the place of the old one, so a reader that finds
the same file finds the same state, at the price of a `stat`. Storage publishes a change before it shows it to anybody: who knows a key
finds it here.

`names/NAME` links to the folder of the dataset of that name.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import uuid
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from modyn._core import PathTable
from modyn.atomic_write import TEMPORARY_SUFFIX, write_atomically
from modyn.config.system import DATASET_NAME, DatasetConfig, SystemConfig
from modyn.errors import CorruptStateError, NotFoundError, UnavailableError
from modyn.records import Int64Array
from modyn.storage.index.segment_index import Segment, SegmentIndex
from modyn.storage.index.tombstones import Tombstones
from modyn.storage.model.file_table import FileTable
from modyn.storage.model.samples import RecordReader
from modyn.storage.read.publication import (
    INDEX,
    NAMES,
    STAMPS,
    NameBlock,
    Publication,
    are_stamped,
    is_readable,
    map_names,
    map_stamps,
    write_names,
    write_stamps,
)
from modyn.storage.read.record_readers import RecordReaders
from modyn.storage.read.snapshot import DatasetSnapshot

__all__ = ["DELETIONS", "Publication", "PublishedDatasets", "PublishedIndex", "PublishedNames", "Publisher", "withdraw"]

DELETIONS = "deletions"


class Publisher:
    """Writes what readers of one dataset find. Call with the dataset's writers' locks held."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._published: Publication | None = None

    def publish(
        self,
        config: DatasetConfig,
        version: int,
        float_labels: bool,
        segments: Sequence[str],
        files: FileTable,
        changed: Iterable[int] = (),
    ) -> None:
        """Makes readers see this state at their next request. `files` of which names are published already are not looked at again but for
        the ids `changed`, which may have other stamps; the first time, for all. Raises UnavailableError: readers then see the state before."""
        is_first = self._published is None
        before = self._last(version)
        kept = before if before is not None and before.num_files <= len(files) else None
        names, stamps, num_known = (kept.names, kept.stamps, kept.num_files) if kept is not None else ((), None, 0)
        if is_first and kept is not None and not is_readable(self._folder, kept):
            # Written anew, stamps of all files too: some reader may have mapped the blocks before they were damaged.
            names, stamps = (), None
        now = Publication(config, version, float_labels, tuple(segments), names, tuple(sorted(files.altered)), stamps)
        known = np.arange(num_known) if is_first else np.array(sorted(i for i in set(changed) if i < num_known), np.int64)
        now = replace(now, stamps=self._with_stamps(now, files, known))
        if now != before or now.num_files < len(files):
            now = replace(now, names=self._with_names(now, files))
            write_atomically(self._folder / INDEX, [now.to_json()])
        self._published = now
        self._sweep({block.file for block in now.names} | ({now.stamps} if now.stamps else set()))

    def _last(self, version: int) -> Publication | None:
        """What is published now, unless it is of a later state than the catalogue, which was restored from a backup then."""
        try:
            published = self._published or Publication.read(self._folder)
        except (NotFoundError, CorruptStateError):
            return None
        return published if published.version <= version else None

    def _with_stamps(self, now: Publication, files: FileTable, known: Int64Array) -> str | None:
        """The stamps that are not those in the blocks, once those of the ids `known`, ascending, are looked at again. Whoever was told once
        that a file has another stamp than its block is told on: he may have mapped the block before it was written anew."""
        found = np.flatnonzero(~are_stamped(self._folder, now, files, known))
        if not len(found):
            return now.stamps
        before = map_stamps(self._folder / now.stamps)[0] if now.stamps else np.zeros(0, np.int64)
        ids = np.union1d(before, known[found])
        path = self._folder / f"{uuid.uuid4().hex[:12]}{STAMPS}"
        write_stamps(path, files, ids)
        return path.name

    def _with_names(self, now: Publication, files: FileTable) -> tuple[NameBlock, ...]:
        """The blocks with what they lack of `paths`. A block takes in those before it that are not twice its size, so that there are few,
        and a name is rewritten seldom."""
        blocks, first = list(now.names), now.num_files
        if first == len(files):
            return now.names
        while blocks and blocks[-1].count < 2 * (len(files) - first):
            first -= blocks.pop().count
        block = NameBlock(f"{first:010d}-{uuid.uuid4().hex[:12]}{NAMES}", len(files) - first)
        write_names(self._folder / block.file, files, first)
        return (*blocks, block)

    def _sweep(self, known: set[str]) -> None:
        """Removes blocks that others have taken in, or that a crash left. Readers keep their maps: a file lives on without a name."""
        for pattern in (f"*{NAMES}*", f"*{STAMPS}*", f"{INDEX}*{TEMPORARY_SUFFIX}"):
            for path in self._folder.glob(pattern):
                if path.name not in known:
                    path.unlink(missing_ok=True)


def withdraw(folder: Path) -> None:
    """Readers find no dataset in `folder` any more."""
    (folder / INDEX).unlink(missing_ok=True)


class _Held:
    """The file that a path leads to now, or that there is none. Held open, so that its number is not given to another file meanwhile.

    A file that takes the place of another has another number; one that is added to, as deletions are, another size.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._identity: tuple[int, int, int] | None = None
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # None is there, or none that may be read, which is told by whoever reads it.
        status = os.fstat(self._descriptor)
        self._identity = status.st_dev, status.st_ino, status.st_size

    def is_current(self) -> bool:
        """Whether the path still leads to this file, as it was."""
        try:
            status = os.stat(self._path)
        except OSError:
            return self._identity is None
        return self._identity == (status.st_dev, status.st_ino, status.st_size)

    def __del__(self) -> None:
        # Not by a call: another thread may be about to compare.
        if self._descriptor is not None:
            os.close(self._descriptor)


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """A view and the two files that it was made of."""

    view: DatasetSnapshot
    index: _Held
    deletions: _Held

    def is_current(self) -> bool:
        return self.index.is_current() and self.deletions.is_current()


class PublishedIndex:
    """A reader of one dataset's folder. Any number of threads."""

    def __init__(self, folder: Path, sources: RecordReaders) -> None:
        self.folder = folder
        self._sources = sources
        self._lock = threading.Lock()
        self._seen: _Seen | None = None
        self._segments: dict[str, Segment] = {}
        self._paths: PathTable | None = None
        self._stamps: str | None = None
        self._source: RecordReader | None = None

    def view(self) -> DatasetSnapshot:
        """The dataset as it is published now, at the price of two `stat` unless something changed.

        Raises NotFoundError if it was deleted, CorruptStateError, UnavailableError.
        """
        seen = self._seen
        if seen is not None and seen.is_current():
            return seen.view
        with self._lock:
            while self._seen is None or not self._seen.is_current():
                # Held before they are read: what changes meanwhile is read again.
                index, deletions = _Held(self.folder / INDEX), _Held(self.folder / DELETIONS)
                try:
                    self._seen = _Seen(self._read(), index, deletions)
                    self._sources.forget_removed()
                except CorruptStateError:
                    # A segment or a block of names is removed when another has taken its place.
                    if index.is_current() and deletions.is_current():
                        raise
            return self._seen.view

    def _read(self) -> DatasetSnapshot:
        published = Publication.read(self.folder)
        segments = {name: self._segments.get(name) or Segment.open(self.folder / name) for name in published.segments}
        if self._seen is not None and segments.keys() == self._segments.keys():
            index = self._seen.view.index
        else:
            index = SegmentIndex(list(segments.values()), published.float_labels)
        paths, source = self._opened(published)
        view = DatasetSnapshot(
            published.config,
            self.folder.name,
            published.version,
            published.float_labels,
            index,
            Tombstones.open(self.folder / DELETIONS),
            paths,
            frozenset(published.altered),
            source,
        )
        # Last: these are the segments of the view's index, and stay those of the last one if anything failed.
        self._segments = segments
        return view

    def _opened(self, published: Publication) -> tuple[PathTable, RecordReader]:
        """The names of all files, those that are new appended: a file never gets another name."""
        if self._paths is None or self._source is None:
            self._paths = self._sources.table(published.config)
            self._source = self._sources.open(published.config, self._paths)
        first = 0
        for block in published.names:
            known = len(self._paths) - first
            if known < block.count:
                mapped = map_names(self.folder, block)
                start = int(mapped.ends[known - 1]) if known else 0
                ends = mapped.ends[known:] - start if known else mapped.ends
                self._paths.append_packed(mapped.text[start:], ends, mapped.sizes[known:], mapped.mtimes_ns[known:])
            first += block.count
        if published.stamps is not None and published.stamps != self._stamps:
            self._paths.restamp(*map_stamps(self.folder / published.stamps))
            self._stamps = published.stamps
        return self._paths, self._source


class PublishedNames:
    """Folders of datasets by name: a link for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @staticmethod
    def of(config: SystemConfig) -> PublishedNames:
        return PublishedNames(config.service_dir("storage") / "names")

    def add(self, name: str, target: Path) -> None:
        """Raises UnavailableError."""
        temporary = self._folder / f".{name}.{os.getpid()}-{threading.get_ident()}{TEMPORARY_SUFFIX}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(os.path.relpath(target, self._folder))
            temporary.replace(self._folder / name)
        except OSError as error:
            raise UnavailableError(f"cannot write {self._folder / name}: {error.strerror or error}; make it writable") from error

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def keep_only(self, names: Set[str]) -> None:
        """Removes the links of datasets that are no more, and what a crash left. The folder is there then, also without datasets."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob("*"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """All of them, sorted."""
        return sorted(path.name for path in self._folder.glob("*") if re.fullmatch(DATASET_NAME, path.name))

    def target(self, name: str) -> Path:
        """Raises NotFoundError if there is no dataset of this name, UnavailableError if that cannot be told."""
        path = self._folder / name
        try:
            if re.fullmatch(DATASET_NAME, name):
                return self._folder / os.readlink(path)
        except OSError as error:
            # EINVAL: something is there that is no link.
            if error.errno not in (errno.ENOENT, errno.EINVAL):
                raise UnavailableError(f"cannot read {path}: {error.strerror or error}; make it readable") from error
            if not self._folder.is_dir():
                raise UnavailableError(
                    f"{self._folder}, where storage publishes datasets, is not there; start storage, or mount its state_dir here"
                ) from error
        raise NotFoundError(f"there is no dataset '{name}'; `modyn data ls` lists them, `modyn data register` adds one")


class PublishedDatasets:
    """All datasets of a storage folder by name, for readers without a catalogue. Any number of threads."""

    def __init__(self, names: PublishedNames, sources: RecordReaders) -> None:
        self._names = names
        self._sources = sources
        self._lock = threading.Lock()
        self._open: dict[str, PublishedIndex] = {}

    def view(self, name: str) -> DatasetSnapshot:
        """The dataset `name` as it is published now. Raises NotFoundError if there is none, CorruptStateError, UnavailableError."""
        try:
            target = self._names.target(name)
            with self._lock:
                published = self._open.get(name)
                if published is None or published.folder != target:
                    self._drop_deleted()
                    published = self._open[name] = PublishedIndex(target, self._sources)
            return published.view()
        except NotFoundError:
            with self._lock:
                self._drop_deleted()
            raise

    def _drop_deleted(self) -> None:
        """Lets go of files and maps of datasets that are no more, for which nobody may ever ask again."""
        self._open = {name: published for name, published in self._open.items() if os.path.exists(published.folder / INDEX)}
