"""The idempotency keys of a record log. The keys of the newest records are in memory, all other keys in immutable sorted files.

The index stores a digest of 128 bits instead of each idempotency key. A file (a *run*) contains the digests of the records [first, end) in ascending
order. With each digest, it stores the key of the sample that the record became, and a digest of the record's content: 32 bytes per record. A run is
mapped into memory and searched by binary search. Each run begins with the record after the previous run. Neighbouring runs of similar size are merged
in the background. So there are about 16 runs for each factor of 16 in the number of records. All content of a run is also in the log, so a damaged
run is set aside and built again from the log.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from modyn.atomic_write import TEMPORARY_SUFFIX
from modyn.columnar import ColumnFile, FileKind, column_writer
from modyn.errors import CorruptStateError
from modyn.keep_limits import set_aside
from modyn.records import Int64Array
from modyn.rpc.logs import get_logger
from modyn.storage.formats.record_file import Entries
from modyn.storage.ingest.segment_writer import merge_run

UInt64Array = npt.NDArray[np.uint64]

_RUN: Final = ".keys"
"""Ending of the names of runs."""
_MERGED: Final = 16
"""Number of neighbouring runs of similar size that are merged into one run."""
_SLICE_ROWS: Final = 1 << 20
"""About this number of rows are merged at once, which limits the memory of a merge."""
_KIND: Final = FileKind(b"MODYNKEY", 1, "file of idempotency keys", "restart storage, which makes it again from the records")
_COLUMNS: Final = {"high": np.uint64, "low": np.uint64, "keys": np.int64, "contents": np.uint64}
"""Columns of a run, in the order of the fields of `KeyRun`."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownKeys:
    """The result of a search for n digests. keys: keys of their samples, int64 (n,); -1: the digest is not known. contents: digests of the contents,
    uint64 (n,).
    """

    keys: Int64Array
    contents: UInt64Array


@dataclass(frozen=True, slots=True, eq=False)
class KeyRun:
    """The mapped digests of the records [first, end), ascending. high, low: the two words of each digest. All arrays are (n,)."""

    path: Path
    first: int
    end: int
    high: UInt64Array
    low: UInt64Array
    keys: Int64Array
    contents: UInt64Array

    @staticmethod
    def open(path: Path) -> KeyRun:
        """Map a run into memory and compare it with its checksums. Raises: CorruptStateError, UnavailableError, NotFoundError."""
        file = ColumnFile.open(path, _KIND)
        file.verify()
        run = KeyRun(path, int(file.meta["first"]), int(file.meta["end"]), *(file.column(name) for name in _COLUMNS))
        if len(run.high) != run.end - run.first:
            raise _KIND.corrupt(path, f"it has {len(run.high)} digests of {run.end - run.first} records")
        return run

    def find(self, digests: UInt64Array, wanted: Int64Array, found: KnownKeys) -> None:
        """Look up `digests`, uint64 (n, 2), at the positions `wanted`, and write the keys and contents that this run has into `found`."""
        places = np.searchsorted(self.high, digests[wanted, 0])
        while len(wanted):  # One pass, unless the first words of digests are equal.
            here = places < len(self.high)
            places, wanted = places[here], wanted[here]
            same = self.high[places] == digests[wanted, 0]
            places, wanted = places[same], wanted[same]
            hit = self.low[places] == digests[wanted, 1]
            found.keys[wanted[hit]] = self.keys[places[hit]]
            found.contents[wanted[hit]] = self.contents[places[hit]]
            places, wanted = places[~hit] + 1, wanted[~hit]


class KeyIndex:
    """The idempotency keys of one log. One thread at a time may call `add` and `flush`. Any thread may call `find` and `merge` at any time."""

    def __init__(self, folder: Path, runs: tuple[KeyRun, ...]) -> None:
        """Args: folder: folder of the runs. runs: the runs, the first from record 0 on, without gaps."""
        self._folder, self._runs = folder, runs
        self._changing = threading.Lock()
        """Protects changes of `_runs`, because a merge may end while a run is added. `_runs` is read without the lock, because a change assigns a new
        list."""
        self._merging = threading.Lock()
        """Lets only one thread merge at a time: a second thread would restore runs that the first has replaced, and lose runs that were added."""
        self._held: dict[bytes, tuple[int, int]] = {}
        """The records that are in no run yet: digest → (key of the sample, digest of its content)."""

    @classmethod
    def open(cls, folder: Path, quarantine: Path) -> KeyIndex:
        """Open the runs in `folder` up to the first gap. Damaged runs, and runs after a gap, are moved to `quarantine`.

        Raises: UnavailableError: a run cannot be read. OSError: the folder cannot be used.
        """
        for path in folder.glob(f"*{_RUN}.*{TEMPORARY_SUFFIX}"):
            path.unlink(missing_ok=True)
        found: list[KeyRun] = []
        for path in folder.glob(f"*{_RUN}"):
            try:
                found.append(KeyRun.open(path))
            except CorruptStateError as error:
                _set_aside(path, quarantine, error.message)
        kept: list[KeyRun] = []
        # Of the runs with the same first record, the longest comes first, because a merged run replaces the runs that it was made of.
        for run in sorted(found, key=lambda run: (run.first, -run.end)):
            end = kept[-1].end if kept else 0
            if run.end <= end:
                run.path.unlink(missing_ok=True)  # A merged run has replaced it, and the process ended before the removal.
            elif run.first == end:
                kept.append(run)
            else:
                reason = f"it begins with record {run.first}, and the keys of the records from {end} on are in no file"
                _set_aside(run.path, quarantine, reason)
        return cls(folder, tuple(kept))

    @property
    def covered(self) -> int:
        """Number of records, counted from record 0, whose keys are in runs."""
        return self._runs[-1].end if self._runs else 0

    @property
    def end(self) -> int:
        """Number of records whose keys are known."""
        return self.covered + len(self._held)

    @property
    def num_runs(self) -> int:
        """Number of files that a look-up searches."""
        return len(self._runs)

    def find(self, digests: UInt64Array) -> KnownKeys:
        """Look up `digests`, uint64 (n, 2). For each digest, the search in a run of m records takes O(log m)."""
        found = KnownKeys(np.full(len(digests), -1, np.int64), np.zeros(len(digests), np.uint64))
        for i, digest in enumerate(digest_bytes(digests)):
            if (known := self._held.get(digest)) is not None:
                found.keys[i], found.contents[i] = known
        # The newest runs are searched first, because repeated calls usually contain recent records.
        for run in reversed(self._runs):
            wanted = np.flatnonzero(found.keys < 0)
            if not len(wanted):
                break
            run.find(digests, wanted, found)
        return found

    def add(self, entries: Entries) -> None:
        """Add the next records, which must be durable in the log and have only new keys. Raises: CorruptStateError: a key is known already."""
        first = self.end
        contents = entries["content"].tolist()
        for i, digest in enumerate(digest_bytes(entries["digest"])):
            self._held[digest] = (first + i, contents[i])
        if self.end - first != len(entries):
            raise CorruptStateError(
                f"the records from {first} on in {self._folder.parent} have an idempotency key twice; restore the log from a backup"
            )

    @property
    def num_held(self) -> int:
        """Number of keys in memory."""
        return len(self._held)

    def flush(self) -> None:
        """Write the keys in memory as a run, and remove them from memory. Raises: UnavailableError: the run cannot be written; then the keys stay in
        memory.
        """
        if not self._held:
            return
        words = np.frombuffer(b"".join(self._held), "<u8").reshape(-1, 2)
        values = (
            np.array([key for key, _ in self._held.values()], np.int64),
            np.array([content for _, content in self._held.values()], np.uint64),
        )
        order = np.lexsort((words[:, 1], words[:, 0]))
        columns = (words[order, 0], words[order, 1], *(column[order] for column in values))
        first, end = self.covered, self.end
        path = _path(self._folder, first, end)
        with column_writer(path, _KIND, {name: (dtype, end - first) for name, dtype in _COLUMNS.items()}) as writer:
            writer.meta.update(first=first, end=end)
            for name, column in zip(_COLUMNS, columns, strict=True):
                writer.append(name, column)
        run = KeyRun.open(path)
        with self._changing:
            self._runs = (*self._runs, run)
        self._held = {}

    def merge(self, slice_rows: int = _SLICE_ROWS) -> None:
        """Merge neighbouring runs of similar size, until no 16 neighbours have a similar size.

        Raises: UnavailableError, CorruptStateError.
        Args: slice_rows: approximate number of digests that are sorted at once.
        """
        with self._merging:
            while True:
                runs = self._runs
                count = merge_run([run.end - run.first for run in runs], _MERGED, 1 << 62)
                if not count:
                    return
                old = runs[-count:]
                merged = _merge(self._folder, old, slice_rows)
                with self._changing:
                    # Runs that were added during the merge stay at the end.
                    self._runs = (*runs[:-count], merged, *self._runs[len(runs) :])
                # The old runs are removed last. After a crash before the removal, `open` removes them, because the merged run covers them.
                for run in old:
                    run.path.unlink(missing_ok=True)


def digest_bytes(digests: npt.NDArray[Any]) -> list[bytes]:
    """Return each of `digests`, uint64 (n, 2), as 16 bytes."""
    whole = np.ascontiguousarray(digests, "<u8").tobytes()
    return [whole[first : first + 16] for first in range(0, len(whole), 16)]


def _merge(folder: Path, old: tuple[KeyRun, ...], slice_rows: int) -> KeyRun:
    """Merge neighbouring runs into one file. Digests are evenly distributed, so equal slices of their range have about equal numbers of rows. One
    slice is merged at a time, which limits the memory.
    """
    first, end = old[0].first, old[-1].end
    path = _path(folder, first, end)
    num_slices = (end - first) // slice_rows + 1
    bounds = [(number << 64) // num_slices for number in range(1, num_slices)]
    cuts = [[0, *np.searchsorted(run.high, np.array(bounds, np.uint64)).tolist(), len(run.high)] for run in old]
    with column_writer(path, _KIND, {name: (dtype, end - first) for name, dtype in _COLUMNS.items()}) as writer:
        writer.meta.update(first=first, end=end)
        for parts in zip(*(pairwise(places) for places in cuts), strict=True):
            columns = {
                name: np.concatenate([getattr(run, name)[slice(*part)] for run, part in zip(old, parts, strict=True)])
                for name in _COLUMNS
            }
            order = np.lexsort((columns["low"], columns["high"]))
            for name, column in columns.items():
                writer.append(name, column[order])
    return KeyRun.open(path)


def _path(folder: Path, first: int, end: int) -> Path:
    return folder / f"{first:020d}-{end:020d}{_RUN}"


def _set_aside(path: Path, quarantine: Path, reason: str) -> None:
    kept = set_aside(path, quarantine)
    get_logger("storage").warning("keys_set_aside", path=str(kept), reason=reason)
