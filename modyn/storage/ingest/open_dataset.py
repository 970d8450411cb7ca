"""One registered dataset in the service. Only this object changes the dataset's catalogue rows and publication. A change is first committed to the
catalogue and then published. All readers, in this process and in other processes, read the publication.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from modyn.atomic_write import TEMPORARY_SUFFIX, make_folder
from modyn.config.dataset import DatasetConfig
from modyn.errors import CorruptStateError, InvalidArgumentError, ModynError, NotFoundError
from modyn.keep_limits import set_aside
from modyn.records import Int64Array, LabelArray, SampleBatch
from modyn.rpc.logs import get_logger
from modyn.storage.catalogue.catalogue import Catalogue, Change, Contents, DatasetRow
from modyn.storage.files.file_system import UNPACKED
from modyn.storage.files.local import LocalFiles, open_filesystem
from modyn.storage.files.stability import StabilityTracker
from modyn.storage.files.unpacked import UnpackedCopies
from modyn.storage.formats import build_format
from modyn.storage.formats.base import RowGroups
from modyn.storage.index import late_labels
from modyn.storage.index.tombstones import Tombstones
from modyn.storage.ingest.format_runner import FormatRunner
from modyn.storage.ingest.limits import IngestLimits
from modyn.storage.ingest.publisher import Publisher
from modyn.storage.model.dataset_records import AppendedRecord, DatasetInfo, FileProblem, LateLabelBatch, located
from modyn.storage.model.file_table import FileTable
from modyn.storage.model.schema import DatasetSchema, columns_of, listed
from modyn.storage.read.locality import Proof
from modyn.storage.read.publication import TOMBSTONES, last_published
from modyn.storage.read.record_readers import RecordReaders
from modyn.storage.read.scrub import scrub
from modyn.storage.read.snapshot import DatasetSnapshot, PublishedDataset

QUARANTINE = "quarantine"
"""Name of the folder, in the dataset's folder, for segments that the catalogue does not know."""


class OpenDataset:
    """A registered dataset. `folder` contains the segments, tombstones and publication of the dataset.

    Args: readers, runner: the objects that read and index the dataset's files. All datasets share these objects.
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
        """Lock of the ingestion in this process. The advisory lock of the database excludes ingestions in other processes."""
        self.scan_by = 0.0
        """Time of the next scan of a quiet folder, on the monotonic clock."""
        self.in_doubt = True
        """Whether `refresh` must read the catalogue: the folder may contain segments that the catalogue does not know, or this object or the
        publication may be older than the catalogue."""
        self._arrived = threading.Condition()
        """Wakes the streams of new samples when a publication has changed, a client has disconnected, or the dataset was closed."""
        self._deleting = threading.Lock()
        """Held during a deletion, so that `refresh` does not remove the temporary file of the deletion."""
        self.damaged: list[FileProblem] = []
        """Files of the index that are known to be damaged, missing or unreadable. A change assigns a new list; the old list is never changed."""
        self._damage_lock = threading.Lock()
        """Lets one thread at a time change `damaged`, because scrubs and ingestions find damage at the same time."""
        self.closed: ModynError | None = None
        """The error that ends streams of new samples, once the dataset is closed."""
        make_folder(folder)
        self._labelling = threading.Lock()
        """Lets one thread at a time read the existing labels and add new labels."""
        self._publishing = threading.Lock()
        """Lets one publication run at a time. Deletions are published without the locks of the writers, because these locks are held until an
        ingestion ends."""
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
        """Whether there may be unpacked copies that no file needs."""
        self._load(contents)

    def _load(self, contents: Contents) -> None:
        self.files: FileTable = contents.files
        self.problems: dict[str, str] = dict(contents.problems)
        """Signatures of the problems, by path."""
        self._num_skipped = contents.num_skipped
        self._segment_names = {segment.info.first_key: segment.file_name for segment in contents.segments}
        self._publisher = Publisher(self.folder)
        self.declared_schema: DatasetSchema | None = None
        """The schema that options alone define, before any file is indexed."""
        self._configure(contents.row.config, contents.row.schema)
        # The version is set last: `refresh` compares it, and repeats a failed load.
        self.row: DatasetRow = contents.row

    def _configure(self, config: DatasetConfig, schema: DatasetSchema | None) -> None:
        if config.holds_records:  # Records are in a folder of storage, and only storage writes there.
            self.filesystem = open_filesystem(located(config, self.folder).base_path)
            self.format = build_format(config.file_wrapper, config.file_wrapper_config, config.timestamp_source)
            return
        self.filesystem = open_filesystem(config.base_path, self._roots)
        self.format = build_format(config.file_wrapper, config.file_wrapper_config, config.timestamp_source)
        if isinstance(self.filesystem, LocalFiles):  # Objects are indexed from copies, which are outside the roots.
            self.format.roots = self._roots.folders
        self.declared_schema = self.format.schema
        self.format.schema = columns_of(schema) or self.declared_schema

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.row.config.name

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the committed classes."""
        return self.row.schema.classes if self.row.schema else ()

    # Reading

    @property
    def num_deleted(self) -> int:
        """Number of deleted samples."""
        return len(self._tombstones.keys)

    def snapshot(self) -> DatasetSnapshot:
        """Return the published snapshot. Raises: NotFoundError: the dataset was deleted. CorruptStateError, UnavailableError."""
        try:
            return self._published.snapshot()
        except NotFoundError as error:
            raise self.closed or NotFoundError(f"dataset '{self.name}' was deleted") from error

    def info(self) -> DatasetInfo:
        """Return the registration of the dataset and the extent of its index."""
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
        """Yield samples from `first_key` on in the order of keys, and wait for new samples while `is_active` returns True. After each `wake`,
        `is_active` is called again.

        Raises: InvalidArgumentError: `first_key` is negative. NotFoundError: the dataset was deleted. UnavailableError: storage is stopping.
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
            self._wait_for_change(is_active, snapshot)

    def set_labels(self, keys: Int64Array, labels: LabelArray) -> list[AppendedRecord]:
        """Durably set the labels of samples without a label. Returns an answer for each label, in order. If a sample has a label already, the sample
        keeps this label.

        Args: keys: int64 (n,), of existing or deleted samples.
        Raises: UnavailableError: the disk cannot be written to; no label is set.
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
        """Yield late labels from number `first` on, and wait for new labels. Args, Raises: see `new_samples`; CorruptStateError: some labels are
        lost."""
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
            self._wait_for_change(is_active, snapshot)

    def _wait_for_change(self, is_active: Callable[[], bool], before: DatasetSnapshot) -> None:
        """Wait until the dataset differs from `before`, or until `is_active` returns False. Raises: NotFoundError, UnavailableError: the dataset was
        closed.
        """
        # A publication, a disconnected client or the end of the dataset ends this wait. The conditions are checked with the lock held, because
        # otherwise a publication between check and wait would not end the wait.
        with self._arrived:
            self._arrived.wait_for(lambda: self.closed is not None or not is_active() or self.snapshot() is not before)
        if self.closed is not None:
            raise self.closed

    def wake(self) -> None:
        """Make each stream of new samples check for new samples, for the end of its client, and for the end of the dataset."""
        with self._arrived:
            self._arrived.notify_all()

    def scrub(self, continues: Callable[[], bool] = lambda: True) -> list[FileProblem]:
        """Compare the files of the index with their checksums. Return the files that are damaged, missing or unreadable. `damaged` is updated after
        each file.

        Args: continues: called after each file; if it returns False, the scrub ends.
        Raises: NotFoundError: the dataset was deleted. UnavailableError: the dataset's publication cannot be read.
        """
        known_before, checked = self.damaged, dict[str, FileProblem | None]()
        for path, problem in scrub(self.folder):
            checked[path] = problem
            self.report_damage(path, problem)
            if not continues():
                break
        else:
            with self._damage_lock:
                # Drop earlier problems of files that no longer belong to the index.
                self.damaged = [known for known in self.damaged if known.path in checked or known not in known_before]
            self._publish_damage()
        return [problem for problem in checked.values() if problem is not None]

    def report_damage(self, path: str, problem: FileProblem | None) -> None:
        """Record whether a file of the index has a `problem`; None: the file is intact. A new problem is logged. After this call, no process serves
        samples of a damaged segment or file of records."""
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
        """Return the reasons for the damaged files of the index, by path relative to `folder`."""
        return {os.path.relpath(known.path, self.folder): known.reason for known in self.damaged}

    def close(self, error: ModynError) -> None:
        """End streams of new samples with `error`."""
        self.closed = error
        self.wake()

    # Changing

    def delete_samples(self, keys: Int64Array) -> int:
        """Delete the existing samples of `keys`, int64 (n,), permanently. Returns the number of these samples, including samples that were deleted
        earlier, so that a repeated call returns the same number. When the method returns, the deletion is durable.
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
        """Update this object and the publication from the catalogue, and set aside segments that the catalogue does not know.

        Call with the locks of the writers held. Raises: NotFoundError: the dataset was deleted. CorruptStateError: the catalogue is older than the
        index; then nothing is changed. ConflictError: another process changes the dataset although the locks are held here.
        """
        # The publication is read before the catalogue. A change is committed before it is published, so the catalogue must be at least as new.
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
        # `in_doubt` stays true until all steps have succeeded. Otherwise, after a failure, the next refresh would see the new row and do nothing.
        self.in_doubt = True
        if version != self.row.version:
            self._load(contents)
        known = set(self._segment_names.values())
        strays = [path for path in self.folder.glob("*.segment*") if path.name not in known]
        if strays:
            # A process that has lost its lock may be about to commit one of these segments. After this change of the version, its commit fails.
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
        """Move a segment that the catalogue does not know to quarantine. If the catalogue is wrong, the segment is the only copy of its samples."""
        with suppress(FileNotFoundError):
            if segment.suffix == TEMPORARY_SUFFIX:
                segment.unlink()
                return
            path = set_aside(segment, self.folder / QUARANTINE)
            get_logger("storage").warning("segment_set_aside", dataset=self.name, path=str(path))

    def change_options(self, config: DatasetConfig) -> None:
        """Use the options of `config` for later indexing. Files that were set aside are tried again. Call with the locks of the writers held.

        Raises: InvalidArgumentError: an option differs that must not change once samples are indexed. ConfigError: an option is wrong.
        """
        old = self.row.config
        known, wanted = (build_format(c.file_wrapper, c.file_wrapper_config, c.timestamp_source) for c in (old, config))
        fixed = {
            name: (getattr(old, name), getattr(config, name)) for name in ("base_path", "file_wrapper", "filesystem_wrapper")
        }
        fixed["label_type"] = known.config.label_type, wanted.config.label_type
        if self.info().num_samples:  # A change would mix labels or times of two columns. Without samples, a change is allowed.
            fixed["timestamp_source"] = old.timestamp_source, config.timestamp_source
            fixed["times"] = getattr(known.config, "times", ""), getattr(wanted.config, "times", "")
            asked_labels = wanted.labels_by
            fixed |= {name: (value, asked_labels.get(name)) for name, value in known.labels_by.items()}
        if self.classes:  # The committed classes keep their numbers, so other first classes would have no effect.
            fixed["label_classes"] = known.config.label_classes, wanted.config.label_classes
        if self.row.next_key:
            fixed["what a payload is"] = known.payload_reader(), wanted.payload_reader()
        has_columns = columns_of(self.row.schema)
        schema = has_columns and wanted.declared(has_columns)
        if has_columns and schema and schema.payloads != "json":  # required fields do not affect how lines are read
            fixed["the schema"] = [*map(str, has_columns.columns)], [*map(str, schema.columns)]
        elif schema and not schema.decided_by and wanted.schema is None:
            schema = None  # No option decides the schema now, so the first readable file decides it at the next scan.
        if schema is None and self.classes:
            schema = DatasetSchema("unknown", (), classes=self.classes)
        for name, (before, asked) in fixed.items():
            if before != asked:
                why = (
                    "holds for samples that are indexed: it cannot be changed. Register a dataset of another name"
                    if self.row.next_key
                    else "holds from the registration on: it cannot be changed. Delete the dataset, which has no samples, and register it again"
                )
                raise InvalidArgumentError(f"{name} of dataset '{self.name}' is {_shown(before)}, not {_shown(asked)}, and {why}")
        self.in_doubt = True
        version = self.catalogue.change_config(self.row.id, self.row.version, config, schema)
        row = replace(self.row, config=config, version=version, schema=schema)
        self._configure(config, schema)
        self._publish(row)
        self.row = row
        self.problems = dict.fromkeys(self.problems, "")  # No file has the signature "", so each file is tried again.
        self.stability = StabilityTracker(self.stability.settle_s)
        self.in_doubt = False

    def commit(self, change: Change) -> None:
        """Commit and publish `change`. Its segments must be complete files in `folder`. Clients learn a key only after all processes can read it."""
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
        # If the publication fails, this object keeps the old row, and `refresh` loads the new row from the catalogue.
        self._publish(row, [file.file_id for file in (*change.changed_files, *change.forgotten)])
        self.row = row
        # A removed file exists until its last map is closed, so snapshots in use can still be read.
        for name in replaced:
            (self.folder / name).unlink(missing_ok=True)
        self.in_doubt = False
        self.wake()

    def _publish(self, row: DatasetRow, changed: Sequence[int] = ()) -> None:
        names = [self._segment_names[first] for first in sorted(self._segment_names)]
        with self._publishing:
            self._publisher.publish(row, names, self.files, changed, self.num_deleted, self._damaged_by_name(), self._num_labels)


def _shown(option: object) -> str:
    """Return the value of an option for a message."""
    if isinstance(option, RowGroups):
        return listed(option.columns)
    return f"'{option}'" if isinstance(option, str) else str(option)


class RetrySchedule:
    """The times at which unchanged, unreadable files are tried again. The times are only in memory: after a restart, all these files are tried. Each
    pause is twice as long as the previous pause, so that not every scan reads all files of a broken disk.

    Args of all methods: tick: seconds of a monotonic clock. path: path relative to the dataset's folder.
    """

    FIRST_S, LONGEST_S = 1.0, 300.0

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}
        self._apart: set[str] = set()

    def note_failure(self, path: str, tick: float, *, alone: bool = False) -> None:
        """Record a failed read of the file at `tick`. alone: the file was requested alone."""
        if alone:
            self._apart.add(path)
        pause = min(self.LONGEST_S, 2 * self._pauses[path][1]) if path in self._pauses else self.FIRST_S
        self._pauses[path] = tick + pause, pause

    def is_due(self, path: str, tick: float) -> bool:
        """Whether the file may be tried again at `tick`."""
        return path not in self._pauses or tick >= self._pauses[path][0]

    def is_apart(self, path: str) -> bool:
        """Whether the file failed when it was requested alone, so that other files must come first."""
        return path in self._apart

    def keep_only(self, problems: Container[str]) -> None:
        """Remove files that no longer have a problem."""
        self._pauses = {path: pause for path, pause in self._pauses.items() if path in problems}
        self._apart = {path for path in self._apart if path in problems}
