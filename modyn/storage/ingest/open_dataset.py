"""One dataset as the service sees it: an index that readers use without a lock, and the one way to change it.

A reader takes `index` once and works on that: it is immutable. A change is committed to the catalogue first and shown to readers then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from modyn.atomic_write import TEMPORARY_SUFFIX
from modyn.errors import InvalidArgumentError, ModynError, NotFoundError
from modyn.records import Int64Array, Interval, SampleBatch
from modyn.storage.catalogue.catalogue import Catalogue, Change, Contents, DatasetRow
from modyn.storage.files.file_system import LocalFiles, open_filesystem
from modyn.storage.files.stability import StabilityTracker
from modyn.storage.formats import build_format
from modyn.storage.formats.base import CHUNK_ROWS
from modyn.storage.index.segment_index import Segment, SegmentIndex
from modyn.storage.index.tombstones import BoolArray, Tombstones
from modyn.storage.ingest.file_indexer import GROWING_BYTES
from modyn.storage.model.file_table import FileTable
from modyn.storage.model.records import DatasetInfo
from modyn.storage.read.locality import Proof, ShortCutOffer
from modyn.storage.read.published import DELETIONS, PublishedIndex, Publisher
from modyn.storage.read.record_readers import RecordReaders
from modyn.storage.read.snapshot import missing_keys, refuse_missing

MAX_BATCH = 1_000_000
"""Most samples in one message of a stream: bounds what a careless client can make the service build."""


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """Bounds of memory and waiting of one ingestion."""

    held_samples: int = CHUNK_ROWS
    """A file with more samples is not held in memory: its segments are written as they fill."""
    growing_bytes: int = GROWING_BYTES
    """Files of this size or more may be appended to while they are indexed."""
    files_at_once: int = 1 << 14
    """Files of one sample that are indexed with one call: bounds what is held of them beside the listing."""
    flush_files: int = 1 << 15
    """New files that are committed together: bounds what is held of them, and the database works while the next ones are read."""
    flush_s: float = 1.0
    """Samples of complete files wait for at most so long for others to share their segment."""
    merge_run: int = 16
    """Neighbouring segments of about one size that become one: a sample is rewritten once per factor of 16, five times at most."""
    lock_wait_s: float = 600.0
    """How long an ingestion on request waits for another one of the same dataset."""


class RetrySchedule:
    """When files are tried again that could not be read though they did not change. In memory only: a restart tries all of them.

    Times are of a clock that never jumps. Each pause is twice the last one, so that a broken disk is not asked for all files at each look.
    """

    FIRST_S, LONGEST_S = 1.0, 300.0

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}

    def failed(self, path: str, tick: float) -> None:
        pause = min(self.LONGEST_S, 2 * self._pauses[path][1]) if path in self._pauses else self.FIRST_S
        self._pauses[path] = tick + pause, pause

    def is_due(self, path: str, tick: float) -> bool:
        return path not in self._pauses or tick >= self._pauses[path][0]

    def keep_only(self, problems: Container[str]) -> None:
        """Forget files that are no problem any more."""
        self._pauses = {path: pause for path, pause in self._pauses.items() if path in problems}


class OpenDataset:
    """A registered dataset. `folder` holds its segments and its deletions."""

    def __init__(self, catalogue: Catalogue, folder: Path, contents: Contents, settle_s: float, sources: RecordReaders) -> None:
        self.catalogue = catalogue
        self.folder = folder
        config = contents.row.config
        self.filesystem = open_filesystem(config.base_path)
        self.format = build_format(config.file_wrapper, config.file_wrapper_config, config.timestamp_source)
        self.stability = StabilityTracker(settle_s)
        self.retries = RetrySchedule()
        self.limits = IngestLimits()
        self.writing = threading.Lock()
        """Held by the ingestion of this process; the advisory lock of the database excludes other processes."""
        self.in_doubt = True
        """Files of segments may lie in the folder that the catalogue does not know, or the catalogue may know more than we do."""
        self._arrived = threading.Condition()
        self._deleting = threading.Lock()
        self._closed: ModynError | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.deletions = Tombstones.open(folder / DELETIONS)
        self.deletions.announce()
        self.published = PublishedIndex(folder, sources)
        """What readers of payloads see, in this process and in others."""
        self._proof = Proof(folder)
        self._load(contents)

    def _load(self, contents: Contents) -> None:
        self.files = FileTable(contents.files)
        self.problems: dict[str, str] = dict(contents.problems)
        """Signature by path."""
        self._file_names = {segment.info.first_key: segment.file_name for segment in contents.segments}
        self._segments = {first: Segment.open(self.folder / name) for first, name in self._file_names.items()}
        self.index = SegmentIndex(list(self._segments.values()), contents.row.float_labels)
        self._publisher = Publisher(self.folder)
        # Last: `refresh` goes by its version, and loads again what could not be loaded.
        self.row: DatasetRow = contents.row

    @property
    def name(self) -> str:
        return self.row.config.name

    @property
    def base_path(self) -> str:
        return str(self.row.config.base_path)

    def info(self) -> DatasetInfo:
        index, num_deleted = self.index, self.deletions.count
        return DatasetInfo(
            config=self.row.config,
            num_samples=index.num_samples - num_deleted,
            num_files=len(self.files),
            num_problems=len(self.problems),
            next_key=index.next_key,
            min_timestamp=index.min_timestamp,
            max_timestamp=index.max_timestamp,
            num_deleted=num_deleted,
            float_labels=self.row.float_labels,
        )

    # Reading

    def missing(self, keys: Int64Array) -> BoolArray:
        """For each key, whether there is no sample with it (any more): bool (n,)."""
        return missing_keys(keys, self.index, self.deletions)

    def refuse_missing(self, keys: Int64Array) -> None:
        """Raises NotFoundError naming the first keys that are missing."""
        refuse_missing(self.name, keys, self.index, self.deletions)

    def samples_by_key(self, keys: Int64Array) -> SampleBatch:
        self.refuse_missing(keys)
        return self.index.samples_by_key(keys)

    def count(self, interval: Interval) -> int:
        return self.index.count_in_interval(interval, self.deletions)

    def samples_in_interval(
        self, interval: Interval, batch_size: int, after: tuple[int, int] | None = None
    ) -> Iterator[SampleBatch]:
        """Samples of [start, end) in the order (timestamp, key), as they are when the call begins."""
        return self.index.samples_in_interval(interval, _batch_size(batch_size), after, self.deletions)

    def new_samples(self, first_key: int, batch_size: int, is_active: Callable[[], bool]) -> Iterator[SampleBatch]:
        """Samples from `first_key` on in order of key; waits for new ones while `is_active`. `wake` makes it look at that again."""
        batch_size = _batch_size(batch_size)
        if first_key < 0:
            raise InvalidArgumentError(f"first_key is {first_key}; keys begin with 0")
        while is_active():
            index = self.index
            for batch in index.samples_from(first_key, batch_size, self.deletions):
                if not is_active():
                    return
                if len(batch):
                    yield batch
            first_key = max(first_key, index.next_key)
            with self._arrived:
                while self.index is index and is_active() and self._closed is None:
                    self._arrived.wait()
            if self._closed is not None:
                raise self._closed

    def wake(self) -> None:
        with self._arrived:
            self._arrived.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    def close(self, error: ModynError) -> None:
        """Streams of new samples end with `error`."""
        self._closed = error
        self.wake()

    def offer_short_cut(self) -> ShortCutOffer:
        """What a reader on this machine needs to read what is published here, and the data files, by itself."""
        if not isinstance(self.filesystem, LocalFiles):
            return ShortCutOffer(f"its files lie at {self.base_path}, which is no folder of this machine")
        return self._proof.offer(self.base_path, self.published.view().paths)

    # Changing

    def delete_samples(self, keys: Int64Array) -> int:
        """Deletes those of `keys` that exist, for good; how many there were. Durable on return."""
        with self._deleting:
            return self.deletions.add(keys[~self.missing(keys)])

    def refresh(self) -> None:
        """Makes sure, with the writers' locks held, that this and what is published are what the catalogue says, and removes segments that it
        does not know.

        NotFoundError: the dataset was deleted.
        """
        version = self.catalogue.version(self.row.id)
        if version == self.row.version and not self.in_doubt:
            return
        contents = self.catalogue.contents(self.name) if version is not None else None
        if contents is None or contents.row.id != self.row.id:
            error = NotFoundError(f"dataset '{self.name}' was deleted")
            self.close(error)
            raise error
        # Until all of this is done: the row alone would tell the next refresh that there is nothing to do.
        self.in_doubt = True
        if version != self.row.version:
            self._load(contents)
        self._publish(self.row)
        self.wake()
        known = set(self._file_names.values())
        for path in self.folder.glob("*.segment*"):
            if path.name not in known:
                path.unlink(missing_ok=True)
        with self._deleting:
            for path in self.folder.glob(f"deletions*{TEMPORARY_SUFFIX}"):
                path.unlink(missing_ok=True)
        self.in_doubt = False

    def commit(self, change: Change) -> None:
        """Commits `change`, whose segments are complete files in `folder`, publishes it, and shows it then: a key that anybody is told can be
        read wherever payloads are read."""
        self.in_doubt = True
        version = self.catalogue.commit(self.row.id, self.row.version, change)
        self.files.add(change.new_files)
        self.files.change(change.changed_files)
        for path in change.solved:
            self.problems.pop(path, None)
        self.problems.update({problem.path: problem.signature for problem in change.problems})
        added = {row.info.first_key: Segment.open(self.folder / row.file_name) for row in change.segments}
        replaced = [self._file_names.pop(first) for first in change.replaced_segments]
        for first in change.replaced_segments:
            del self._segments[first]
        self._segments.update(added)
        self._file_names.update({row.info.first_key: row.file_name for row in change.segments})
        row = replace(self.row, next_key=change.next_key, version=version)
        # If this fails, the row is still the old one: `refresh` then starts from what the catalogue says.
        self._publish(row, [file.file_id for file in change.changed_files])
        self.row = row
        if replaced:
            self.index = SegmentIndex(list(self._segments.values()), self.row.float_labels)
        elif added:
            self.index = self.index.with_segments(list(added.values()))
        # Readers of the old index keep their maps: a file lives on without a name.
        for name in replaced:
            (self.folder / name).unlink(missing_ok=True)
        self.in_doubt = False
        self.wake()

    def _publish(self, row: DatasetRow, changed: Sequence[int] = ()) -> None:
        names = [self._file_names[first] for first in sorted(self._file_names)]
        self._publisher.publish(row.config, row.version, row.float_labels, names, self.files, changed)

    def segments(self) -> Sequence[Segment]:
        """In order of key."""
        return [self._segments[first] for first in sorted(self._segments)]

    def path_of(self, file_id: int) -> str:
        return self.filesystem.full_path(self.files.paths[file_id])


def _batch_size(asked: int) -> int:
    if not 1 <= asked <= MAX_BATCH:
        raise InvalidArgumentError(f"batch_size is {asked}; allowed are 1 to {MAX_BATCH:,}")
    return asked
