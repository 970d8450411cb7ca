"""Snapshots of a dataset, made from the publication in the dataset's folder. Readers in all processes get the same snapshots."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modyn._core import PathTable
from modyn.config.dataset import DatasetConfig
from modyn.errors import CorruptStateError, NotFoundError, UnavailableError
from modyn.json_codec import sanitize
from modyn.records import Int64Array, Interval, SampleBatch
from modyn.storage.index.late_labels import LATE_LABELS, LateLabels, read_late_labels
from modyn.storage.index.segment_file import Segment
from modyn.storage.index.segment_index import SegmentIndex
from modyn.storage.index.tombstones import Tombstones
from modyn.storage.model.dataset_records import SamplePlace, located
from modyn.storage.model.samples import RecordReader, UInt32Array
from modyn.storage.model.schema import DatasetSchema
from modyn.storage.read.publication import INDEX, TOMBSTONES, Publication, map_names, map_stamps
from modyn.storage.read.record_readers import RecordReaders

_NAMED_KEYS = 5
"""Largest number of keys that an error names."""


@dataclass(frozen=True, slots=True, eq=False)
class DatasetSnapshot:
    """A dataset at `version`: the positions of samples, and the deleted keys. Immutable, so that readers need no lock.

    identity: identity of this registration; a dataset that is registered later under the same name has another identity. paths: full path of each
    file id. altered: ids of files whose indexed bytes have changed, uint32; their samples must not be read. may_lag: whether the snapshot may be
    older than storage's answers, because another machine may have written the publication. schema: the schema by which `reader` reads files; None:
    files are read as they are. late: the late labels.
    """

    config: DatasetConfig
    identity: str
    version: int
    float_labels: bool
    index: SegmentIndex
    tombstones: Tombstones
    paths: PathTable
    altered: UInt32Array
    reader: RecordReader
    may_lag: bool = False
    schema: DatasetSchema | None = None
    late: LateLabels = field(default_factory=LateLabels)

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.config.name

    def refuse_other(self, identity: str) -> None:
        """Raise NotFoundError if this registration has another identity than `identity`; empty: any identity is accepted."""
        if identity not in ("", self.identity):
            raise NotFoundError(
                f"dataset '{self.name}' was deleted, and another was registered under its name: its keys mean other samples now. Asked for "
                f"was the one with the identity {identity}, that of the present one is {self.identity}; submit again the runs of the old one"
            )

    def missing(self, keys: Int64Array) -> npt.NDArray[np.bool_]:
        """Return for each of `keys`, int64 (n,), whether it is unknown or deleted: bool (n,)."""
        return ~self.index.contains(keys) | self.tombstones.keys.contains(keys)

    def refuse_unknown(self, keys: Int64Array) -> None:
        """Check that each of `keys`, int64 (n,), belongs to a sample that exists or was deleted. Any other key is an error and is never skipped.

        Raises: UnavailableError: this index ends before a key, and may be too old to have the key. NotFoundError. The messages name the first keys.
        """
        unknown = keys[~self.index.contains(keys)]
        if not len(unknown):
            return
        if self.may_lag and int(unknown.min()) >= self.index.next_key:
            raise UnavailableError(
                f"the index of dataset '{self.name}' ends here at key {self.index.next_key - 1}, so {_named(unknown)} are unknown: the index is "
                "older than storage's, or storage has no such keys either; another payload server may have them"
            )
        raise NotFoundError(
            f"dataset '{self.name}' never had samples with the keys {_named(unknown)}: its keys are below {self.index.next_key}. These are of "
            "another dataset, or of one that was registered under its name before"
        )

    def refuse_missing(self, keys: Int64Array) -> None:
        """Raise NotFoundError that names the first deleted keys among `keys`, int64 (n,). Raises also the errors of `refuse_unknown`."""
        self.refuse_unknown(keys)
        deleted = keys[self.missing(keys)]
        if len(deleted):
            raise NotFoundError(
                f"dataset '{self.name}' has no samples with the keys {_named(deleted)} any more: they were deleted; leave them out, or ask with "
                'on_missing="skip", which continues without them'
            )

    def samples_by_key(self, keys: Int64Array) -> SampleBatch:
        """Return labels and timestamps of `keys`, int64 (n,), in this order. Raises NotFoundError if a sample is unknown or deleted."""
        self.refuse_missing(keys)
        found = self.index.samples_by_key(keys)
        assert found is not None, "unknown keys are refused"
        return SampleBatch(keys, found.timestamps, self.late.filled(keys, found.labels))

    def labelled(self, first: int, most: int) -> SampleBatch:
        """Return at most `most` samples with late labels, including deleted samples, from label number `first` on, in the order of arrival."""
        rows = self.late.rows(first, first + most)
        keys = np.ascontiguousarray(rows["key"])
        found = self.index.samples_by_key(keys)
        assert found is not None, "only samples get labels"
        labels = np.ascontiguousarray(rows["label"])
        return SampleBatch(keys, found.timestamps, labels.view(np.float64) if self.float_labels else labels)

    def places(self, keys: Int64Array) -> list[SamplePlace]:
        """Return the locations of the samples `keys`, int64 (n,), in this order. Raises NotFoundError if a sample is unknown or deleted."""
        samples, entries = self.samples_by_key(keys), self.index.entries(keys)
        assert entries is not None, "unknown keys are refused"
        lengths = np.broadcast_to(np.asarray(entries.lengths), len(keys)).tolist()
        columns = (keys.tolist(), entries.file_ids.tolist(), entries.offsets.tolist(), lengths, samples.labels.tolist())
        return [
            SamplePlace(key, sanitize(self.paths[file_id]), offset, length, label, timestamp)
            for key, file_id, offset, length, label, timestamp in zip(*columns, samples.timestamps.tolist(), strict=True)
        ]

    def count(self, interval: Interval, end_key: int | None = None) -> int:
        """Return the number of samples in [start, end). With `end_key`, count only samples with smaller keys."""
        return self.index.count_in_interval(interval, self.tombstones, end_key)

    def samples_in_interval(
        self,
        interval: Interval,
        batch_size: int,
        after: tuple[int, int] | None = None,
        end_key: int | None = None,
        end_label: int | None = None,
    ) -> Iterator[SampleBatch]:
        """Yield the samples of [start, end) in the order (timestamp, key). Args: after: only samples after this (timestamp, key). end_key: only
        samples with smaller keys. end_label: use only the first `end_label` late labels."""
        return self.late.fill(self.index.samples_in_interval(interval, batch_size, after, self.tombstones, end_key), end_label)

    def samples_from(self, first_key: int, batch_size: int) -> Iterator[SampleBatch]:
        """Yield the samples from `first_key` on in the order of keys, with their labels in the index, without late labels."""
        return self.index.samples_from(first_key, batch_size, self.tombstones)


def _named(keys: Int64Array) -> str:
    """Return the first keys of `keys` and the number of further keys as text."""
    more = f" and {len(keys) - _NAMED_KEYS} more" if len(keys) > _NAMED_KEYS else ""
    return ", ".join(str(key) for key in keys[:_NAMED_KEYS]) + more


class _WatchedFile:
    """The file at a path when this object was made; there may be no file. The file stays open, so that no other file gets its inode. A file that
    replaces it has another inode. After data was appended, such as tombstones, the file has another size.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._identity: tuple[int, int, int] | None = None
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # The file is missing or unreadable. A read of the file raises the error.
        status = os.fstat(self._descriptor)
        self._identity = status.st_dev, status.st_ino, status.st_size

    def is_current(self) -> bool:
        """Whether the path still leads to the same, unchanged file."""
        try:
            status = os.stat(self._path)
        except OSError:
            return self._identity is None
        return self._identity == (status.st_dev, status.st_ino, status.st_size)

    def __del__(self) -> None:
        # No other method closes the file, because another thread may be about to compare it.
        if self._descriptor is not None:
            os.close(self._descriptor)


def _are_current(files: tuple[_WatchedFile, ...]) -> bool:
    return all(file.is_current() for file in files)


class PublishedDataset:
    """The dataset that storage publishes in one folder. Any number of threads may use it."""

    def __init__(
        self,
        folder: Path,
        readers: RecordReaders,
        tombstones: Tombstones | None = None,
        may_lag: bool = False,
        verify: bool = True,
    ) -> None:
        """Args: tombstones: the tombstones, if this process itself writes them; None: the tombstones are read from the folder. may_lag: see
        `DatasetSnapshot`. verify: whether to compare files with their checksums when they are first opened, which reads the whole files.
        """
        self.folder = folder
        self._readers = readers
        self._may_lag, self._verify = may_lag, verify
        self._tombstones = tombstones
        # If this process writes the tombstones, it knows all deletions, and need not watch the file.
        self._watched = (INDEX, LATE_LABELS) if tombstones is not None else (INDEX, TOMBSTONES, LATE_LABELS)
        self._lock = threading.Lock()
        """Lets only one thread read the files. `_seen` is read without the lock, because a change assigns a new tuple."""
        self._seen: tuple[DatasetSnapshot, tuple[_WatchedFile, ...]] | None = None
        """The newest snapshot, and the files that it was made from."""
        self._segments: dict[str, Segment] = {}
        self._damaged: dict[str, str] = {}
        """Names of the damaged segments, each with the reason."""
        self._opened: tuple[PathTable, RecordReader] | None = None
        self._schema: DatasetSchema | None = None
        """The schema with which the reader in `_opened` was opened."""
        self._stamps: str | None = None
        """Name of the file of newer stamps that was applied last."""

    def snapshot(self) -> DatasetSnapshot:
        """Return the newest snapshot. If nothing has changed, this takes two or three `stat` calls.

        Raises: NotFoundError: the dataset was deleted. CorruptStateError. UnavailableError.
        """
        seen = self._seen
        if seen is not None and _are_current(seen[1]):
            return seen[0]
        with self._lock:
            while self._seen is None or not _are_current(self._seen[1]):
                # The files are opened before they are read, so a change during the read is detected.
                files = tuple(_WatchedFile(self.folder / name) for name in self._watched)
                try:
                    self._seen = self._read(), files
                    self._readers.forget_removed()
                except CorruptStateError:
                    # Storage may have replaced the publication and removed old files during the read. Then the newer publication is read.
                    if _are_current(files):
                        raise
            return self._seen[0]

    def _read(self) -> DatasetSnapshot:
        published = Publication.read(self.folder)
        damaged = dict(published.damaged)
        # An intact file of the same name may have replaced a damaged file, so the file is opened again.
        kept = {name: segment for name, segment in self._segments.items() if name not in self._damaged or name in damaged}
        segments = {name: kept.get(name) or self._open_segment(name, name not in damaged) for name in published.segments}
        if self._seen is not None and segments == self._segments and damaged == self._damaged:
            index = self._seen[0].index
        else:
            index = SegmentIndex(list(segments.values()), published.float_labels, damaged)
        paths, reader = self._files(published)
        snapshot = DatasetSnapshot(
            located(published.config, self.folder),
            published.identity,
            published.version,
            published.float_labels,
            index,
            self._tombstones
            if self._tombstones is not None
            else Tombstones.open(self.folder / TOMBSTONES, published.num_deleted, self._may_lag),
            paths,
            np.array(published.altered, np.uint32),
            reader,
            self._may_lag,
            published.schema,
            read_late_labels(
                self.folder / LATE_LABELS,
                None if self._seen is None else self._seen[0].late,
                published.num_labels,
                self._may_lag,
            ),
        )
        # Both fields are set last, so that after an error the fields still belong to the previous snapshot.
        self._segments, self._damaged = segments, damaged
        return snapshot

    def _open_segment(self, name: str, verify: bool) -> Segment:
        segment = Segment.open(self.folder / name)
        if self._verify and verify:
            segment.verify()
        return segment

    def _files(self, published: Publication) -> tuple[PathTable, RecordReader]:
        """Return the paths of all files, and their reader. New names are appended to the known names, so the name of a file id never changes."""
        if self._opened is None or published.schema != self._schema:
            table = self._opened and self._opened[0]
            self._opened = self._readers.open(located(published.config, self.folder), self.folder, published.schema, table)
            self._schema = published.schema
        paths, reader = self._opened
        first = 0
        for block in published.names:
            known = len(paths) - first
            if known < block.count:
                mapped = map_names(self.folder, block, self._verify)
                start = int(mapped.ends[known - 1]) if known else 0
                ends = mapped.ends[known:] - start if known else mapped.ends
                paths.append_packed(
                    mapped.text[start:], ends, mapped.sizes[known:], mapped.mtimes_ns[known:], mapped.tails[known:]
                )
            first += block.count
        if published.stamps is not None and published.stamps != self._stamps:
            paths.restamp(*map_stamps(self.folder / published.stamps, self._verify))
            self._stamps = published.stamps
        return paths, reader
