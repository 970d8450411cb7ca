"""Writes indexed samples as segments, and commits them with their files. All samples of a file become visible at once or not at all."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from itertools import compress, takewhile
from operator import itemgetter

import numpy as np

from modyn.errors import CorruptStateError, DataError, UnavailableError
from modyn.storage.catalogue.catalogue import Change, ProblemRow, SegmentRow, SkippedRow
from modyn.storage.index.segment_file import SEGMENT_ROWS, Segment, SegmentBuilder, merge_segments, write_segment
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.model.file_table import FileRow
from modyn.storage.model.samples import BadRow, IndexedFiles, IndexedSamples
from modyn.storage.model.schema import DatasetSchema
from modyn.storage.read.scrub import segment_problem


class SegmentWriter:
    """Collects samples in the order of their keys. The caller holds the locks of ingestion."""

    def __init__(self, dataset: OpenDataset) -> None:
        self._dataset = dataset
        self._reset()

    def _reset(self) -> None:
        self._builder = SegmentBuilder(self._dataset.limits.segment_rows)
        self._next_key = self._dataset.row.next_key
        self._segments: list[SegmentRow] = []
        self._new_files: list[FileRow] = []
        self._changed_files: list[FileRow] = []
        self._problems: dict[str, ProblemRow] = {}
        self._solved: set[str] = set()
        self._skipped: list[SkippedRow] = []
        self._forgotten: list[FileRow] = []
        self.schema: DatasetSchema | None = None
        """The schema of the dataset after the added files; None: unchanged."""
        self._flushed = time.monotonic()

    @property
    def next_file_id(self) -> int:
        """Id of the next file that `add_files` or `complete` adds."""
        return len(self._dataset.files) + len(self._new_files)

    @property
    def num_pending_samples(self) -> int:
        """Number of samples that were added and are not committed yet."""
        return len(self._builder) + self._next_key - self._dataset.row.next_key

    def add(self, file_id: int, chunks: Sequence[IndexedSamples]) -> None:
        """Add `chunks` of samples of the file `file_id`, in order. After the last chunks, the caller calls `complete`.

        Raises: DataError: labels are of the wrong type; nothing is added.
        """
        # All chunks are checked before one is added, so that a refused file adds no samples.
        for chunk in chunks:
            self._check_labels(chunk)
        for chunk in chunks:
            self._builder.add(file_id, chunk)

    def complete(self, row: FileRow, skipped: Iterable[BadRow] = ()) -> None:
        """Add the row of a file whose samples were all added, or of a file without samples. `skipped`: unusable rows of the file."""
        self._skipped += (SkippedRow(row.path, bad.offset, bad.reason) for bad in skipped)
        (self._new_files if row.file_id == self.next_file_id else self._changed_files).append(row)
        self.solve(row.path)

    def add_files(self, rows: Sequence[FileRow], files: IndexedFiles) -> None:
        """Add files of one sample each.

        Args: rows: at least one, for `files.good()`. Ids of new files start at `next_file_id`; smaller ids belong to known files without indexed
        samples.

        Raises: DataError: labels are of the wrong type; nothing is added.
        """
        self._check_labels(files)
        ids = np.fromiter(map(itemgetter(0), rows), np.uint32, len(rows))
        is_new = ids >= self.next_file_id
        self._builder.add_files(ids, files)
        self._new_files.extend(compress(rows, is_new.tolist()))
        self._changed_files.extend(compress(rows, (~is_new).tolist()))
        # Usually there are no problems, so this condition saves one call for each file.
        for row in rows if self._problems or self._dataset.problems else ():
            self.solve(row.path)

    def change_file(self, row: FileRow) -> None:
        """Replace the row of a file that has no new samples."""
        self._changed_files.append(row)

    def forget_file(self, row: FileRow) -> None:
        """Replace the row of a file by a row without indexed bytes, and remove the problem and the skipped rows of the file."""
        self._forgotten.append(row)
        self.solve(row.path)

    def report(self, problem: ProblemRow) -> None:
        """Add or replace the problem of a file."""
        self._problems[problem.path] = problem
        self._solved.discard(problem.path)

    def solve(self, path: str) -> None:
        """Remove the problem of a file, if the file has one. Args: path: relative to the dataset's folder."""
        if path in self._dataset.problems:
            self._solved.add(path)
        self._problems.pop(path, None)

    def keep(self, path: str) -> None:
        """Keep the reported problem of a file, although it was marked as solved since the last flush. Args: path: as for `solve`."""
        self._solved.discard(path)

    def spill(self) -> None:
        """Write full segments. The samples in them become visible only with `flush`."""
        while self._builder.full():
            self._write_one()

    def is_due(self) -> bool:
        """Whether the added samples are enough for a segment, the added files are enough for a commit, or the last flush was `flush_s` seconds
        ago.
        """
        limits = self._dataset.limits
        return (
            self._builder.full()
            or len(self._new_files) >= limits.flush_files
            or time.monotonic() - self._flushed >= limits.flush_s
        )

    def flush(self) -> None:
        """Commit everything that was added. Call this method only between files."""
        while len(self._builder):
            self._write_one()
        changes = (self._segments, self._new_files, self._changed_files, self._problems, self._solved, self._forgotten)
        if any(changes) or self.schema:
            files, problems, solved = (self._new_files, self._changed_files), list(self._problems.values()), sorted(self._solved)
            self._dataset.commit(
                Change(
                    self._next_key,
                    *files,
                    self._segments,
                    problems=problems,
                    solved=solved,
                    skipped=self._skipped,
                    forgotten=self._forgotten,
                    schema=self.schema,
                )
            )
        self._reset()

    def discard(self) -> None:
        """Drop everything that was added since the last `flush`. Called when a file turns out to be damaged after some of its samples were
        written.
        """
        # No commit names these segments, so no reader uses them.
        for segment in self._segments:
            (self._dataset.folder / segment.file_name).unlink(missing_ok=True)
        self._reset()

    def merge(self) -> None:
        """Merge runs of small segments at the end of the index, until there are no such runs. A damaged segment and the segments before it are not
        merged.
        """
        dataset = self._dataset
        while old := self._next_run():
            name = _new_name(old[0].info.first_key)
            try:
                merged = SegmentRow(merge_segments(dataset.folder / name, old), name)
            except (CorruptStateError, UnavailableError):
                if not self._report_damage(old):
                    raise
                # The damaged segments are now known, so `_next_run` leaves them out.
                continue
            replaced = [segment.info.first_key for segment in old]
            dataset.commit(Change(dataset.row.next_key, segments=[merged], replaced_segments=replaced))

    def _next_run(self) -> Sequence[Segment]:
        """Return the next segments to merge. All of them are after the last segment that is known to be damaged."""
        damaged, limits = {problem.path for problem in self._dataset.damaged}, self._dataset.limits
        newest_first = reversed(self._dataset.snapshot().index.segments)
        segments = [*takewhile(lambda segment: str(segment.path) not in damaged, newest_first)][::-1]
        run = merge_run([segment.info.num_samples for segment in segments], limits.merge_run, limits.segment_rows)
        return segments[len(segments) - run :]

    def _report_damage(self, segments: Sequence[Segment]) -> bool:
        """Report which of `segments` are damaged or cannot be read. Return whether there is such a segment."""
        found = [problem for segment in segments if (problem := segment_problem(segment.path)) is not None]
        for problem in found:
            self._dataset.report_damage(problem.path, problem)
        return bool(found)

    def _write_one(self) -> None:
        columns = self._builder.take()
        name = _new_name(self._next_key)
        # Until the commit, the folder has a segment that the catalogue does not know.
        self._dataset.in_doubt = True
        info = write_segment(self._dataset.folder / name, self._next_key, columns)
        self._segments.append(SegmentRow(info, name))
        self._next_key += info.num_samples

    def _check_labels(self, samples: IndexedSamples | IndexedFiles) -> None:
        wanted = np.dtype(np.float64 if self._dataset.row.float_labels else np.int64)
        if samples.labels.dtype != wanted:
            raise DataError(
                f"the labels are {samples.labels.dtype.name}, those of dataset '{self._dataset.name}' are {wanted.name}; "
                f"a dataset has one type of labels"
            )


def merge_run(sizes: Sequence[int], factor: int = 16, most: int = SEGMENT_ROWS) -> int:
    """Return how many of the last segments are merged into one segment; 0: no segments are merged.

    Segments with factor^k to factor^(k + 1) samples belong to one size class. If the last segments contain at least `factor` segments of one class
    and otherwise only smaller segments, they are merged.

    Args: sizes: number of samples of each segment, by first key. most: largest number of samples of a segment.

    >>> merge_run([10] * 15), merge_run([10] * 16), merge_run([5000] + [10] * 16), merge_run([20] * 15 + [1])
    (0, 16, 16, 0)
    """
    floor = 1
    while floor < most:
        run = total = of_kind = 0
        for size in reversed(sizes):
            if size >= floor * factor or total + size > most:
                break
            run, total, of_kind = run + 1, total + size, of_kind + (size >= floor)
        if of_kind >= factor:
            return run
        floor *= factor
    return 0


def _new_name(first_key: int) -> str:
    """Return a unique name, so that two processes that write the same keys never write the same file."""
    return f"{first_key:020d}-{uuid.uuid4().hex[:12]}.segment"
