"""Rebuilds the catalogue's rows of a dataset from its published index, after an older database was restored."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np

from modyn.errors import ConflictError, DataError
from modyn.records import Int64Array
from modyn.storage.catalogue.catalogue import SegmentRow
from modyn.storage.files.file_system import FileSystem, SeenFile
from modyn.storage.files.local import LocalFiles
from modyn.storage.files.unpacked import UnpackedCopies
from modyn.storage.formats.base import FileFormat, WholeFileFormat
from modyn.storage.index.segment_index import SegmentIndex
from modyn.storage.ingest.file_indexer import listed
from modyn.storage.ingest.fingerprints import fingerprint
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.model.file_table import FileRow
from modyn.storage.read.publication import Publication, map_names, map_stamps

_UNKNOWN = "unknown"
"""A fingerprint that matches no content, so the next scan marks the file as altered."""


def rebuild(dataset: OpenDataset) -> None:
    """Restore the catalogue from the index. Files with the same state in catalogue and index keep their rows. Another file is accepted if it still
    has its indexed size and time, or has only grown. Otherwise the next scan marks the file as altered.

    Raises: ConflictError: the catalogue is not older than the index, or another process is changing the dataset. CorruptStateError: a segment is
    damaged. UnavailableError.
    """
    # The first lock excludes other threads, the second lock excludes other processes.
    with dataset.writing, dataset.catalogue.database.advisory_lock(f"dataset/{dataset.row.id}") as held:
        if not held:
            raise ConflictError(f"another process is ingesting dataset '{dataset.name}'; repeat the command when it is done")
        published = Publication.read(dataset.folder)
        contents = dataset.catalogue.contents(dataset.name)
        if contents is None or contents.row.identity != published.identity or contents.row.version >= published.version:
            raise ConflictError(
                f"the database is not older than the index of dataset '{dataset.name}': there is nothing to rebuild; "
                f"`modyn data ingest {dataset.name}` continues"
            )
        index = dataset.snapshot().index
        # The new rows of the catalogue are computed from the segments, so all segments must be intact.
        for segment in index.segments:
            segment.verify()
        known = {row.file_id: row for row in dataset.catalogue.files(contents.row.id)}
        rows = [
            _kept(row, known.get(row.file_id)) or _complete_row(dataset.filesystem, dataset.format, row, dataset.unpacked)
            for row in _published_files(dataset, published, index)
        ]
        segments = [SegmentRow(segment.info, segment.path.name) for segment in index.segments]
        # The new version is larger than both old versions, so every process detects the change.
        dataset.catalogue.replace(contents.row.id, contents.row.version, published.version + 1, rows, segments, published.schema)
        # The catalogue is newer than this object until `refresh` has loaded it.
        dataset.in_doubt = True
        dataset.refresh()


def _published_files(dataset: OpenDataset, published: Publication, index: SegmentIndex) -> list[FileRow]:
    """Return all files of the index by id, without fingerprints."""
    counts = np.zeros(published.num_files, np.int64)
    # The publication does not contain the number of samples of each file, so the samples are counted in the segments.
    for segment in index.segments:
        counts += np.bincount(segment.file_ids.slice(0, segment.info.num_samples), minlength=published.num_files)
    blocks = [map_names(dataset.folder, block) for block in published.names]
    sizes, mtimes_ns, tails = (_joined([getattr(block, name) for block in blocks]) for name in ("sizes", "mtimes_ns", "tails"))
    if published.stamps is not None:
        ids, newer_sizes, newer_mtimes_ns, newer_tails = map_stamps(dataset.folder / published.stamps)
        sizes[ids], mtimes_ns[ids], tails[ids] = newer_sizes, newer_mtimes_ns, newer_tails
    paths = []
    for block in blocks:
        text, ends = block.text.tobytes(), [0, *block.ends.tolist()]
        paths += [os.fsdecode(text[start:end]) for start, end in pairwise(ends)]
    altered = set(published.altered)
    columns = zip(paths, sizes.tolist(), mtimes_ns.tolist(), counts.tolist(), tails.tolist(), strict=True)
    return [
        FileRow(i, path, size, mtime, size, count, "", i in altered, tail)
        for i, (path, size, mtime, count, tail) in enumerate(columns)
    ]


def _joined(columns: list[Int64Array]) -> Int64Array:
    return np.concatenate([np.empty(0, np.int64), *columns])


def _kept(row: FileRow, known: FileRow | None) -> FileRow | None:
    """Return `known`, the catalogue's row of the file, if it describes the same state as `row`, else None."""
    same = known is not None and (known.path, known.size, known.mtime_ns, known.tail) == (
        row.path,
        row.size,
        row.mtime_ns,
        row.tail,
    )
    return known if same else None


def _complete_row(folder: FileSystem, file_format: FileFormat, row: FileRow, unpacked: UnpackedCopies | None = None) -> FileRow:
    """Return the row with the file's fingerprint if the file seems unchanged since it was indexed, otherwise with `_UNKNOWN`. An object seems
    unchanged if its version has the same tag. Raises: UnavailableError.
    """
    if isinstance(file_format, WholeFileFormat):
        return row
    if unpacked is not None and file_format.is_packed(row.path):
        copies = LocalFiles("")
        if (status := copies.status(place := unpacked.place(row.path, row.size, row.tail))) is None:
            return row._replace(fingerprint=_UNKNOWN)
        return row._replace(indexed_end=status.size, fingerprint=fingerprint(copies, place, status.size))
    seen = SeenFile(row.path, row.size, row.mtime_ns, row.tail)
    try:
        now = folder.version(seen)
        grown = now is not None and file_format.can_grow and folder.appends and now.size > row.size
        if now is not None and (grown or (now.size, now.mtime_ns) == (row.size, row.mtime_ns)):
            return row._replace(fingerprint=fingerprint(folder, folder.full_path(row.path), row.size, listed(folder, seen)))
    except DataError:
        # The file cannot be read. `_UNKNOWN` makes the next scan mark the file as altered.
        pass
    return row._replace(fingerprint=_UNKNOWN)
