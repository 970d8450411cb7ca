"""Makes segments of what formats found and commits them with their files: all samples of a file become visible at once or not at all."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

import numpy as np

from modyn.errors import DataError
from modyn.storage.catalogue.catalogue import Change, ProblemRow, SegmentRow
from modyn.storage.index.segment_index import SEGMENT_ROWS, SegmentBuilder, merge_segments, write_segment
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.model.file_table import FileRow
from modyn.storage.model.samples import IndexedFiles, IndexedSamples


class SegmentWriter:
    """Collects samples, in order of key. Call with the dataset's writers' locks held."""

    def __init__(self, dataset: OpenDataset) -> None:
        self._dataset = dataset
        self._reset()

    def _reset(self) -> None:
        self._builder = SegmentBuilder(self._dataset.row.float_labels)
        self._next_key = self._dataset.row.next_key
        self._segments: list[SegmentRow] = []
        self._new_files: list[FileRow] = []
        self._changed_files: list[FileRow] = []
        self._problems: dict[str, ProblemRow] = {}
        self._solved: set[str] = set()
        self._flushed = time.monotonic()

    @property
    def next_file_id(self) -> int:
        """The id of the next file that `add_files` or `complete` brings."""
        return len(self._dataset.files) + len(self._new_files)

    @property
    def num_pending_samples(self) -> int:
        return len(self._builder) + self._next_key - self._dataset.row.next_key

    def add(self, file_id: int, chunks: Sequence[IndexedSamples]) -> None:
        """Part of a file; `complete` follows after the last part. Raises DataError, and adds nothing, if labels are of the wrong kind."""
        for chunk in chunks:
            self._check_labels(chunk)
        for chunk in chunks:
            self._builder.add(file_id, chunk)

    def complete(self, row: FileRow) -> None:
        """All samples of the file are added; none means that it is empty."""
        (self._new_files if row.file_id == self.next_file_id else self._changed_files).append(row)
        self.solve(row.path)

    def add_files(self, rows: Sequence[FileRow], files: IndexedFiles) -> None:
        """Whole files of one sample each; `rows` (at least one) are those of `files.good()`, their ids follow `next_file_id`."""
        self._check_labels(files)
        self._builder.add_files(np.arange(rows[0].file_id, rows[0].file_id + len(rows), dtype=np.uint32), files)
        self._new_files.extend(rows)
        for row in rows if self._problems or self._dataset.problems else ():
            self.solve(row.path)

    def change_file(self, row: FileRow) -> None:
        """A file without new samples of which something else is known now."""
        self._changed_files.append(row)

    def report(self, problem: ProblemRow) -> None:
        self._problems[problem.path] = problem
        self._solved.discard(problem.path)

    def solve(self, path: str) -> None:
        if path in self._dataset.problems:
            self._solved.add(path)
        self._problems.pop(path, None)

    def spill(self) -> None:
        """Writes full segments; nothing is visible before `flush`."""
        while self._builder.full():
            self._write_one()

    def is_due(self) -> bool:
        """Whether there is enough for a segment or a commit, or the samples have waited for long enough."""
        limits = self._dataset.limits
        return (
            self._builder.full()
            or len(self._new_files) >= limits.flush_files
            or time.monotonic() - self._flushed >= limits.flush_s
        )

    def flush(self) -> None:
        """Commits everything that was added. Only between files."""
        while len(self._builder):
            self._write_one()
        if self._segments or self._new_files or self._changed_files or self._problems or self._solved:
            self._dataset.commit(
                Change(
                    next_key=self._next_key,
                    new_files=self._new_files,
                    changed_files=self._changed_files,
                    segments=self._segments,
                    problems=list(self._problems.values()),
                    solved=sorted(self._solved),
                )
            )
        self._reset()

    def discard(self) -> None:
        """Forgets everything since the last `flush`: a file turned out to be bad in its middle."""
        for segment in self._segments:
            (self._dataset.folder / segment.file_name).unlink(missing_ok=True)
        self._reset()

    def merge(self) -> None:
        """Makes one segment of many small ones, as long as there are so many."""
        while run := merge_run(
            [segment.info.num_samples for segment in self._dataset.segments()], self._dataset.limits.merge_run
        ):
            old = self._dataset.segments()[-run:]
            name = _new_name(old[0].info.first_key)
            info = merge_segments(self._dataset.folder / name, old)
            self._dataset.commit(
                Change(
                    next_key=self._dataset.row.next_key,
                    segments=[SegmentRow(info, name)],
                    replaced_segments=[segment.info.first_key for segment in old],
                )
            )

    def _write_one(self) -> None:
        columns = self._builder.take()
        name = _new_name(self._next_key)
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


def merge_run(sizes: Sequence[int], factor: int = 16) -> int:
    """How many of the last segments, of these numbers of samples, are to become one; 0 if none.

    Segments of factor^k to factor^(k + 1) samples are of one kind: `factor` neighbours of a kind, and smaller ones behind them, become one.

    >>> merge_run([10] * 15), merge_run([10] * 16), merge_run([5000] + [10] * 16), merge_run([20] * 15 + [1])
    (0, 16, 16, 0)
    """
    floor = 1
    while floor < SEGMENT_ROWS:
        run = total = of_kind = 0
        for size in reversed(sizes):
            if size >= floor * factor or total + size > SEGMENT_ROWS:
                break
            run, total, of_kind = run + 1, total + size, of_kind + (size >= floor)
        if of_kind >= factor:
            return run
        floor *= factor
    return 0


def _new_name(first_key: int) -> str:
    """Unique, so that two processes that try for the same keys do not write one file."""
    return f"{first_key:020d}-{uuid.uuid4().hex[:12]}.segment"
