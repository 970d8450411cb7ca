"""One registered dataset as the service holds it: its state in the catalogue, its publication, and the one way to change both.

A change is committed to the catalogue first and published then. Every read, in this process and in others, sees the publication.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from modyn.atomic_write import TEMPORARY_SUFFIX, make_folder
from modyn.config.dataset import DatasetConfig
from modyn.errors import CorruptStateError, InvalidArgumentError, ModynError, NotFoundError
from modyn.records import Int64Array, LabelArray, SampleBatch
from modyn.retention import set_aside
from modyn.rpc.logs import get_logger
from modyn.storage.catalogue.catalogue import Catalogue, Change, Contents, DatasetRow
from modyn.storage.files.file_system import UNPACKED
from modyn.storage.files.local import LocalFiles, open_filesystem
from modyn.storage.files.stability import StabilityTracker
from modyn.storage.files.unpacked import UnpackedCopies
from modyn.storage.formats import build_format
from modyn.storage.index import late_labels
from modyn.storage.index.tombstones import Tombstones
from modyn.storage.ingest.format_runner import FormatRunner
from modyn.storage.ingest.limits import IngestLimits
from modyn.storage.ingest.publisher import Publisher
from modyn.storage.ingest.retry_schedule import RetrySchedule
from modyn.storage.model.file_table import FileTable
from modyn.storage.model.records import AppendedRecord, DatasetInfo, FileProblem, LateLabelBatch, located
from modyn.storage.model.schema import DatasetSchema
from modyn.storage.read.locality import Proof
from modyn.storage.read.publication import TOMBSTONES, last_published
from modyn.storage.read.record_readers import RecordReaders
from modyn.storage.read.scrub import scrub
from modyn.storage.read.snapshot import DatasetSnapshot, PublishedDataset

QUARANTINE = "quarantine"
"""Folder of segments that no catalogue row named, below that of the dataset."""


class OpenDataset:
    """A registered dataset. `folder` holds its segments, its tombstones and its publication.

    Args: readers, runner: what its files are read and indexed with, which all datasets share.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        folder: Path,
        contents: Contents,
        settle_s: float,
        readers: RecordReaders,
        runner: FormatRunner,
    ) -> None:
        self.catalogue = catalogue
        self.folder = folder
        self._roots = readers.roots
        self.runner = runner
        self.stability = StabilityTracker(settle_s)
        self.retries = RetrySchedule()
        self.limits = IngestLimits()
        self.writing = threading.Lock()
        """Held by the ingestion of this process; the advisory lock of the database excludes other processes."""
        self.scan_by = 0.0
        """When the folder is scanned although it is quiet, on the monotonic clock."""
        self.in_doubt = True
        """The folder may hold segments that the catalogue does not know, or the catalogue may be ahead of this object or of the publication."""
        self._arrived = threading.Condition()
        """Wakes the streams of new samples: a publication changed, a client left, or the dataset was closed."""
        self._deleting = threading.Lock()
        """Keeps the temporary file of a deletion from being swept."""
        self.damaged: list[FileProblem] = []
        """Files of the index that are known to be damaged, missing or unreadable; replaced as a whole."""
        self._damage_lock = threading.Lock()
        """Makes changes of `damaged` one at a time: scrubs and the ingestion find damage."""
        self.closed: ModynError | None = None
        """The error that ends streams of new samples, once the dataset is closed."""
        make_folder(folder)
        self._labelling = threading.Lock()
        """Lets one thread at a time look which labels are there and add to them."""
        self._publishing = threading.Lock()
        """Orders publications: deletions are published without the locks of the writers, for which they would wait until an ingestion ends."""
        published = last_published(folder)
        self._tombstones = Tombstones.open(folder / TOMBSTONES, published.num_deleted if published is not None else 0)
        self._tombstones.announce()
        self._num_labels = late_labels.open_late_labels(
            folder / late_labels.LATE_LABELS, published.num_labels if published is not None else 0
        )
        self._published = PublishedDataset(folder, readers, self._tombstones)
        self.proof = Proof(folder)
        self.unpacked = UnpackedCopies(folder / UNPACKED)
        self.has_outdated_copies = True
        """There may be unpacked copies that no file needs."""
        self._load(contents)

    def _load(self, contents: Contents) -> None:
        self.files: FileTable = contents.files
        self.problems: dict[str, str] = dict(contents.problems)
        """Signature by path."""
        self._num_skipped = contents.num_skipped
        self._segment_names = {segment.info.first_key: segment.file_name for segment in contents.segments}
        self._publisher = Publisher(self.folder)
        self.declared_schema: DatasetSchema | None = None
        """What options say of the schema before a file is indexed."""
        self._configure(contents.row.config, contents.row.schema)
        # Last: `refresh` compares its version, and loads again what could not be loaded.
        self.row: DatasetRow = contents.row

    def _configure(self, config: DatasetConfig, schema: DatasetSchema | None) -> None:
        if config.holds_records:  # They lie in a folder of storage, which alone writes there.
            self.filesystem = open_filesystem(located(config, self.folder).base_path)
            self.format = build_format(config.file_wrapper, config.file_wrapper_config, config.timestamp_source)
            return
        self.filesystem = open_filesystem(config.base_path, self._roots)
        self.format = build_format(config.file_wrapper, config.file_wrapper_config, config.timestamp_source)
        if isinstance(self.filesystem, LocalFiles):  # Objects are indexed by way of copies, which lie elsewhere.
            self.format.roots = self._roots.folders
        self.declared_schema = self.format.schema
        self.format.schema = schema or self.declared_schema

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.row.config.name

    # Reading

    @property
    def num_deleted(self) -> int:
        """Samples that are deleted."""
        return len(self._tombstones.keys)

    def snapshot(self) -> DatasetSnapshot:
        """The dataset as all readers see it now. Raises NotFoundError if it was deleted, CorruptStateError, UnavailableError."""
        try:
            return self._published.snapshot()
        except NotFoundError as error:
            raise self.closed or NotFoundError(f"dataset '{self.name}' was deleted") from error

    def info(self) -> DatasetInfo:
        """The registration of the dataset and the extent of its index."""
        snapshot, num_deleted = self.snapshot(), len(self._tombstones.keys)
        index = snapshot.index
        return DatasetInfo(
            config=self.row.config,
            identity=self.row.identity,
            num_samples=index.num_samples - num_deleted,
            num_files=len(self.files),
            num_problems=len(self.problems) + len(self.damaged),
            next_key=index.next_key,
            min_timestamp=index.min_timestamp,
            max_timestamp=index.max_timestamp,
            num_deleted=num_deleted,
            float_labels=self.row.float_labels,
            num_skipped=self._num_skipped,
            schema=self.row.schema or self.declared_schema,
            num_labels=len(snapshot.late),
            num_unlabelled=index.num_unlabelled - len(snapshot.late),
        )

    def new_samples(self, first_key: int, batch_size: int, is_active: Callable[[], bool]) -> Iterator[SampleBatch]:
        """Samples from `first_key` on in order of key; waits for new ones while `is_active`, which is asked again after each `wake`.

        Raises: InvalidArgumentError: `first_key` is negative. NotFoundError: the dataset was deleted. UnavailableError: storage stops.
        """
        if first_key < 0:
            raise InvalidArgumentError(f"first_key is {first_key}; keys begin with 0")
        while is_active():
            snapshot = self.snapshot()
            for batch in snapshot.samples_from(first_key, batch_size):
                if not is_active():
                    return
                yield batch
            first_key = max(first_key, snapshot.index.next_key)
            # Looked at with the lock held: a publication between the look and the wait would not wake this stream.
            with self._arrived:
                while self.closed is None and is_active() and self.snapshot().index is snapshot.index:
                    self._arrived.wait()
            if self.closed is not None:
                raise self.closed

    def set_labels(self, keys: Int64Array, labels: LabelArray) -> list[AppendedRecord]:
        """Give samples the labels that they came without, durably; an answer for each, in order. A label that differs changes nothing.

        Args: keys: int64 (n,), of samples that there are or were. Raises: UnavailableError: the disk cannot be written to; none is set.
        """
        with self._labelling:
            snapshot = self.snapshot()
            found = snapshot.index.samples_by_key(keys)
            assert found is not None, "records are samples before they get labels"
            answers, rows = late_labels.answers_to_labels(keys, labels, snapshot.late.filled(keys, found.labels))
            if len(rows):
                late = late_labels.append_late_labels(
                    self.folder / late_labels.LATE_LABELS, snapshot.late, keys[rows], labels[rows], int(time.time())
                )
                self._num_labels = len(late)
                self._publish_counts()
        self.wake()
        return answers

    def new_labels(self, first: int, batch_size: int, is_active: Callable[[], bool]) -> Iterator[LateLabelBatch]:
        """Labels that came late, from number `first` on; waits for new ones. Args, Raises: as of `new_samples`. CorruptStateError: some are lost."""
        late_labels.check_late_labels(self.name, first, len(self.snapshot().late))
        while is_active():
            snapshot = self.snapshot()
            while first < len(snapshot.late):
                if not is_active():
                    return
                samples = snapshot.labelled(first, batch_size)
                found = LateLabelBatch(first, samples, snapshot.missing(samples.keys))
                yield found
                first = found.end
            with self._arrived:  # A publication, a client that left, or the end of the dataset wakes it.
                while self.closed is None and is_active() and len(self.snapshot().late) <= first:
                    self._arrived.wait()
            if self.closed is not None:
                raise self.closed

    def wake(self) -> None:
        """Make streams of new samples look again for samples, at their client, and whether the dataset is closed."""
        with self._arrived:
            self._arrived.notify_all()

    def scrub(self, goes_on: Callable[[], bool] = lambda: True) -> list[FileProblem]:
        """Compare the files of the index with their checksums; return those that are damaged, missing or unreadable. `damaged` follows each one.

        Args: goes_on: asked after each file; once it returns False, the others are left.
        Raises: NotFoundError: the dataset was deleted. UnavailableError: its publication cannot be read.
        """
        known_before, checked = self.damaged, dict[str, FileProblem | None]()
        for path, problem in scrub(self.folder):
            checked[path] = problem
            self.report_damage(path, problem)
            if not goes_on():
                break
        else:
            with self._damage_lock:  # of files that are no part of the index any more
                self.damaged = [known for known in self.damaged if known.path in checked or known not in known_before]
            self._publish_damage()
        return [problem for problem in checked.values() if problem is not None]

    def report_damage(self, path: str, problem: FileProblem | None) -> None:
        """Note what a comparison of a file of the index found; a problem is logged when it becomes known. From then on no sample of a damaged
        segment or file of records is served, in any process."""
        with self._damage_lock:
            others = [known for known in self.damaged if known.path != path]
            if problem is not None and len(others) == len(self.damaged):
                get_logger("storage").error("index_file_damaged", dataset=self.name, path=path, reason=problem.reason)
            self.damaged = others if problem is None else [*others, problem]
        self._publish_damage()

    def _publish_damage(self) -> None:
        with self._publishing:
            self._publisher.publish_damage(self.files, self._damaged_by_name())

    def _damaged_by_name(self) -> dict[str, str]:
        """Why each damaged file of the index is not to be read, by its path below the folder."""
        return {os.path.relpath(known.path, self.folder): known.reason for known in self.damaged}

    def close(self, error: ModynError) -> None:
        """End streams of new samples with `error`."""
        self.closed = error
        self.wake()

    # Changing

    def delete_samples(self, keys: Int64Array) -> int:
        """Delete those of `keys`, int64 (n,), that exist, for good; return how many are deleted now, also if they were before. Durable on return.

        A request that is repeated because its answer was lost gets the same answer.
        """
        with self._deleting:
            existing = np.unique(keys[self.snapshot().index.contains(keys)])
            self._tombstones.add(existing)
            self._publish_counts()
            return len(existing)

    def _publish_counts(self) -> None:
        with self._publishing:
            self._publisher.publish_counts(self.num_deleted, self._num_labels)

    def refresh(self) -> None:
        """Make this object and the publication what the catalogue says, and set segments aside that it does not know.

        Call with the locks of the writers held. Raises: NotFoundError: the dataset was deleted. CorruptStateError: the catalogue is older than
        the index; nothing is changed then. ConflictError: another process changes the dataset although the locks are held here.
        """
        # Before the catalogue, which is always as new: a change is committed before it is published.
        last = last_published(self.folder) if self.in_doubt else None
        published = max(self.row.version, last.version if last is not None else 0)
        version = self.catalogue.version(self.row.id)
        if version is not None and version < published:
            raise CorruptStateError(
                f"the database knows dataset '{self.name}' up to version {version}, and its index in {self.folder} is of version {published}: "
                "the database was restored from a backup. The dataset can be read, but nothing is indexed, so that no key is given twice. "
                f"Restore a newer backup, or take what the database lacks from the index with `modyn data rebuild {self.name}`"
            )
        if version == self.row.version and not self.in_doubt:
            return
        contents = self.catalogue.contents(self.name) if version is not None else None
        if contents is None or contents.row.id != self.row.id:
            error = NotFoundError(f"dataset '{self.name}' was deleted")
            self.close(error)
            raise error
        # Until all of this is done: by the row alone, the next refresh would find nothing to do.
        self.in_doubt = True
        if version != self.row.version:
            self._load(contents)
        known = set(self._segment_names.values())
        strays = [path for path in self.folder.glob("*.segment*") if path.name not in known]
        if strays:
            # One of them may be of a process that has lost its lock and is about to commit it: after this change it cannot.
            swept, _ = self.catalogue.commit(self.row.id, self.row.version, Change(self.row.next_key))
            self.row = replace(self.row, version=swept)
        self._publish(self.row)
        self.wake()
        for path in strays:
            self._set_aside(path)
        with self._deleting:
            for path in self.folder.glob(f"{TOMBSTONES}*{TEMPORARY_SUFFIX}"):
                path.unlink(missing_ok=True)
        self.in_doubt = False

    def _set_aside(self, segment: Path) -> None:
        """Move a segment that the catalogue does not know out of the way. It is kept: should the catalogue be wrong, it is all there is."""
        with suppress(FileNotFoundError):
            if segment.suffix == TEMPORARY_SUFFIX:
                segment.unlink()
                return
            path = set_aside(segment, self.folder / QUARANTINE)
            get_logger("storage").warning("segment_set_aside", dataset=self.name, path=str(path))

    def change_options(self, config: DatasetConfig) -> None:
        """Index from now on as `config` says; files that were set aside are tried again. Call with the locks of the writers held.

        Raises: InvalidArgumentError: an option says something of what is indexed already. ConfigError: an option is wrong.
        """
        old = self.row.config
        known, wanted = (build_format(c.file_wrapper, c.file_wrapper_config, c.timestamp_source) for c in (old, config))
        fixed = {
            name: (getattr(old, name), getattr(config, name)) for name in ("base_path", "file_wrapper", "filesystem_wrapper")
        }
        fixed["label_type"] = known.config.label_type, wanted.config.label_type
        fixed["what a payload is"] = known.payload_reader(), wanted.payload_reader()
        schema = self.row.schema and wanted.declared(self.row.schema)
        if self.row.schema and schema and schema.payloads != "json":  # the fields that a line must have are nothing that is read
            fixed["the schema"] = [*map(str, self.row.schema.columns)], [*map(str, schema.columns)]
        elif schema and not schema.decided_by and wanted.schema is None:
            schema = None  # No option decides any more, but the first file that can be read, at the next look.
        for name, (before, asked) in fixed.items():
            if before != asked:
                raise InvalidArgumentError(
                    f"{name} of dataset '{self.name}' is {before}, not {asked}, and holds for samples that are indexed: it cannot be changed. "
                    "Register a dataset of another name"
                )
        self.in_doubt = True
        version = self.catalogue.change_config(self.row.id, self.row.version, config, schema)
        row = replace(self.row, config=config, version=version, schema=schema)
        self._configure(config, schema)
        self._publish(row)
        self.row = row
        self.problems = dict.fromkeys(self.problems, "")  # A signature that no file has.
        self.stability = StabilityTracker(self.stability.settle_s)
        self.in_doubt = False

    def commit(self, change: Change) -> None:
        """Commit `change`, whose segments are complete files in `folder`, and publish it: a key that a client knows can be read everywhere."""
        self.in_doubt = True
        version, num_skipped = self.catalogue.commit(self.row.id, self.row.version, change)
        self.files.add(change.new_files)
        self.files.change([*change.changed_files, *change.forgotten])
        for path in change.solved:
            self.problems.pop(path, None)
        self._num_skipped += num_skipped
        self.problems.update({problem.path: problem.signature for problem in change.problems})
        replaced = [self._segment_names.pop(first) for first in change.replaced_segments]
        self._segment_names.update({row.info.first_key: row.file_name for row in change.segments})
        row = replace(self.row, next_key=change.next_key, version=version, schema=change.schema or self.row.schema)
        # If this fails, the row is still the old one: `refresh` then starts from what the catalogue says.
        self._publish(row, [file.file_id for file in (*change.changed_files, *change.forgotten)])
        self.row = row
        # Snapshots that are in use keep their maps: a file lives on without a name.
        for name in replaced:
            (self.folder / name).unlink(missing_ok=True)
        self.in_doubt = False
        self.wake()

    def _publish(self, row: DatasetRow, changed: Sequence[int] = ()) -> None:
        names = [self._segment_names[first] for first in sorted(self._segment_names)]
        with self._publishing:
            self._publisher.publish(row, names, self.files, changed, self.num_deleted, self._damaged_by_name(), self._num_labels)
