"""Which idempotency keys a record log has: immutable sorted files, and in memory those of the newest records.

An idempotency key counts by its digest of 128 bits. A file (a *run*) has the digests of the records [first, end) in ascending order, with the key
of the sample that each became and a digest of its content: 40 bytes a record, mapped into memory, found by binary search. Runs
follow each other without gaps. Some neighbours of one size become one in the background, so that there are about 16 for each factor of
16 in the length of the log. A run holds nothing that the log does not: one that is damaged is set aside, and made anew from the log.
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
from modyn.records import Int64Array
from modyn.retention import set_aside
from modyn.rpc.logs import get_logger
from modyn.storage.formats.record_log import Entries
from modyn.storage.ingest.segment_writer import merge_run

UInt64Array = npt.NDArray[np.uint64]

_RUN: Final = ".keys"
_MERGED: Final = 16
"""Neighbouring runs of about one size that become one."""
_SLICE_ROWS: Final = 1 << 20
"""About so many rows are merged at once: bounds the memory of a merge."""
_KIND: Final = FileKind(b"MODYNKEY", 1, "file of idempotency keys", "restart storage, which makes it anew from the records")
_COLUMNS: Final = {"high": np.uint64, "low": np.uint64, "keys": np.int64, "contents": np.uint64}


@dataclass(frozen=True, slots=True, eq=False)
class KnownKeys:
    """What is known of n digests. keys: of their samples, int64 (n,), -1: not known. contents: digests of their contents, uint64 (n,)."""

    keys: Int64Array
    contents: UInt64Array


@dataclass(frozen=True, slots=True, eq=False)
class KeyRun:
    """The digests of the records [first, end), ascending, mapped. high, low: words of a digest. Arrays are (n,)."""

    path: Path
    first: int
    end: int
    high: UInt64Array
    low: UInt64Array
    keys: Int64Array
    contents: UInt64Array

    @staticmethod
    def open(path: Path) -> KeyRun:
        """Map a run, compared with its checksums. Raises: CorruptStateError, UnavailableError, NotFoundError."""
        file = ColumnFile.open(path, _KIND)
        file.verify()
        run = KeyRun(path, int(file.meta["first"]), int(file.meta["end"]), *(file.column(name) for name in _COLUMNS))
        if len(run.high) != run.end - run.first:
            raise _KIND.corrupt(path, f"it has {len(run.high)} digests of {run.end - run.first} records")
        return run

    def find(self, digests: UInt64Array, wanted: Int64Array, found: KnownKeys) -> None:
        """Fill in `found` at the positions `wanted` of `digests`, uint64 (n, 2), which this run has."""
        places = np.searchsorted(self.high, digests[wanted, 0])
        while len(wanted):  # once, but for digests of which the first words are the same
            here = places < len(self.high)
            places, wanted = places[here], wanted[here]
            same = self.high[places] == digests[wanted, 0]
            places, wanted = places[same], wanted[same]
            hit = self.low[places] == digests[wanted, 1]
            found.keys[wanted[hit]] = self.keys[places[hit]]
            found.contents[wanted[hit]] = self.contents[places[hit]]
            places, wanted = places[~hit] + 1, wanted[~hit]


class KeyIndex:
    """The idempotency keys of one log. `find`, `add` and `flush` are called by one thread at a time; `merge` by another one meanwhile."""

    def __init__(self, folder: Path, runs: tuple[KeyRun, ...]) -> None:
        """Args: folder: of the runs. runs: without gaps from 0."""
        self._folder, self._runs = folder, runs
        self._changing = threading.Lock()
        """Protects changes of `_runs`, which is replaced as a whole and read without it: a merge ends while a run is added."""
        self._held: dict[bytes, tuple[int, int]] = {}
        """Of the records behind the runs: by digest the key of the sample and the digest of its content."""

    @classmethod
    def open(cls, folder: Path, quarantine: Path) -> KeyIndex:
        """Open the runs in `folder`, up to the first gap; those that are damaged, and those behind a gap, are moved to `quarantine`.

        Raises: UnavailableError: one cannot be read. OSError: the folder cannot be used.
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
        for run in sorted(found, key=lambda run: (run.first, -run.end)):
            end = kept[-1].end if kept else 0
            if run.end <= end:
                run.path.unlink(missing_ok=True)  # A merged run has taken its place, and the process ended before it was removed.
            elif run.first == end:
                kept.append(run)
            else:
                reason = f"it begins with record {run.first}, and there is none of the records from {end} on"
                _set_aside(run.path, quarantine, reason)
        return cls(folder, tuple(kept))

    @property
    def covered(self) -> int:
        """Number of records from the first one on whose keys are in runs."""
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
        """Look up `digests`, uint64 (n, 2): O(log n) for each run."""
        found = KnownKeys(np.full(len(digests), -1, np.int64), np.zeros(len(digests), np.uint64))
        for i, digest in enumerate(digest_bytes(digests)):
            if (known := self._held.get(digest)) is not None:
                found.keys[i], found.contents[i] = known
        # Newest first: a call that is repeated asks for what has just come.
        for run in reversed(self._runs):
            wanted = np.flatnonzero(found.keys < 0)
            if not len(wanted):
                break
            run.find(digests, wanted, found)
        return found

    def add(self, entries: Entries) -> None:
        """Add the next records, of which none is known; they are durable in the log. Raises: CorruptStateError: one is known."""
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
        """Write the keys in memory as a run, after which they need none. Raises: UnavailableError: they stay in memory."""
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
        """Make neighbouring runs of about one size one, until there are no 16 of them. Raises: UnavailableError, CorruptStateError.

        Args: slice_rows: about so many digests are sorted at once.
        """
        while True:
            runs = self._runs
            count = merge_run([run.end - run.first for run in runs], _MERGED, 1 << 62)
            if not count:
                return
            old = runs[-count:]
            merged = _merged(self._folder, old, slice_rows)
            with self._changing:
                # Runs that were added meanwhile stand behind.
                self._runs = (*runs[:-count], merged, *self._runs[len(runs) :])
            for run in old:
                run.path.unlink(missing_ok=True)


def digest_bytes(digests: npt.NDArray[Any]) -> list[bytes]:
    """Each of `digests`, uint64 (n, 2), as its 16 bytes."""
    whole = np.ascontiguousarray(digests, "<u8").tobytes()
    return [whole[first : first + 16] for first in range(0, len(whole), 16)]


def _merged(folder: Path, old: tuple[KeyRun, ...], slice_rows: int) -> KeyRun:
    """Write one run of several neighbours: slice by slice of the range of digests, so that memory is bounded. Digests spread evenly."""
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
