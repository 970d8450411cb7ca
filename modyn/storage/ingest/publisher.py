"""Writes what readers in other processes see of a dataset, see `modyn.storage.read.publication`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from modyn import _core
from modyn.atomic_write import TEMPORARY_SUFFIX, remove, sync_names, write_atomically
from modyn.errors import CorruptStateError, NotFoundError
from modyn.records import Int64Array
from modyn.storage.catalogue.catalogue import DatasetRow
from modyn.storage.files.file_system import UNPACKED, without_packed_ending
from modyn.storage.model.file_table import FileTable
from modyn.storage.model.records import RECORDS_FOLDER
from modyn.storage.read.publication import (
    INDEX,
    NAMES,
    STAMPS,
    NameBlock,
    Publication,
    last_published,
    map_names,
    map_stamps,
    write_names,
    write_stamps,
)


class Publisher:
    """Writes the publication of one dataset. Call with the locks of the dataset's writers held."""

    def __init__(self, folder: Path) -> None:
        """Args: folder: of the dataset's index."""
        self._folder = folder
        self._published: Publication | None = None
        """What was published last; None: not known, because nothing was yet, or because that broke off."""

    def publish(
        self,
        row: DatasetRow,
        segments: Sequence[str],
        files: FileTable,
        changed: Iterable[int] = (),
        num_deleted: int = 0,
        damaged: Mapping[str, str] = MappingProxyType({}),
        num_labels: int = 0,
    ) -> None:
        """Make readers see this state at their next request.

        Args: row: of the catalogue. segments: file names. files: all of the dataset. changed: ids of files whose stamps may differ from
        the published ones; the first call compares all. num_deleted: keys in the file of deletions. damaged: why files of
        the index, by their names in the folder, are not to be read. num_labels: in the file of labels that came late.
        Raises: UnavailableError: readers see the state before.
        """
        is_first = self._published is None
        before, self._published = self._last(), None
        kept = before if before is not None and before.num_files <= len(files) else None
        names, stamps, num_known = (kept.names, kept.stamps, kept.num_files) if kept is not None else ((), None, 0)
        known = np.arange(num_known) if is_first else np.array(sorted(i for i in set(changed) if i < num_known), np.int64)
        try:
            stale = known[~_are_stamped(self._folder, names, stamps, files, known, verify=is_first)]
        except CorruptStateError:
            # Written anew, stamps of all files too: a reader may have mapped the blocks before they were damaged.
            names, stamps, stale = (), None, np.arange(num_known)
        if len(stale):
            stamps = self._write_stamps(stamps, files, stale)
        now = Publication(
            row.config,
            row.identity,
            row.version,
            row.float_labels,
            tuple(segments),
            names,
            (),
            stamps,
            num_deleted,
            schema=row.schema,
            num_labels=num_labels,
        )
        now = _with_damage(now, files, damaged)
        if now != before or now.num_files < len(files):
            now = replace(now, names=self._with_names(now, files))
            write_atomically(self._folder / INDEX, [now.to_json()])
        elif is_first:
            sync_names(self._folder)  # The process before this one may have been killed between writing and syncing it.
        self._published = now
        self._sweep({block.file for block in now.names} | ({now.stamps} if now.stamps else set()))

    def publish_counts(self, num_deleted: int, num_labels: int = 0) -> None:
        """Make a reader that finds no file of deletions, or none of labels that came late, know that it is lost: needs to be done once for each, for
        each `publish` keeps the numbers.

        The index stays what it is, also one that this object does not know: of a publication that broke off, or of before a restart. One that was
        damaged since it was published here is written anew. The newer one of another process is left alone, and none is made where none is. The
        locks of the dataset's writers need not be held, only no `publish` be under way.
        Raises: UnavailableError: readers see the state before.
        """

        def is_known(published: Publication) -> bool:
            return published.num_deleted >= min(num_deleted, 1) and published.num_labels >= min(num_labels, 1)

        def with_counts(published: Publication) -> Publication:
            return replace(
                published,
                num_deleted=published.num_deleted or num_deleted,
                num_labels=published.num_labels or num_labels,
            )

        own = self._published
        if not (num_deleted or num_labels) or (own is not None and is_known(own)):
            return
        try:
            found: Publication | None = Publication.read(self._folder)
        except NotFoundError:
            return
        except CorruptStateError:
            found = own
        if found is None or (own is not None and own.version < found.version):
            return
        if is_known(found):
            sync_names(self._folder)
        else:
            write_atomically(self._folder / INDEX, [with_counts(found).to_json()])
        if own is not None:
            self._published = with_counts(own)

    def publish_damage(self, files: FileTable, damaged: Mapping[str, str]) -> None:
        """Make readers refuse the samples of damaged segments and files of records, and of no others. Args: as of `publish`.

        The index stays what it is, as in `publish_counts`, under the same conditions.
        Raises: UnavailableError: readers see the state before.
        """
        try:
            found = self._published or Publication.read(self._folder)
        except (NotFoundError, CorruptStateError):
            return  # nothing is read there; the next publication names them
        now = _with_damage(found, files, damaged)
        if now != found:
            write_atomically(self._folder / INDEX, [now.to_json()])
        if self._published is not None:
            self._published = now

    def _last(self) -> Publication | None:
        """What is published now; None if that is not readable."""
        return self._published or last_published(self._folder)

    def _write_stamps(self, published: str | None, files: FileTable, stale: Int64Array) -> str:
        """Write a file of the stamps of `stale`, int64 ids, which differ from the blocks', and return its name. A file that was in the one before
        stays in it: a reader may have mapped the block before it was written anew."""
        before = map_stamps(self._folder / published)[0] if published else np.zeros(0, np.int64)
        path = self._folder / f"{uuid.uuid4().hex[:12]}{STAMPS}"
        write_stamps(path, files, np.union1d(before, stale))
        return path.name

    def _with_names(self, now: Publication, files: FileTable) -> tuple[NameBlock, ...]:
        """The blocks, and one with the names that they lack. It takes in the blocks before it that are not twice its size, so that there are
        few, and a name is rewritten seldom."""
        blocks, first = list(now.names), now.num_files
        if first == len(files):
            return now.names
        while blocks and blocks[-1].count < 2 * (len(files) - first):
            first -= blocks.pop().count
        block = NameBlock(f"{first:010d}-{uuid.uuid4().hex[:12]}{NAMES}", len(files) - first)
        write_names(self._folder / block.file, files, first)
        return (*blocks, block)

    def _sweep(self, known: set[str]) -> None:
        """Remove blocks that others have taken in, or that a crash left. Readers keep their maps: a file lives on without a name."""
        for pattern in (f"*{NAMES}*", f"*{STAMPS}*", f"{INDEX}*{TEMPORARY_SUFFIX}"):
            for path in self._folder.glob(pattern):
                if path.name not in known:
                    path.unlink(missing_ok=True)


def _with_damage(publication: Publication, files: FileTable, damaged: Mapping[str, str]) -> Publication:
    """The publication that refuses altered files, damaged ones, and those whose unpacked copies are damaged. Args: as of `Publisher.publish`."""
    records = [path.removeprefix(f"{RECORDS_FOLDER}/") for path in damaged if path.startswith(f"{RECORDS_FOLDER}/")]
    copies = {path.removeprefix(f"{UNPACKED}/") for path in damaged if path.startswith(f"{UNPACKED}/")}
    found = files.altered.union(file_id for path in records if (file_id := files.id_of(path)) is not None)
    altered = found.union(ids_of_copies(files, copies)) if copies else found
    segments = tuple((name, damaged[name]) for name in publication.segments if name in damaged)
    return replace(publication, altered=tuple(sorted(altered)), damaged=segments)


def ids_of_copies(files: FileTable, names: Set[str]) -> Iterator[int]:
    """Yield the ids of compressed files whose unpacked copies lie in folders of these names."""
    for file_id in range(len(files)):
        path = files.path(file_id)
        if without_packed_ending(path) != path:
            sizes, _, tails = files.known.stamps(np.array([file_id]))
            if os.path.basename(os.path.dirname(_core.unpacked_copy("", path, int(sizes[0]), int(tails[0])))) in names:
                yield file_id


def withdraw(folder: Path) -> None:
    """Make readers find no dataset in `folder` any more. Raises: UnavailableError."""
    remove(folder / INDEX)


def _are_stamped(
    folder: Path, names: Sequence[NameBlock], stamps: str | None, files: FileTable, ids: Int64Array, verify: bool
) -> npt.NDArray[np.bool_]:
    """Whether the stamp of each of `ids`, ascending, is published as it is: bool (n,). Raises: CorruptStateError.

    Args: verify: compare the files that are read with their checksums.
    """
    stamps_now = files.known.stamps(ids)
    same = np.zeros(len(ids), np.bool_)
    first = 0
    for block in names:
        start, stop = np.searchsorted(ids, [first, first + block.count]).tolist()
        if start < stop:
            mapped, rows = map_names(folder, block, verify), ids[start:stop] - first
            published = mapped.sizes[rows], mapped.mtimes_ns[rows], mapped.tails[rows]
            same[start:stop] = _are_equal(published, [column[start:stop] for column in stamps_now])
        first += block.count
    if stamps is not None and len(ids):
        newer = map_stamps(folder / stamps, verify)
        _, at, rows = np.intersect1d(ids, newer[0], assume_unique=True, return_indices=True)
        same[at] = _are_equal([column[rows] for column in newer[1:]], [column[at] for column in stamps_now])
    return same


def _are_equal(some: Sequence[Int64Array], others: Sequence[Int64Array]) -> npt.NDArray[np.bool_]:
    equal: npt.NDArray[np.bool_] = np.all([mine == theirs for mine, theirs in zip(some, others, strict=True)], axis=0)
    return equal
