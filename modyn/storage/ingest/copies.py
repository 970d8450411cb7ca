"""Makes missing unpacked copies of compressed files, removes unneeded copies, and refuses files that may repeat the rows of other files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np

from modyn.errors import DataError
from modyn.storage.files.file_system import IndexedVersion, SeenFile
from modyn.storage.files.unpacked import same_unpacked
from modyn.storage.ingest.fingerprints import tail_of
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.ingest.problems import ProblemReporter


class CopyKeeper:
    """Keeps the unpacked copies of one dataset consistent with its files. The caller holds the locks of ingestion."""

    def __init__(self, dataset: OpenDataset, problems: ProblemReporter) -> None:
        self._dataset, self._problems = dataset, problems
        self._new: set[str] = set()

    def refuse_repeated(self, seen: SeenFile) -> bool:
        """Set a new file aside if another file may contain the same rows in another compression. Returns whether the file was set aside."""
        table, full = self._dataset.files, self._dataset.filesystem.full_path
        others = sorted(same_unpacked(seen.path)) if self._dataset.format.packed else []
        other = next((other for other in others if other in self._new or table.id_of(other) is not None), None)
        if other is None:
            self._new.add(seen.path)
            return False
        reason = (
            f"{full(seen.path)} is not indexed: {full(other)} is, which seems to hold the same rows, compressed in another way; remove one of them, "
            "or rename this one if its rows are others"
        )
        self._problems.set_aside(seen, DataError(reason))
        return True

    def keep_needed(self, *, mend: bool) -> None:
        """Remove unneeded copies; with `mend`, make missing or damaged copies again."""
        dataset, needed = self._dataset, set[str]()
        is_due = mend or dataset.has_outdated_copies or any(map(dataset.format.is_packed, self._new))
        self._new.clear()
        if not dataset.format.packed or not is_due:
            return
        damaged = {problem.path for problem in dataset.damaged}
        for seen in self._packed_files():
            needed.add(place := dataset.unpacked.place(seen.path, seen.size, seen.tag))
            if mend:
                is_missing = os.path.dirname(place) in damaged or not os.path.exists(place)
                self._problems.report_copy(seen.path, self._make(seen, place) if is_missing else None)
        dataset.has_outdated_copies = dataset.unpacked.keep_only(needed, time.monotonic())

    def _packed_files(self) -> Iterator[SeenFile]:
        """Yield the compressed files in their indexed state."""
        dataset = self._dataset
        ids = [i for i in range(len(dataset.files)) if dataset.format.is_packed(dataset.files.path(i))]
        columns = (column.tolist() for column in dataset.files.known.stamps(np.array(ids, np.int64)))
        for file_id, size, mtime_ns, tail in zip(ids, *columns, strict=True):
            yield SeenFile(dataset.files.path(file_id), size, mtime_ns, tail)

    def _make(self, seen: SeenFile, place: str) -> str | None:
        """Make a copy again, unless its file has changed. Returns the reason if the copy cannot be made, else None."""
        dataset, path = self._dataset, self._dataset.filesystem.full_path(seen.path)
        try:
            if tail_of(dataset.filesystem, dataset.format, seen) == seen.tag:
                version = IndexedVersion(seen.size, seen.mtime_ns, seen.tag)
                # The damaged copy is removed first, so that its samples cannot be read until the new copy exists.
                dataset.unpacked.drop(place)
                dataset.unpacked.make(dataset.filesystem, path, version, place, dataset.limits.unpacked_bytes)
                dataset.report_damage(os.path.dirname(place), None)
        except DataError as error:
            return f"the unpacked copy of {path} is missing, and cannot be made: {error.message}"
        return None
