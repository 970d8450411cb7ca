"""Writes the publication of a dataset, see `modyn.storage.read.publication`."""

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
from modyn.storage.model.dataset_records import RECORDS_FOLDER
from modyn.storage.model.file_table import FileTable
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
        """Args: folder: folder of the dataset's index."""
        self._folder = folder
        self._published: Publication | None = None
        """The last publication; None: this object has not published yet, or the last attempt failed."""

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
        """Publish a state, which readers use from their next request on.

        Args: row: row of the catalogue. segments: file names of the segments. files: all files of the dataset. changed: ids of files whose stamps
        may differ from the published stamps; the first call compares all files. num_deleted: number of keys in the file of deletions. damaged:
        reasons why files of the index must not be read, by path relative to the folder. num_labels: number of late labels.
        Raises: UnavailableError: readers still see the previous state.
        """
        is_first = self._published is None
        # `_published` is None until the end, so that after a failure the next call compares all files.
        before, self._published = self._last(), None
        # The name of a file never changes. So the blocks of the last publication are still right, unless they contain more files than `files`.
        kept = before if before is not None and before.num_files <= len(files) else None
        names, stamps, num_known = (kept.names, kept.stamps, kept.num_files) if kept is not None else ((), None, 0)
        known = np.arange(num_known) if is_first else np.array(sorted(i for i in set(changed) if i < num_known), np.int64)
        try:
            stale = known[~_are_stamped(self._folder, names, stamps, files, known, verify=is_first)]
        except CorruptStateError:
            # Blocks and stamps of all files are written again, because a reader may have mapped the blocks before they were damaged.
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
            sync_names(self._folder)  # The previous process may have been killed before it synced the publication.
        self._published = now
        # Old blocks are removed last, when the current publication does not name them any more.
        self._sweep({block.file for block in now.names} | ({now.stamps} if now.stamps else set()))

    def publish_counts(self, num_deleted: int, num_labels: int = 0) -> None:
        """Publish the numbers of deletions and late labels. By these numbers, a reader detects that the file of deletions or of late labels is
        missing. Only the first number of each file, greater than 0, is published by this method; later numbers are published by `publish`.

        The method does not change the published index, even if this object does not know it, for example after a failed publication or a restart. If
        the index was damaged after this object published it, the index is written again. A newer publication of another process is not replaced. A
        missing publication is not created. The locks of the dataset's writers are not needed, but no `publish` may run at the same time.
        Raises: UnavailableError: readers still see the previous state.
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
        # If another process has published since then, its numbers are newer.
        if found is None or (own is not None and own.version < found.version):
            return
        if is_known(found):
            sync_names(self._folder)
        else:
            write_atomically(self._folder / INDEX, [with_counts(found).to_json()])
        if own is not None:
            self._published = with_counts(own)

    def publish_damage(self, files: FileTable, damaged: Mapping[str, str]) -> None:
        """Publish the damaged segments, files of records and unpacked copies. Readers refuse the samples in them. Args: see `publish`.

        The published index itself does not change. The conditions of `publish_counts` apply.
        Raises: UnavailableError: readers still see the previous state.
        """
        try:
            found = self._published or Publication.read(self._folder)
        except (NotFoundError, CorruptStateError):
            return  # Readers have no publication to read. The next publication will name the damaged files.
        now = _with_damage(found, files, damaged)
        if now != found:
            write_atomically(self._folder / INDEX, [now.to_json()])
        if self._published is not None:
            self._published = now

    def _last(self) -> Publication | None:
        """Return the current publication; None if the publication cannot be read."""
        return self._published or last_published(self._folder)

    def _write_stamps(self, published: str | None, files: FileTable, stale: Int64Array) -> str:
        """Write a stamps file for the files `stale`, int64 ids, whose stamps differ from the blocks. Return its name. The new file also contains the
        files of the previous stamps file, because a reader may have mapped a block before the block was rewritten."""
        before = map_stamps(self._folder / published)[0] if published else np.zeros(0, np.int64)
        path = self._folder / f"{uuid.uuid4().hex[:12]}{STAMPS}"
        write_stamps(path, files, np.union1d(before, stale))
        return path.name

    def _with_names(self, now: Publication, files: FileTable) -> tuple[NameBlock, ...]:
        """Return the blocks, plus a new block with the missing names. The new block replaces previous blocks that are smaller than twice its size, so
        that there are few blocks, and names are seldom rewritten."""
        blocks, first = list(now.names), now.num_files
        if first == len(files):
            return now.names
        while blocks and blocks[-1].count < 2 * (len(files) - first):
            first -= blocks.pop().count
        block = NameBlock(f"{first:010d}-{uuid.uuid4().hex[:12]}{NAMES}", len(files) - first)
        write_names(self._folder / block.file, files, first)
        return (*blocks, block)

    def _sweep(self, known: set[str]) -> None:
        """Remove replaced blocks, and blocks that a crash left. Maps of removed files stay valid for readers."""
        for pattern in (f"*{NAMES}*", f"*{STAMPS}*", f"{INDEX}*{TEMPORARY_SUFFIX}"):
            for path in self._folder.glob(pattern):
                if path.name not in known:
                    path.unlink(missing_ok=True)


def _with_damage(publication: Publication, files: FileTable, damaged: Mapping[str, str]) -> Publication:
    """Return the publication with all files that readers must refuse: altered files, damaged files, and files with damaged unpacked copies. Args:
    see `Publisher.publish`."""
    records = [path.removeprefix(f"{RECORDS_FOLDER}/") for path in damaged if path.startswith(f"{RECORDS_FOLDER}/")]
    copies = {path.removeprefix(f"{UNPACKED}/") for path in damaged if path.startswith(f"{UNPACKED}/")}
    found = files.altered.union(file_id for path in records if (file_id := files.id_of(path)) is not None)
    altered = found.union(ids_of_copies(files, copies)) if copies else found
    segments = tuple((name, damaged[name]) for name in publication.segments if name in damaged)
    return replace(publication, altered=tuple(sorted(altered)), damaged=segments)


def ids_of_copies(files: FileTable, names: Set[str]) -> Iterator[int]:
    """Yield the ids of compressed files whose unpacked copies are in folders of these names."""
    for file_id in range(len(files)):
        path = files.path(file_id)
        if without_packed_ending(path) != path:
            sizes, _, tails = files.known.stamps(np.array([file_id]))
            if os.path.basename(os.path.dirname(_core.unpacked_copy("", path, int(sizes[0]), int(tails[0])))) in names:
                yield file_id


def withdraw(folder: Path) -> None:
    """Remove the publication in `folder`, so that readers find no dataset. Raises: UnavailableError."""
    remove(folder / INDEX)


def _are_stamped(
    folder: Path, names: Sequence[NameBlock], stamps: str | None, files: FileTable, ids: Int64Array, verify: bool
) -> npt.NDArray[np.bool_]:
    """Return for each of `ids`, ascending, whether its published stamp equals its stamp in `files`: bool (n,).

    Raises: CorruptStateError.
    Args: verify: whether to compare the read files with their checksums.
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
    # Stamps in the stamps file replace stamps in the blocks.
    if stamps is not None and len(ids):
        newer = map_stamps(folder / stamps, verify)
        _, at, rows = np.intersect1d(ids, newer[0], assume_unique=True, return_indices=True)
        same[at] = _are_equal([column[rows] for column in newer[1:]], [column[at] for column in stamps_now])
    return same


def _are_equal(some: Sequence[Int64Array], others: Sequence[Int64Array]) -> npt.NDArray[np.bool_]:
    equal: npt.NDArray[np.bool_] = np.all([mine == theirs for mine, theirs in zip(some, others, strict=True)], axis=0)
    return equal
