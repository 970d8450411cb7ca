"""Reports problems of files during one ingestion, and decides when files that were set aside are tried again."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from modyn.errors import DataError
from modyn.rpc.logs import get_logger
from modyn.storage.catalogue.catalogue import ProblemRow
from modyn.storage.files.file_system import (
    PACKED_ENDINGS,
    UNRELATED_TO_CONTENT,
    FailedAloneError,
    Listing,
    NameEndings,
    SeenFile,
    SeenFiles,
    without_packed_ending,
)
from modyn.storage.ingest.file_indexer import FileJob
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.ingest.segment_writer import SegmentWriter

FOLDER = ""
"""The path in a problem that concerns the whole folder."""
REFUSED = "refused"
"""Signature of a file or folder that storage may not examine, or cannot examine."""
_UNENDED = "unended"
"""Signature of a file whose last row waits for its end. The state of a file never equals this signature, so every scan tries the file again."""
_COPY = "copy"
"""Signature of an unchanged compressed file whose unpacked copy is missing. No listing shows whether the copy exists."""
_OTHERS = "others"
"""Signature of a folder without any file of the dataset."""
_EMPTY = "empty"
"""Signature of a class folder without files. No listing of files shows it."""
_NAMED_ENDINGS = 5
"""Largest number of endings in a message."""
_AGAIN = "again "
"""Prefix of the signature of a file that could not be read. With this prefix, the signature differs from the state of any file, so the file is tried
again."""


class ProblemReporter:
    """Reports and removes problems through the writer. Both changes become visible with the next commit of the writer."""

    def __init__(self, dataset: OpenDataset, writer: SegmentWriter, on_new: Callable[[], None]) -> None:
        """Args: on_new: called for each new problem, in the thread that reports the problem."""
        self._dataset, self._writer, self._on_new = dataset, writer, on_new

    def without_set_aside(self, files: SeenFiles) -> SeenFiles:
        """Return the files that were not set aside in their current state, and unreadable files that are due for another attempt."""
        if not self._dataset.problems:
            return files
        tick = time.monotonic()
        return files.take(np.array([i for i in range(len(files)) if self._is_due(files[i], tick)], np.int64))

    def _is_due(self, file: SeenFile, tick: float) -> bool:
        known = self._dataset.problems.get(file.path)
        if known is None:
            return True
        signature = self._signature(file)
        if known == _AGAIN + signature:
            return self._dataset.retries.is_due(file.path, tick)
        return known != signature

    def set_aside(self, file: SeenFile, error: DataError) -> None:
        """Report a file that cannot be indexed. The file is tried again after it has changed. If the error is unrelated to the content, the unchanged
        file is tried again too.
        """
        signature = self._signature(file)
        if isinstance(error, UNRELATED_TO_CONTENT):
            signature = _AGAIN + signature
            self._dataset.retries.note_failure(file.path, time.monotonic(), alone=isinstance(error, FailedAloneError))
        if self._dataset.problems.get(file.path) == signature:
            self._writer.report(ProblemRow(file.path, signature, error.message))  # The reason may have changed.
        else:
            self.report(file.path, signature, error.message)

    def leave_unended(self, job: FileJob, wait_s: float) -> None:
        """Leave an incomplete last row of a file for a later scan, and report the row. Call this method after the file is added to the writer."""
        self._dataset.stability.await_end(job.listed, math.inf if job.is_part else wait_s, time.monotonic())
        path = job.listed.path
        reason = f"{self._dataset.filesystem.full_path(path)}: {job.unended}. It may be half-written and waits for its end"
        if not job.is_part:
            reason += f"; once the file has not changed for {wait_s:g} s (last_row_wait_s), it is taken as it is"
        if self._dataset.problems.get(path) == _UNENDED:
            self._writer.report(ProblemRow(path, _UNENDED, reason))  # The writer has marked the problem as solved.
        else:
            self.report(path, _UNENDED, reason)

    def report(self, path: str, signature: str, reason: str) -> None:
        """Report a problem, unless it was reported with the same signature before.

        Args: path: relative to the dataset's folder. signature: signature of the state of the file.
        """
        if self._dataset.problems.get(path) == signature:
            self._writer.keep(path)
            return
        get_logger("storage").warning("file_problem", dataset=self._dataset.name, path=path, reason=reason)
        self._writer.report(ProblemRow(path, signature, reason))
        self._on_new()

    def report_copy(self, path: str, reason: str | None) -> None:
        """Report why the unpacked copy of a file is missing; None: it is not missing."""
        if reason is not None:
            self.report(path, _COPY, reason)
        elif self._dataset.problems.get(path) == _COPY:
            self._writer.solve(path)

    def compare_with(self, listing: Listing) -> None:
        """Report missing indexed files and refused files. Remove the problems of unchanged indexed files, and of missing files that were never
        indexed."""
        table = self._dataset.files
        for path, reason in listing.refused.items():
            self.report(path, REFUSED, reason)
            file_id = table.id_of(path)
            if file_id is not None and file_id not in table.altered:
                # For example, a link may now point outside the dataset's roots, so its target is not the indexed file.
                row = self._dataset.catalogue.file(self._dataset.row.id, file_id)
                self._writer.change_file(row._replace(altered=True))
        gone = [path for i in listing.absent.tolist() if not _is_below(path := table.path(i), listing.refused)]
        if len(gone) > 1 and len(gone) == len(table):
            # The disk is probably not mounted, so one report replaces a report for each file.
            reason = f"none of the {len(gone):,} files that are indexed is there; mount the folder, or put the files back"
            self.report(FOLDER, "gone", reason)
        else:
            self._report_gone(gone, listing)

    def report_others(self, endings: NameEndings, names: Sequence[str]) -> None:
        """Report that no file name in the folder has an ending of the dataset. The report lists the existing endings. Args: names: names of all files
        in the folder; if there are none, nothing is reported."""
        if names:
            counts = Counter(_ending(name) for name in names).most_common(_NAMED_ENDINGS + 1)
            found = ", ".join(f"{count:,} × {ending}" for ending, count in counts[:_NAMED_ENDINGS])
            packed = f", or so and then in {', '.join(PACKED_ENDINGS)}" if endings.packed else ""
            reason = (
                f"no file below {self._dataset.filesystem.base} has a name that ends in '{endings.samples}'{packed}; there are {found}"
                f"{' and others' if len(counts) > _NAMED_ENDINGS else ''}. Set file_extension with `modyn data change`, or choose another folder or "
                "format"
            )
            self.report(FOLDER, _OTHERS, reason)

    def report_empty(self, folders: Sequence[str]) -> None:
        """Report the class folders without files, and no others. Args: folders: names in the dataset's folder."""
        for path in [path for path, signature in self._dataset.problems.items() if signature == _EMPTY and path not in folders]:
            self._writer.solve(path)
        for path in folders:
            reason = f"{self._dataset.filesystem.full_path(path)} is a class folder without an image, and gets no number; add images, or remove it"
            self.report(path, _EMPTY, reason)

    def _report_gone(self, gone: Sequence[str], listing: Listing) -> None:
        has_files = len(self._dataset.files) > 0 or len(listing.files) > 0
        if FOLDER not in listing.refused and (has_files or self._dataset.problems.get(FOLDER) != _OTHERS):
            self._writer.solve(FOLDER)
        for path in gone:
            reason = (
                "the file is indexed but gone: its samples cannot be read; put it back, or delete them by their keys, which the errors of "
                "reads name"
            )
            self.report(path, "gone", reason)
        if problems := self._dataset.problems:
            # An incomplete listing contains an altered file only if the file has changed again.
            ids = {*listing.absent.tolist(), *self._dataset.files.altered}
            differing = {*listing.files.paths, *listing.refused, FOLDER, *map(self._dataset.files.path, ids)}
            for path in problems.keys() - differing:
                if problems[path] not in (_COPY, _EMPTY):
                    self._writer.solve(path)

    def _signature(self, file: SeenFile) -> str:
        """Return the state of a file and its companions."""
        parts = [f"{file.size}:{file.mtime_ns}"]
        for companion in self._dataset.format.companions(self._dataset.filesystem.full_path(file.path)):
            status = self._dataset.filesystem.status(companion)
            parts.append("missing" if status is None else f"{status.size}:{status.mtime_ns}")
        return " ".join(parts)


def _ending(name: str) -> str:
    """Return the ending of a file's name, including the ending of its compression.

    >>> _ending("a.b/x.y.csv.gz"), _ending("README")
    ('.csv.gz', 'without an ending')
    """
    stem = without_packed_ending(name)
    return os.path.splitext(stem)[1] + name[len(stem) :] or "without an ending"


def _is_below(path: str, folders: Mapping[str, str]) -> bool:
    """Whether `path` is one of `folders` or is in one of them. "" in `folders` means the whole folder of the dataset."""
    parts = path.split("/") if folders else []
    return any("/".join(parts[:depth]) in folders for depth in range(len(parts) + 1))
