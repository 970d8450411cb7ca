"""Ingestion: what is new in a dataset's folder becomes samples, exactly once, whatever is killed and whoever else ingests too.

Order of work: hold the locks, look at the folder, compare it with what is indexed (`compare`), index, write segments, commit.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from prometheus_client import Counter

from modyn.errors import ConflictError, DataError, NotFoundError, SecurityError, UnavailableError
from modyn.rpc.logs import get_logger
from modyn.storage.catalogue.catalogue import ProblemRow
from modyn.storage.files.listing import Comparison, Listing, Roots, SeenFile, SeenFiles, compare
from modyn.storage.formats.base import (
    CHUNK_ROWS,
    SAYS_NOTHING_OF_CONTENT,
    FormatResume,
    WholeFileFormat,
    refused_samples,
)
from modyn.storage.ingest.file_indexer import ChangedError, FileJob
from modyn.storage.ingest.file_retries import AGAIN
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.ingest.segment_writer import SegmentWriter
from modyn.storage.model.file_table import FileRow
from modyn.storage.model.records import IngestProgress
from modyn.storage.model.samples import IndexedFiles, IndexedSamples

SAMPLES_INGESTED = Counter("modyn_storage_samples_ingested_total", "Samples that were indexed", ["dataset"])

FILES_AT_ONCE = 1 << 14
"""Files of one sample that are indexed with one call: bounds what is held of them beside the listing."""
LOCK_PATIENCE_S = 600.0
"""For how long an ingestion on request waits for another process that ingests the same dataset."""

_ATTEMPTS = 3
_FOLDER = ""
"""The path under which a problem of the whole folder stands."""

OnProgress = Callable[[IngestProgress], None]
Item = TypeVar("Item")


def ingest(
    dataset: OpenDataset, roots: Roots, num_threads: int, *, patient: bool = True, on_progress: OnProgress = lambda _: None
) -> IngestProgress:
    """Indexes what is new in the dataset's folder. `patient`: waits for other ingestions and for files that are still being written;
    otherwise leaves both to the next call.

    Raises NotFoundError if there is no such folder, UnavailableError if the database or the disk cannot be used.
    """
    progress = IngestProgress()
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with _locks(dataset, patient) as held:
                if not held:
                    return replace(progress, finished=True)
                dataset.refresh()
                return _Ingestion(dataset, roots, num_threads, on_progress).run(patient)
        except ConflictError as error:
            # The lock went with its connection, and somebody else was faster: what he did is not done again.
            if attempt == _ATTEMPTS:
                raise UnavailableError(f"dataset '{dataset.name}' cannot be ingested: {error.message}") from error
    raise AssertionError("the loop returns or raises")


@contextmanager
def _locks(dataset: OpenDataset, patient: bool) -> Iterator[bool]:
    """The right to change the dataset, among the threads and the processes."""
    if not dataset.writing.acquire(timeout=LOCK_PATIENCE_S if patient else 0.0):
        if patient:
            raise UnavailableError(
                f"dataset '{dataset.name}' has been ingested for {LOCK_PATIENCE_S:.0f} s already; ask again later"
            )
        yield False
        return
    try:
        give_up = time.monotonic() + LOCK_PATIENCE_S
        while True:
            with dataset.catalogue.database.advisory_lock(f"dataset/{dataset.row.id}") as held:
                if held or not patient:
                    yield held
                    return
            if time.monotonic() > give_up:
                raise UnavailableError(f"another process has been ingesting dataset '{dataset.name}' for {LOCK_PATIENCE_S:.0f} s")
            time.sleep(0.05)
    finally:
        dataset.writing.release()


@dataclass(frozen=True, slots=True)
class _Found:
    """What is in a file: all of it in `chunks`, or the beginning, and `rest` gives what follows."""

    chunks: Sequence[IndexedSamples] = ()
    rest: Iterator[IndexedSamples] | None = None
    error: DataError | ChangedError | None = None


class _Ingestion:
    def __init__(self, dataset: OpenDataset, roots: Roots, num_threads: int, on_progress: OnProgress) -> None:
        self._dataset = dataset
        self._roots = roots
        self._num_threads = num_threads
        self._on_progress = on_progress
        self._format = dataset.format
        self._files = dataset.filesystem
        self._writer = SegmentWriter(dataset)
        self._progress = IngestProgress()
        self._retry_all = False
        """Files that were set aside are looked at, whether they changed or not."""
        self._num_changed = 0
        """Files that the last look left for the next one, because they changed while they were indexed."""

    def run(self, patient: bool) -> IngestProgress:
        settle_until = time.monotonic() + 10 * self._dataset.settling.settle_s + 1
        self._retry_all = patient
        while True:
            self._look()
            unsettled = self._dataset.settling.num_unsettled or self._num_changed
            if not patient or not unsettled or time.monotonic() > settle_until:
                break
            self._retry_all = False
            time.sleep(max(0.02, self._dataset.settling.settle_s / 4))
        self._writer.merge()
        self._tell(finished=True)
        return self._progress

    def _look(self) -> None:
        """One look at the folder, and everything that follows from it."""
        try:
            listing = self._files.list_files(self._format, self._roots, self._dataset.files.paths)
        except (NotFoundError, SecurityError) as error:
            if self._dataset.problems.get(_FOLDER) != error.message:
                self._report(_FOLDER, error.message, error.message)
                self._writer.flush()
            raise
        files = listing.files
        self._num_changed = 0
        self._tell(files_seen=len(files))
        compared = compare(self._dataset.files, files)
        self._report_absent(listing, compared)
        for position in compared.unchanged.tolist() if self._dataset.problems else ():
            self._writer.solve(files.paths[position])
        ready = self._settled(files.take(np.sort(np.concatenate([compared.new, compared.changed]))))
        if isinstance(self._format, WholeFileFormat):
            compared = compare(self._dataset.files, ready)
            for position in compared.changed.tolist():
                self._recheck(ready[position])
            self._index_whole_files(self._format, ready.take(compared.new))
        else:
            self._index_files(self._jobs(ready))
        self._flush()
        self._dataset.retries.keep_only(self._dataset.problems)

    def _settled(self, files: SeenFiles) -> SeenFiles:
        """Those of `files` that are not being written and were not set aside in this very state before, in their order."""
        if self._dataset.problems and not self._retry_all:
            tick = time.monotonic()
            fresh = [position for position in range(len(files)) if self._is_fresh(files[position], tick)]
            files = files.take(np.array(fresh, np.int64))
        ready, late = self._dataset.settling.ripe(self._files, files, self._format, time.time(), time.monotonic())
        for path, reason in late.items():
            self._report_once(path, "waiting", reason)
        return ready

    def _is_fresh(self, file: SeenFile, tick: float) -> bool:
        state = self._dataset.problems.get(file.path)
        if state is None:
            return True
        signature = self._files.signature(file, self._format)
        if state == AGAIN + signature:
            return self._dataset.retries.is_due(file.path, tick)
        return state != signature

    def _jobs(self, ready: SeenFiles) -> Iterator[FileJob]:
        """What is to be indexed of files that are new or changed, one at a time: there may be many."""
        for seen in ready:
            if self._dataset.files.id_of(seen.path) is None:
                yield FileJob(self._files, self._format, seen)
            elif job := self._recheck(seen):
                yield job

    def _report_absent(self, listing: Listing, compared: Comparison) -> None:
        """Problems of indexed files that are gone and of files that may not be read; those of other files that are gone are solved."""
        for path, reason in listing.refused.items():
            self._report_once(path, "refused", reason)
            file_id = self._dataset.files.id_of(path)
            if file_id is not None and file_id not in self._dataset.files.altered:
                # Such as a link that leads out of the dataset's roots by now: what it leads to is not what was indexed.
                row = self._dataset.catalogue.file(self._dataset.row.id, file_id)
                self._writer.change_file(row._replace(altered=True))
        gone = [path for i in compared.absent.tolist() if not _is_below(path := self._dataset.files.paths[i], listing.refused)]
        if len(gone) > 1 and len(gone) == len(self._dataset.files):
            # A disk that is not mounted looks so. What could be said of each file would say nothing more.
            reason = f"none of the {len(gone):,} files that are indexed is there; mount the folder, or put the files back"
            self._report_once(_FOLDER, "gone", reason)
            return
        if _FOLDER not in listing.refused:
            self._writer.solve(_FOLDER)
        for path in gone:
            reason = (
                "the file is indexed but gone: its samples cannot be read; put it back, or delete them by their keys, which the errors of "
                "whoever asks for them name"
            )
            self._report_once(path, "gone", reason)
        if problems := self._dataset.problems:
            for path in problems.keys() - set(listing.files.paths) - listing.refused.keys():
                if self._dataset.files.id_of(path) is None:
                    self._writer.solve(path)

    def _recheck(self, seen: SeenFile) -> FileJob | None:
        """An indexed file with another size or time: noted, and handed on if samples were appended to it."""
        file_id = self._dataset.files.id_of(seen.path)
        assert file_id is not None
        row = self._dataset.catalogue.file(self._dataset.row.id, file_id)
        path = self._files.full_path(seen.path)
        if not row.num_samples:
            return FileJob(self._files, self._format, seen, row)  # Nothing is indexed that could have changed.
        try:
            self._check_unchanged(row, seen, path)
        except DataError as error:
            self._set_aside(seen, error)
            if not row.altered and not isinstance(error, SAYS_NOTHING_OF_CONTENT):
                self._writer.change_file(row._replace(altered=True))
            return None
        if self._format.can_grow and seen.size > row.indexed_end:
            return FileJob(self._files, self._format, seen, row)
        self._writer.change_file(row._replace(size=seen.size, mtime_ns=seen.mtime_ns, altered=False))
        self._writer.solve(seen.path)
        return None

    def _check_unchanged(self, row: FileRow, seen: SeenFile, path: str) -> None:
        if not self._format.can_grow and seen.size != row.size:
            raise DataError(
                f"{path} was rewritten: it had {row.size} bytes when it was indexed and has {seen.size} now. "
                f"Restore the file, or delete its samples and add the data under a new name"
            )
        if isinstance(self._format, WholeFileFormat):
            # Nothing is kept of what is in it: there may be millions.
            if seen.mtime_ns != row.mtime_ns:
                raise DataError(
                    f"{path} was written again after it was indexed, maybe with something else. Restore the file with the time that it "
                    f"had, or delete its sample and add the data under a new name"
                )
        else:
            self._format.check_unchanged(path, FormatResume(row.indexed_end, row.num_samples, row.fingerprint))

    def _index_whole_files(self, file_format: WholeFileFormat, files: SeenFiles) -> None:
        """`files` are new. Some are looked at by other threads while those before them are added and committed."""

        def look() -> Iterator[tuple[SeenFiles, IndexedFiles]]:
            for first in range(0, len(files), FILES_AT_ONCE):
                part = files.take(np.arange(first, min(first + FILES_AT_ONCE, len(files))))
                yield part, file_format.index_files([self._files.full_path(path) for path in part.paths])

        for part, found in _ahead(look()):
            problems = dict(found.problems)
            changed = found.lengths != part.sizes
            if found.mtimes_ns is not None:
                changed |= found.mtimes_ns != part.mtimes_ns
            for i, reason in refused_samples(found.labels, found.timestamps).items():
                problems.setdefault(i, DataError(f"cannot use {self._files.full_path(part.paths[i])}: {reason}; correct it"))
            for i, error in problems.items():
                self._set_aside(part[i], error)
            left = [i for i in np.flatnonzero(changed).tolist() if i not in problems]
            self._num_changed += len(left)
            good = replace(found, problems=problems | {i: DataError("it changed") for i in left})
            self._add_whole_files(part.take(good.good()), good)
            self._flush_if_due()

    def _add_whole_files(self, good: SeenFiles, found: IndexedFiles) -> None:
        if not len(good):
            return
        first_id, sizes = self._writer.next_file_id, good.sizes.tolist()
        columns = (
            itertools.count(first_id),
            good.paths,
            sizes,
            good.mtimes_ns.tolist(),
            sizes,
            itertools.repeat(1),
            itertools.repeat(""),
        )
        self._writer.add_files(list(map(FileRow, *columns)), found)
        self._tell(files_indexed=self._progress.files_indexed + len(good))

    def _index_files(self, jobs: Iterator[FileJob]) -> None:
        """Files are indexed by several threads and added in their order."""
        with ThreadPoolExecutor(self._num_threads, thread_name_prefix="index") as pool:
            running = deque[tuple[FileJob, Future[_Found]]]()
            try:
                while True:
                    for job in itertools.islice(jobs, 2 * self._num_threads - len(running)):
                        running.append((job, pool.submit(self._find, job)))
                    if not running:
                        return
                    job, future = running.popleft()
                    self._add(job, future.result())
                    self._flush_if_due()
            finally:
                for _, future in running:
                    future.cancel()

    @staticmethod
    def _find(job: FileJob) -> _Found:
        """What is in one file, held in memory unless it is large. Runs in a thread of its own."""
        chunks: list[IndexedSamples] = []
        samples = job.samples()
        try:
            for chunk in samples:
                chunks.append(chunk)
                if sum(len(chunk) for chunk in chunks) >= CHUNK_ROWS:
                    return _Found(chunks, rest=samples)
            return _Found(chunks)
        except (DataError, ChangedError) as error:
            return _Found(error=error)

    def _add(self, job: FileJob, found: _Found) -> None:
        if found.error is not None:
            self._leave(job.seen, found.error)
            return
        file_id = self._writer.next_file_id if job.row is None else job.row.file_id
        try:
            if found.rest is None:
                self._writer.add(file_id, found.chunks)
            else:
                file_id = self._add_large(job, found.chunks, found.rest)
        except (DataError, ChangedError) as error:
            # A small file is refused as a whole. A large one stands alone since the last flush.
            if found.rest is not None:
                self._writer.discard()
            self._leave(job.seen, error)
            return
        seen, known = job.seen, job.remembered
        self._writer.complete(
            FileRow(file_id, seen.path, seen.size, seen.mtime_ns, known.end, known.num_samples, known.fingerprint)
        )
        self._tell(files_indexed=self._progress.files_indexed + 1)
        if found.rest is not None:
            self._flush()

    def _add_large(self, job: FileJob, chunks: Sequence[IndexedSamples], rest: Iterator[IndexedSamples]) -> int:
        """A file that is not held in memory: its segments are written as they fill, and become visible when all of it was good. Its id."""
        self._flush()
        file_id = self._writer.next_file_id if job.row is None else job.row.file_id
        num_samples, before = 0, self._progress.samples_indexed
        try:
            for chunk in itertools.chain(chunks, _ahead(rest)):
                self._writer.add(file_id, [chunk])
                self._writer.spill()
                num_samples += len(chunk)
                self._tell(samples_indexed=before + num_samples)
        finally:
            # They count when they are committed.
            self._progress = replace(self._progress, samples_indexed=before)
        return file_id

    def _leave(self, seen: SeenFile, error: DataError | ChangedError) -> None:
        if isinstance(error, ChangedError):
            self._num_changed += 1
        else:
            self._set_aside(seen, error)

    def _set_aside(self, seen: SeenFile, error: DataError) -> None:
        state = self._files.signature(seen, self._format)
        if isinstance(error, SAYS_NOTHING_OF_CONTENT):
            state = AGAIN + state
            self._dataset.retries.failed(seen.path, time.monotonic())
        if self._dataset.problems.get(seen.path) == state:
            self._writer.report(ProblemRow(seen.path, state, error.message))  # The reason may be another one.
        else:
            self._report(seen.path, state, error.message)

    def _report_once(self, path: str, state: str, reason: str) -> None:
        if self._dataset.problems.get(path) != state:
            self._report(path, state, reason)

    def _report(self, path: str, state: str, reason: str) -> None:
        get_logger("storage").warning("file_problem", dataset=self._dataset.name, path=path, reason=reason)
        self._writer.report(ProblemRow(path, state, reason))
        self._tell(problems=self._progress.problems + 1)

    def _flush(self) -> None:
        added = self._writer.num_pending_samples
        self._writer.flush()
        SAMPLES_INGESTED.labels(self._dataset.name).inc(added)
        self._tell(samples_indexed=self._progress.samples_indexed + added)

    def _flush_if_due(self) -> None:
        if self._writer.is_due():
            self._flush()

    def _tell(self, **changes: int | bool) -> None:
        self._progress = replace(self._progress, **changes)  # type: ignore[arg-type]  # every field is an int or a bool
        self._on_progress(self._progress)


def _is_below(path: str, folders: Mapping[str, str]) -> bool:
    """Whether `path` is one of `folders` or lies in one of them; "" is the folder of all."""
    if not folders:
        return False
    parts = path.split("/")
    return any("/".join(parts[:depth]) in folders for depth in range(len(parts) + 1))


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; while one is worked on, another thread makes the next."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        upcoming = pool.submit(next, items, None)
        while (item := upcoming.result()) is not None:
            upcoming = pool.submit(next, items, None)
            yield item
