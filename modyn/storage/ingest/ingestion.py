"""Ingestion: new files of a dataset's folder become samples, exactly once, even if processes are killed or ingest at the same time.

Order of the steps: acquire the locks, list the folder, compare the listing with the indexed files, index, write segments, commit.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from prometheus_client import Counter

from modyn._core import FileChangedError
from modyn.errors import ConflictError, DataError, NotFoundError, SecurityError, UnavailableError
from modyn.storage.files.file_system import UNRELATED_TO_CONTENT, NameEndings, Roots, SeenFile, SeenFiles, UnusableNowError
from modyn.storage.files.local import LocalFiles
from modyn.storage.files.unpacked import NotUnpackedError
from modyn.storage.formats.base import WholeFileFormat
from modyn.storage.formats.image_folder import ImageFolderFormat
from modyn.storage.formats.timestamps import TimeRange
from modyn.storage.ingest.class_folders import ClassFolders
from modyn.storage.ingest.copies import CopyKeeper
from modyn.storage.ingest.file_checks import check_known_file
from modyn.storage.ingest.file_groups import Found, JobQueue, ahead, find
from modyn.storage.ingest.file_indexer import (
    COPIES_AT_ONCE,
    ChangedError,
    FileJob,
    future_samples,
    index_whole_files,
    refused_samples,
    watching,
)
from modyn.storage.ingest.fingerprints import tail_of
from modyn.storage.ingest.locks import hold_dataset
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.ingest.problems import FOLDER, ProblemReporter
from modyn.storage.ingest.schema_decision import SchemaDecision
from modyn.storage.ingest.segment_writer import SegmentWriter
from modyn.storage.ingest.time_decision import TimeDecision
from modyn.storage.model.dataset_records import IngestProgress
from modyn.storage.model.file_table import UNKNOWN_TAG, FileRow, FileTable
from modyn.storage.model.samples import IndexedFiles, IndexedSamples

SAMPLES_INGESTED = Counter("modyn_storage_samples_ingested_total", "Samples that were indexed", ["dataset"])

_ATTEMPTS = 3
"""Largest number of attempts after conflicts. `rpc/retry.py` is not used, because its pauses are for services that do not respond. After a conflict,
the next attempt waits only for locks, and begins with the state that the other process has committed."""

RESCAN_S = 30.0
"""Seconds between two scans of a quiet watched folder. By these scans, this process detects changes that another process has committed."""

OnProgress = Callable[[IngestProgress], None]


def ingest(
    dataset: OpenDataset,
    roots: Roots,
    num_threads: int,
    *,
    patient: bool = True,
    on_progress: OnProgress = lambda _: None,
    sleep: Callable[[float], object] = time.sleep,
) -> IngestProgress:
    """Index all new files of the dataset's folder.

    Args:
        roots: folders that may contain the files.
        num_threads: number of threads that index files.
        patient: whether to wait for other ingestions and for files that are still being written. If not, the call returns immediately if another
        ingestion runs, and leaves files that are being written to the next call. on_progress: gets the counts so far, in this thread.
        sleep: waits the given number of seconds between two scans, while files are being written.
    Raises: NotFoundError: the folder does not exist. UnavailableError: the database or the disk cannot be used.
    """
    if not patient and _is_quiet(dataset):
        return IngestProgress(finished=True)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with hold_dataset(dataset, patient=patient) as held:
                # `held` is False only if the call is not patient: another ingestion is running, and indexes the same files.
                if not held:
                    return IngestProgress(finished=True)
                dataset.refresh()
                progress = _Ingestion(dataset, roots, num_threads, on_progress).run(patient, sleep)
                dataset.scan_by = time.monotonic() + RESCAN_S
                return progress
        except ConflictError as error:
            # The lock was lost with its connection, and another process has committed. In the next attempt, `refresh` loads the committed state.
            if attempt == _ATTEMPTS:
                raise UnavailableError(f"dataset '{dataset.name}' cannot be ingested: {error.message}") from error
    raise AssertionError("the loop returns or raises")


def _is_quiet(dataset: OpenDataset) -> bool:
    """Whether a scan would find no change. Then the scan is skipped, and no lock of the database is acquired."""
    if time.monotonic() >= dataset.scan_by or dataset.problems or dataset.in_doubt or not dataset.writing.acquire(blocking=False):
        return False
    try:
        return dataset.filesystem.is_quiet(dataset.files)
    finally:
        dataset.writing.release()


class _Ingestion:
    """One ingestion of a dataset, whose locks the caller holds."""

    def __init__(self, dataset: OpenDataset, roots: Roots, num_threads: int, on_progress: OnProgress) -> None:
        self._dataset, self._format, self._files = dataset, dataset.format, dataset.filesystem
        self._roots, self._num_threads, self._on_progress = roots, num_threads, on_progress
        self._writer = SegmentWriter(dataset)
        self._schema, self._times = SchemaDecision(dataset, self._writer), TimeDecision(dataset)
        self._problems = ProblemReporter(dataset, self._writer, lambda: self._count(problems=1))
        self._folders = (
            ClassFolders(dataset, dataset.format, self._schema) if isinstance(dataset.format, ImageFolderFormat) else None
        )
        self._progress = IngestProgress()
        self._num_changed = 0
        """Number of files that changed while they were indexed, and were left for the next scan."""
        self._copies = CopyKeeper(dataset, self._problems)
        self._last_row_wait_s: float = getattr(dataset.format.config, "last_row_wait_s", 0.0)

    def run(self, patient: bool, sleep: Callable[[float], object]) -> IngestProgress:
        stability = self._dataset.stability
        give_up = time.monotonic() + 10 * stability.settle_s + 1
        self._scan(retry_all=patient)
        while patient and (stability.num_unstable or self._num_changed) and time.monotonic() <= give_up:
            # No event reports that a file is stable, so the folder is scanned repeatedly, until `give_up`.
            sleep(max(0.02, stability.settle_s / 4))
            self._scan(retry_all=False)
        self._writer.merge()
        self._report_progress(finished=True)
        return self._progress

    def _scan(self, retry_all: bool) -> None:
        """Scan the folder once, and index new data. Args: retry_all: also try files that were set aside and did not change."""
        try:
            names, complete = self._format.names(), retry_all or not self._dataset.row.config.watch
            listing = self._files.list_files(names, self._roots, self._dataset.files, complete=complete)
        except (NotFoundError, SecurityError, DataError) as error:
            self._refuse_folder(error)
            raise
        if self._folders is not None:
            listing = self._folders.shown(listing)
        self._refuse_repeated(listing.files.paths)
        self._num_changed = 0
        num_new = np.count_nonzero(self._dataset.files.ids(listing.files.paths) < 0)
        self._report_progress(files_seen=len(self._dataset.files) - len(listing.absent) + int(num_new))
        self._problems.compare_with(listing)
        if self._folders is not None and complete:
            self._problems.report_empty(self._folders.empty(listing))
        has_none = not len(listing.files) and not len(self._dataset.files)
        if retry_all and isinstance(names, NameEndings) and names.samples and has_none:
            self._problems.report_others(names, self._files.list_files(NameEndings(""), self._roots, FileTable()).files.paths)
        due = listing.files if retry_all else self._problems.without_set_aside(listing.files)
        ready, late = self._dataset.stability.stable(self._files, due, self._format.companions, time.time(), time.monotonic())
        for path, reason in late.items():
            self._problems.report(path, "waiting", reason)
        if self._folders is not None and len(ready):
            try:
                self._folders.begin(listing.files.paths)
            except DataError as error:
                self._refuse_folder(error)
                raise
        if isinstance(self._format, WholeFileFormat):
            self._index_whole_files(self._format, ready)
        else:
            self._index_files(self._jobs(ready))
        self._flush()
        self._copies.keep_needed(mend=retry_all)
        self._flush()
        self._dataset.retries.keep_only(self._dataset.problems)

    def _refuse_folder(self, error: NotFoundError | SecurityError | DataError) -> None:
        """Report that the folder cannot be ingested. The caller raises the error."""
        self._problems.report(FOLDER, error.message, error.message)
        self._writer.flush()

    def _refuse_repeated(self, paths: list[str]) -> None:
        """Raise an error if a file is listed twice, because it would be indexed twice."""
        if len(set(paths)) < len(paths):
            repeated = next(path for path, following in itertools.pairwise(sorted(paths)) if path == following)
            raise AssertionError(
                f"the listing of {self._dataset.row.config.base_path} names a file more than once, {repeated}, and nothing of it was "
                f"indexed; this is an error of Modyn: please report it"
            )

    # Files of many samples

    def _jobs(self, ready: SeenFiles) -> Iterator[FileJob]:
        """Yield a job for each new or grown file. Each job is made only when it is needed, because there may be many jobs."""
        for seen in ready:
            if self._dataset.files.id_of(seen.path) is None:
                if not self._copies.refuse_repeated(seen):
                    yield self._job(seen)
            elif job := self._recheck(seen):
                yield job

    def _job(self, seen: SeenFile, row: FileRow | None = None) -> FileJob:
        skipped = self._dataset.catalogue.num_skipped(self._dataset.row.id, row) if row else 0
        dataset, stability = self._dataset, self._dataset.stability
        rests = stability.is_at_rest(seen, self._last_row_wait_s, time.time(), time.monotonic())
        last_row = rests, stability.has_grown(seen)
        return FileJob(self._files, self._format, seen, row, dataset.limits, skipped, dataset.runner, *last_row, dataset.unpacked)

    def _recheck(self, seen: SeenFile) -> FileJob | None:
        """Record the new state of an indexed file whose size or time has changed. Returns a job if samples were appended."""
        file_id = self._dataset.files.id_of(seen.path)
        assert file_id is not None
        known = self._dataset.catalogue.checked_file(self._dataset.row.id, file_id)
        if not (row := known.row).num_samples:
            return self._job(seen, row)  # No byte of the file is indexed yet.
        job: FileJob | None = None
        try:
            with watching(self._files, self._format, seen, self._dataset.limits.growing_bytes):
                tail = tail_of(self._files, self._format, seen)
                if self._format.is_packed(seen.path) and (row.size, row.tail) != (seen.size, tail):
                    job = self._job(seen, row)
                    job.begin()  # Compares the current unpacked content with the indexed content.
                elif not self._format.is_packed(seen.path):
                    check_known_file(self._dataset, known, seen)
        except ChangedError:
            self._num_changed += 1
            return None
        except DataError as error:
            self._problems.set_aside(seen, error)
            if not row.altered and not isinstance(error, (*UNRELATED_TO_CONTENT, NotUnpackedError)):
                self._writer.change_file(row._replace(altered=True))
            return None
        if job is not None or (self._format.can_grow and not self._format.is_packed(seen.path) and seen.size > row.indexed_end):
            return job or self._job(seen, row)
        self._writer.change_file(row._replace(size=seen.size, mtime_ns=seen.mtime_ns, altered=False, tail=tail))
        self._writer.solve(seen.path)
        return None

    def _index_files(self, jobs: Iterator[FileJob]) -> None:
        """Index files with several threads, and add their samples in the order of the files."""
        queue = JobQueue(jobs, together=self._format.isolated and isinstance(self._files, LocalFiles))
        held = self._dataset.limits.held_samples
        with ThreadPoolExecutor(self._num_threads, thread_name_prefix="index") as pool:
            running = deque[tuple[list[FileJob], Future[list[Found | DataError | ChangedError]]]]()
            try:
                while True:
                    # Two groups per thread are submitted in advance, so that no thread waits for the writer.
                    while len(running) < (2 * self._num_threads if self._schema.is_expected else 1) and (group := queue.take()):
                        # If the schema that the first file will decide is known in advance, other files are read with it at the same time.
                        if self._schema.is_open and not running and not self._schema.expect(group[0]):
                            queue.put_back([group[1:]])
                            group = group[:1]
                        running.append((group, pool.submit(find, group, held)))
                    if not running:
                        return
                    group, future = running.popleft()
                    some = future.result()
                    if rest := group[len(some) :]:
                        running.appendleft((rest, pool.submit(find, rest, held)))
                    for number, (job, found) in enumerate(zip(group, some, strict=False), 1):
                        self._add(job, found)
                        if self._writer.is_due():
                            self._flush()
                        if self._schema.is_open:
                            # The first file was refused and has decided no schema, so the other files must be read again.
                            for _, other in running:
                                other.cancel()
                            read = [group[number : len(some)], *(others for others, _ in running)]
                            queue.put_back([[self._job(job.seen, job.row) for job in jobs] for jobs in read])
                            running.clear()
                            break
            finally:
                # After the cancellation, the end of the block waits only for files that are being read.
                for _, future in running:
                    future.cancel()

    def _add(self, job: FileJob, found: Found | DataError | ChangedError) -> None:
        rest = None
        try:
            if isinstance(found, Exception):
                raise found
            chunks, rest = found
            file_id = self._add_samples(job, chunks, rest)
        except (DataError, ChangedError) as error:
            # No sample of a small file is in the writer yet. For a large file, the writer contains only samples of this file since the last flush.
            if rest is not None:
                self._schema.forget_classes()
                self._writer.discard()
            if isinstance(error, ChangedError):
                self._num_changed += 1
            else:
                self._problems.set_aside(job.seen, error)
            return
        if job.unended and job.row is None and not job.indexed.num_samples and not job.skipped:
            # No byte of the file is indexed, so the file gets no row, and may still be removed.
            self._problems.leave_unended(job, self._last_row_wait_s)
            return
        self._writer.complete(job.indexed_row(file_id), job.skipped)
        self._schema.note(job)
        self._times.note(job.times)
        self._count(files_indexed=1, problems=len(job.skipped))
        if job.unended:
            self._problems.leave_unended(job, self._last_row_wait_s)
        if rest is not None:
            self._flush()

    def _add_samples(self, job: FileJob, chunks: Sequence[IndexedSamples], rest: Iterator[IndexedSamples] | None) -> int:
        """Add the samples of a file to the writer. Segments of a large file are written when they are full, but become visible only when the whole
        file is known to be valid.

        Returns: the id of the file.
        """
        if rest is not None:
            self._flush()
        file_id = self._writer.next_file_id if job.row is None else job.row.file_id
        path = self._files.full_path(job.seen.path)
        if rest is None:
            self._times.check(path, job.times)
            self._writer.add(file_id, self._schema.numbered(chunks))
            return file_id
        num_samples, before = 0, self._progress.samples_indexed
        try:
            for chunk in itertools.chain(self._schema.numbered(chunks), ahead(rest)):
                self._writer.add(file_id, self._schema.numbered([chunk]))
                self._writer.spill()
                num_samples += len(chunk)
                self._report_progress(samples_indexed=before + num_samples)
            self._times.check(path, job.times)
        finally:
            # The samples become visible with the commit.
            self._progress = replace(self._progress, samples_indexed=before)
        return file_id

    # Files of one sample

    def _index_whole_files(self, file_format: WholeFileFormat, ready: SeenFiles) -> None:
        """Index new files in groups: a second thread indexes one group while the previous group is added and committed."""
        ids = self._dataset.files.ids(ready.paths)
        is_due = ids < 0
        for position in np.flatnonzero(ids >= 0).tolist():
            is_due[position] = self._recheck(ready[position]) is not None  # True if no sample of the file is indexed.
        files = ready.take(np.flatnonzero(is_due))
        # Files that have failed alone are indexed last, so that a hang or crash that they cause does not delay other files.
        is_apart = np.array([self._dataset.retries.is_apart(path) for path in files.paths], np.bool_)
        files = files.take(np.argsort(is_apart, kind="stable"))
        num_together = len(files) - int(is_apart.sum())

        def indexed_groups() -> Iterator[tuple[SeenFiles, IndexedFiles]]:
            most = self._dataset.limits.files_at_once
            step = most if isinstance(self._files, LocalFiles) else min(most, COPIES_AT_ONCE)
            for first in range(0, len(files), step):
                part = files.take(np.arange(first, min(first + step, len(files))))
                paths = [self._files.full_path(path) for path in part.paths]
                num_apart = min(len(part), max(0, first + len(part) - num_together))
                yield part, index_whole_files(self._dataset.runner, self._files, file_format, paths, num_apart)

        for part, found in ahead(indexed_groups()):
            self._add_whole_files(part, found)
            if self._writer.is_due():
                self._flush()

    def _add_whole_files(self, files: SeenFiles, found: IndexedFiles) -> None:
        if self._folders is not None:
            found = self._folders.completed(files.paths, found)
        problems = dict(found.problems)
        changed = found.lengths != files.sizes
        if found.mtimes_ns is not None:
            changed |= found.mtimes_ns != files.mtimes_ns
        for i, reason in refused_samples(found.labels, found.timestamps).items():
            problems.setdefault(i, DataError(f"cannot use {self._files.full_path(files.paths[i])}: {reason}; correct it"))
        tolerance_s, are_digits = self._dataset.limits.future_tolerance_s, self._dataset.format.times_are_digits
        for i, reason in future_samples(found.timestamps, len(files), tolerance_s, are_digits=are_digits).items():
            problems.setdefault(i, UnusableNowError(f"cannot use {self._files.full_path(files.paths[i])} yet: {reason}"))
        for i in [i for i, error in problems.items() if isinstance(error, FileChangedError)]:
            del problems[i]
            changed[i] = True
        for i, error in problems.items():
            self._problems.set_aside(files[i], error)
        left = [i for i in np.flatnonzero(changed).tolist() if i not in problems]
        self._num_changed += len(left)
        found = replace(found, problems=problems | {i: DataError("it changed") for i in left})
        places = found.good()
        good = files.take(places)
        if not len(good):
            return
        times = replace(TimeRange.of(found.timestamps[places]), a_year=0)  # One file must not set aside the others of its group.
        if reason := self._times.why_refused(times):
            for file in good:
                self._problems.set_aside(file, DataError(f"{self._files.full_path(file.path)}: {reason}"))
            return
        self._times.note(times)
        ids, sizes = self._dataset.files.ids(good.paths), good.sizes.tolist()
        is_new = ids < 0
        ids[is_new] = self._writer.next_file_id + np.arange(np.count_nonzero(is_new))
        columns = ids.tolist(), good.paths, sizes, good.mtimes_ns.tolist(), sizes, itertools.repeat(1), itertools.repeat("")
        tags = itertools.repeat(UNKNOWN_TAG) if good.tags is None else good.tags.tolist()
        self._writer.add_files(list(map(FileRow, *columns, itertools.repeat(False), tags)), found)
        self._count(files_indexed=len(good))

    # Commits and progress

    def _flush(self) -> None:
        added = self._writer.num_pending_samples
        self._writer.flush()
        SAMPLES_INGESTED.labels(self._dataset.name).inc(added)
        self._count(samples_indexed=added)

    def _count(self, **added: int) -> None:
        self._report_progress(**{name: getattr(self._progress, name) + number for name, number in added.items()})

    def _report_progress(self, **changes: int | bool) -> None:
        self._progress = replace(self._progress, **changes)  # type: ignore[arg-type]  # every field is an int or a bool
        self._on_progress(self._progress)
