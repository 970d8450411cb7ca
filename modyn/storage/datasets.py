"""The datasets of the service: registration, opening, watching, ingestion and deletion. This module does not use gRPC."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, nullcontext
from dataclasses import replace

from modyn.atomic_write import sync_names
from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.config.system_sections.buckets import is_bucket
from modyn.errors import (
    AlreadyExistsError,
    ConfigError,
    ConflictError,
    CorruptStateError,
    InvalidArgumentError,
    ModynError,
    NotFoundError,
    UnavailableError,
)
from modyn.json_codec import sanitize
from modyn.records import DeletedSamples
from modyn.rpc.logs import get_logger
from modyn.storage.catalogue.catalogue import Catalogue, DatasetRow
from modyn.storage.files.bucket_url import BucketUrl
from modyn.storage.files.file_system import Roots
from modyn.storage.files.local import LocalFiles, open_filesystem
from modyn.storage.formats import build_format
from modyn.storage.ingest.file_checks import scrub_files
from modyn.storage.ingest.format_runner import FormatRunner, IndexingBounds
from modyn.storage.ingest.ingestion import ingest
from modyn.storage.ingest.locks import hold_dataset
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.ingest.publisher import withdraw
from modyn.storage.ingest.rebuild import rebuild
from modyn.storage.ingest.reindex import forget_file
from modyn.storage.ingest.watcher import Watcher
from modyn.storage.model.dataset_records import (
    AppendedRecord,
    DatasetInfo,
    FileProblem,
    IngestProgress,
    NewRecord,
    ScrubProgress,
    located,
)
from modyn.storage.read.column_reader import ColumnReader
from modyn.storage.read.locality import ShortCutOffer
from modyn.storage.read.published_datasets import PublishedNames
from modyn.storage.read.record_readers import RecordReaders
from modyn.storage.read.scrub import DAMAGED_FILES, scrub
from modyn.storage.read.snapshot import DatasetSnapshot
from modyn.storage.records.intake import RecordIntake

_STEP_S = 0.2
"""Seconds between two progress reports to a client. An ingestion checks at the same interval whether the client is still connected."""


class DatasetStore:
    """The datasets in the catalogue. Methods may be called from any thread and raise errors of `modyn.errors`."""

    def __init__(self, config: SystemConfig, catalogue: Catalogue) -> None:
        self._settings = config.storage
        self._folder = config.service_dir("storage") / "datasets"
        self._names = PublishedNames.of(config)
        self._roots = Roots.of(config.storage.dataset_roots)
        self._readers = RecordReaders(config.storage.num_threads, config.storage.row_group_cache_bytes, self._roots)
        self._runner = FormatRunner(IndexingBounds(config.storage.indexing_memory_bytes, config.storage.indexing_timeout_s))
        self._catalogue = catalogue
        self._deletions = threading.Lock()
        """Lets only one deletion run at a time, so that a repeated deletion waits for the first deletion. Acquired before `_lock`."""
        self._deleting: dict[str, OpenDataset] = {}
        """Datasets whose deletion has begun and has not succeeded yet, by identity. Protected by `_deletions`."""
        # Protects the three fields below, and lets only one thread at a time register a dataset, open a dataset or begin a deletion. Reentrant,
        # because `register` opens the dataset with this lock held. `dataset` first reads `_open` without this lock, in one operation under the GIL.
        self._lock = threading.RLock()
        self._open: dict[str, OpenDataset] = {}
        self._watchers: dict[str, Watcher | RecordIntake] = {}
        self._closing = False
        DAMAGED_FILES.set_function(lambda: sum(len(dataset.damaged) for dataset in self.open_datasets()))

    def start(self) -> None:
        """Complete interrupted deletions, register the datasets of the system file, and open all registered datasets. If a dataset cannot be opened,
        the error is logged, and `dataset` raises it when the dataset is requested. A wrong configuration raises an error here.
        """
        for row in self._catalogue.datasets(deleting=True):
            try:
                self._forget(row)
            except UnavailableError as error:
                get_logger("storage").error("deletion_not_completed", dataset=row.config.name, error=error.message)
        self._names.keep_only({row.config.name for row in self._catalogue.datasets()})
        for config in self._settings.datasets:
            try:
                self.register(config, may_be_absent=True)
            except (CorruptStateError, UnavailableError) as error:
                get_logger("storage").error("dataset_not_served", dataset=config.name, error=error.message)
            except ModynError as error:
                raise type(error)(f"storage.datasets: {config.name}: {error.message}") from error
        self.infos()  # Opens all datasets.

    def close(self) -> None:
        """Stop watching, end streams of new samples and close the catalogue.

        After `_closing` is set, no dataset is opened. Watchers stop first, because watchers use datasets. Datasets close before the catalogue and
        the readers, because datasets use both. The lock is released before all waits.
        """
        with self._lock:
            self._closing = True
            watchers, datasets = list(self._watchers.values()), list(self._open.values())
            self._watchers.clear()
        for watcher in watchers:
            watcher.ask_to_stop()
        # The runner is closed before the wait for the watchers, because a watcher may wait for an indexing process.
        self._runner.close()
        for watcher in watchers:
            watcher.stop()
        for dataset in datasets:
            dataset.close(UnavailableError("storage is stopping; its streams continue when it is back"))
        self._catalogue.close()
        self._readers.close()

    def register(self, config: DatasetConfig, *, may_be_absent: bool = False) -> DatasetInfo:
        """Register a dataset, and watch its folder if this is configured. If the dataset is registered with equal options, nothing changes.

        Args: may_be_absent: the folder may appear later.
        Raises: AlreadyExistsError: the dataset is registered with other options. ConfigError, InvalidArgumentError: an option is wrong.
            NotFoundError, SecurityError: the folder is absent, or outside `storage.dataset_roots`.
        """
        config = normalised(config)
        file_format = build_format(config.file_wrapper, config.file_wrapper_config, config.timestamp_source)
        if not config.holds_records:
            self._check_folder(config, may_be_absent)
        with self._lock:
            row = self._catalogue.dataset(config.name) or self._catalogue.add(config, file_format.float_labels)
            differs = difference(row.config, config)
            if differs:
                raise AlreadyExistsError(
                    f"dataset '{config.name}' is registered with other options: {differs}; `modyn data change` changes options, "
                    "or take another name"
                )
            return self.dataset(config.name).info()

    def _check_folder(self, config: DatasetConfig, may_be_absent: bool) -> None:
        base = config.base_path
        try:
            base.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"base_path {base!r} of dataset '{config.name}' is not valid UTF-8; rename the folder"
            ) from error
        folder = open_filesystem(base)
        folder.check_roots(self._roots)
        if not may_be_absent:
            folder.check(self._roots)

    def change(self, config: DatasetConfig) -> DatasetInfo:
        """Change the options of the dataset `config.name` for later indexing. Raises: NotFoundError; further errors: `OpenDataset.change_options`."""
        config = normalised(config)
        dataset = self.dataset(config.name)
        with hold_dataset(dataset):
            dataset.refresh()
            dataset.change_options(config)
        if config.holds_records:
            return dataset.info()
        with self._lock:
            stopped = None if config.watch else self._watchers.pop(config.name, None)
            if config.watch and self._open.get(config.name) is dataset and config.name not in self._watchers:
                self._watchers[config.name] = Watcher(dataset, self._scan, self._settings.poll_interval_s)
        if stopped is not None:
            stopped.stop()
        return dataset.info()

    def dataset(self, name: str) -> OpenDataset:
        """Return the dataset `name`, and open it if it is not open yet.

        Raises: NotFoundError: there is no dataset of this name. UnavailableError: storage is stopping, or its database or disk cannot be used.
        CorruptStateError: the index is damaged.
        """
        if (found := self._open.get(name)) is not None:
            return found
        with self._lock:
            if (found := self._open.get(name)) is not None:
                return found
            if self._closing:
                raise UnavailableError(f"storage is stopping; ask for dataset '{name}' again when it is back")
            contents = self._catalogue.contents(name)
            if contents is None:
                raise self._names.not_found(name)
            folder = self._folder / contents.row.identity
            found = OpenDataset(self._catalogue, folder, contents, self._settings.settle_s, self._readers, self._runner)
            settings = self._settings
            found.limits = replace(
                found.limits, future_tolerance_s=settings.future_tolerance_s, unpacked_bytes=settings.unpacked_bytes
            )
            # The refresh removes files that a crash left in the folder. If an ingestion holds the lock, the ingestion removes these files.
            with self._catalogue.database.advisory_lock(f"dataset/{found.row.id}") as held:
                if held:
                    _refresh_opened(found)
            found.snapshot()  # Raises an error if the index is damaged.
            self._names.add(name, found.folder)
            self._open[name] = found
            if found.row.config.holds_records:
                self._watchers[name] = RecordIntake(found, self._settings)
            elif found.row.config.watch:
                self._watchers[name] = Watcher(found, self._scan, self._settings.poll_interval_s)
            return found

    def snapshot(self, name: str) -> DatasetSnapshot:
        """Return the current snapshot of the dataset. Raises NotFoundError if there is no dataset of this name."""
        return self.dataset(name).snapshot()

    def column_reader(self, name: str, column: str) -> ColumnReader:
        """Return a reader of a column of the dataset's samples. Raises: NotFoundError: there is no such dataset. ConfigError: the dataset has no
        columns."""
        dataset = self.dataset(name)
        return ColumnReader(dataset.snapshot, dataset.filesystem, column)

    def offer_short_cut(self, name: str) -> ShortCutOffer:
        """Return the data with which a reader on this machine reads without the service, or the reason `refused`. Raises: NotFoundError."""
        dataset = self.dataset(name)
        if self._settings.short_cut == "off":
            return ShortCutOffer("storage.short_cut is off where storage runs")
        base_path = located(dataset.row.config, dataset.folder).base_path
        if not isinstance(dataset.filesystem, LocalFiles):
            return ShortCutOffer(f"its files are at {base_path}, which is not a folder of this machine")
        return dataset.proof.offer(base_path, dataset.snapshot().paths)

    def infos(self) -> list[DatasetInfo]:
        """Describe all datasets by name, without schemas, which may be long. Datasets that cannot be opened are logged and left out."""
        infos = []
        for row in self._catalogue.datasets():
            try:
                infos.append(replace(self.dataset(row.config.name).info(), schema=None))
            except ModynError as error:
                get_logger("storage").error("dataset_not_opened", dataset=row.config.name, error=error.message)
        return infos

    def delete(self, name: str) -> None:
        """Delete the dataset and its index. The user's files stay.

        Raises: NotFoundError. UnavailableError: a file cannot be removed; the deletion may be repeated, or the next start of storage completes it.
        """
        with self._deletions:
            # After this block the dataset is not used any more, even if a file cannot be removed.
            # The lock is released before `at_end` stops the watcher, because the watcher may wait for the lock.
            with ExitStack() as at_end, self._lock:
                begun = (row for row in self._catalogue.datasets(deleting=True) if row.config.name == name)
                row = self._catalogue.dataset(name) or next(begun, None)
                if row is None:
                    raise self._names.not_found(name)
                self._catalogue.begin_delete(row.id)
                if (watcher := self._watchers.pop(name, None)) is not None:
                    at_end.callback(watcher.stop)
                if (dataset := self._open.pop(name, None)) is not None:
                    self._deleting[row.identity] = dataset
                    at_end.callback(dataset.close, NotFoundError(f"dataset '{name}' was deleted"))
                self._withdraw(row)
            # A running ingestion fails at its next commit. The lock prevents the ingestion from writing files after the folder is removed.
            with nullcontext() if (dataset := self._deleting.get(row.identity)) is None else dataset.writing:
                self._forget(row)
            self._deleting.pop(row.identity, None)

    def scrub(self, name: str, is_active: Callable[[], bool] = lambda: True) -> Iterator[ScrubProgress]:
        """Read all files of the dataset's index and then all of its data files (`scrub_files`), and compare them with their checksums. When
        `is_active` returns False, because the client has disconnected, the scrub ends after the current file.

        Yields: progress a few times a second, and at the end.
        Raises: NotFoundError: there is no such dataset. UnavailableError: the dataset's publication or the database cannot be read.
        """
        row = self._catalogue.dataset(name)
        if row is None:
            raise self._names.not_found(name)
        dataset = self._open.get(name)
        if dataset is None or dataset.row.identity != row.identity:
            problems = [problem for _, problem in scrub(self._folder / row.identity) if problem is not None]
            yield ScrubProgress(problems=tuple(problems))
            return
        progress = ScrubProgress(len(dataset.files), problems=tuple(dataset.scrub(is_active)))
        yield progress
        tick, found = time.monotonic(), list[FileProblem]()
        for file in scrub_files(dataset):
            if not is_active():
                return
            compared, first = progress.files_compared + 1, progress.files_first + file.is_first
            found += [file.problem] if file.problem else []
            progress = replace(progress, files_compared=compared, files_first=first, problems=tuple(found))
            if time.monotonic() - tick >= _STEP_S:
                yield progress
                tick, found = time.monotonic(), []
        yield replace(progress, problems=tuple(found))

    def forget_file(self, name: str, path: str) -> DeletedSamples:
        """Delete the samples of a data file, so that the next ingestion indexes it again; see `reindex.forget_file`."""
        return forget_file(self.dataset(name), path)

    def open_datasets(self) -> list[OpenDataset]:
        """Return the datasets that are served now."""
        return list(self._open.values())

    def rebuild(self, name: str) -> DatasetInfo:
        """Rebuild the rows of the catalogue from the index, after an older database was restored. Raises: see `modyn.storage.ingest.rebuild`."""
        dataset = self.dataset(name)
        rebuild(dataset)
        return dataset.info()

    def problems(self, name: str) -> list[FileProblem]:
        """Return the damaged files of the dataset's index, and the files that were set aside, the newest problems first."""
        dataset = self.dataset(name)
        # A path may contain bytes that are not text.
        return dataset.damaged + self._catalogue.problems(
            dataset.row.id, lambda path: sanitize(dataset.filesystem.full_path(path))
        )

    def ingest(self, name: str, is_active: Callable[[], bool] = lambda: True) -> Iterator[IngestProgress]:
        """Ingest now. Ingestion continues if the client disconnects (`is_active` returns False), and does not wait for a slow client.

        Yields: the newest progress a few times a second; the last progress has `finished`. Raises, at the end, the error of the ingestion.
        """
        dataset = self.dataset(name)
        newest: deque[IngestProgress] = deque(maxlen=1)  # Progress that a slow or disconnected client has not read is dropped.
        ended: Future[IngestProgress] = Future()

        def work() -> None:
            try:
                if dataset.row.config.holds_records:
                    ended.set_result(self._intake(name).seal())
                else:
                    ended.set_result(ingest(dataset, self._roots, self._settings.num_threads, on_progress=newest.append))
            except BaseException as error:  # noqa: BLE001  (raised again where it is waited for)
                bug = not isinstance(error, ModynError)
                get_logger("storage").error("ingestion_failed", dataset=name, error=str(error), exc_info=bug)
                ended.set_exception(error)

        threading.Thread(target=work, name=f"ingest-{name}", daemon=True).start()
        # The wait has steps, because the client may disconnect at any time.
        while not wait([ended], _STEP_S).done:
            if not is_active():
                return
            if newest and not (progress := newest.pop()).finished:
                yield progress
        yield ended.result()

    def append(self, name: str, records: Sequence[NewRecord], identity: str = "") -> list[AppendedRecord]:
        """Append records to a dataset of records. Results and errors: see `RecordIntake.append`.

        Further errors: NotFoundError: there is no such dataset. InvalidArgumentError: the dataset is made of files.

        Args: identity: identity of the registration; empty: any registration.
        """
        self.dataset(name).snapshot().refuse_other(identity)
        return self._intake(name).append(records)

    def set_labels(self, name: str, labels: Mapping[str, float], identity: str = "") -> list[AppendedRecord]:
        """Set labels of records. Results and errors: see `RecordIntake.set_labels`. Further errors: see `append`."""
        self.dataset(name).snapshot().refuse_other(identity)
        return self._intake(name).set_labels(labels)

    def _intake(self, name: str) -> RecordIntake:
        """Return the intake of a dataset. Raises: NotFoundError, UnavailableError. InvalidArgumentError: the dataset is made of files."""
        dataset, intake = self.dataset(name), self._watchers.get(name)
        if not dataset.row.config.holds_records:
            raise InvalidArgumentError(
                f"dataset '{name}' is made of the files in {dataset.row.config.base_path}: add files there, or append to a dataset that was "
                "registered for records (`modyn data register NAME --records`)"
            )
        if not isinstance(intake, RecordIntake):
            raise UnavailableError(f"storage is stopping, or deletes dataset '{name}'; ask again")
        return intake

    def _scan(self, dataset: OpenDataset) -> None:
        ingest(dataset, self._roots, self._settings.num_threads, patient=False)

    def _withdraw(self, row: DatasetRow) -> None:
        """End all reads of the dataset."""
        self._names.remove(row.config.name)
        withdraw(self._folder / row.identity)

    def _forget(self, row: DatasetRow) -> None:
        # The dataset is withdrawn (again) before its files are removed, because no reader may use a folder while files, such as the file of deleted
        # keys, are removed from it.
        self._withdraw(row)
        shutil.rmtree(self._folder / row.identity, ignore_errors=True)
        # The removal is synced before the row is deleted. Without the row, no later start would remove a folder that reappears after a crash.
        sync_names(self._folder)
        self._catalogue.end_delete(row.id)


def _refresh_opened(dataset: OpenDataset) -> None:
    """Refresh a dataset that is being opened. A dataset that cannot be written to can still be read."""
    try:
        dataset.refresh()
    except ConflictError:
        pass  # Another process is ingesting the dataset. The next ingestion of this process loads the new state.
    except CorruptStateError as error:
        get_logger("storage").error("dataset_not_writable", dataset=dataset.name, error=error.message)


def normalised(config: DatasetConfig) -> DatasetConfig:
    """Return the configuration with a normalised `base_path`. Raises ConfigError, InvalidArgumentError."""
    if config.holds_records:
        return config
    if is_bucket(config.base_path):
        path = str(BucketUrl.parse(config.base_path))
    elif os.path.isabs(config.base_path):
        path = os.path.normpath(config.base_path)
    else:
        raise InvalidArgumentError(
            f"base_path '{config.base_path}' of dataset '{config.name}' is not absolute; write it from the root"
        )
    return config.model_copy(update={"base_path": path})


def difference(known: DatasetConfig, asked: DatasetConfig) -> str:
    """Describe how two registrations of one name differ, with the defaults of the file format filled in; empty: the registrations are equal."""
    found = [
        f"{field} is {getattr(known, field)!s}, not {getattr(asked, field)!s}"
        for field in ("base_path", "file_wrapper", "filesystem_wrapper", "timestamp_source", "watch")
        if getattr(known, field) != getattr(asked, field)
    ]
    if known.file_wrapper == asked.file_wrapper and known.file_wrapper_config != asked.file_wrapper_config:
        try:
            options = [build_format(c.file_wrapper, c.file_wrapper_config, c.timestamp_source).config for c in (known, asked)]
        except ConfigError:
            options = []
        if not options or options[0] != options[1]:
            found.append(f"file_wrapper_config is {known.file_wrapper_config}, not {asked.file_wrapper_config}")
    return "; ".join(found)
