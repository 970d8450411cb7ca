"""Snapshots whose reads are counted and held back, and what comes of fetches of `numbers`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from modyn.config.system_sections.endpoint import Endpoint
from modyn.records import Int64Array
from modyn.storage.flight.server import Snapshots
from modyn.storage.model.samples import Payloads, RecordReader, UInt8Array, UInt32Array
from modyn.storage.read.snapshot import DatasetSnapshot
from modyn.testing.waiting import PATIENCE_S

StartServer = Callable[..., Endpoint]
"""Starts a payload server; see the fixture `serve`."""


class WatchedSnapshots:
    """Snapshots whose reads are counted. num_free: reads of `numbers` beyond this number wait until `released`; None: none waits."""

    def __init__(self, snapshots: Snapshots, num_free: int | None = None) -> None:
        self._snapshots, self._num_free = snapshots, num_free
        self._lock = threading.Lock()
        self.num_reads = self.num_bytes = 0
        self.released = threading.Event()

    def snapshot(self, name: str) -> DatasetSnapshot:
        found = self._snapshots.snapshot(name)
        return replace(found, reader=_WatchedReader(self, found.reader, name == "numbers"))

    def read(self, reader: RecordReader, may_wait: bool, *asked: Int64Array | UInt32Array | int) -> tuple[UInt8Array, Int64Array]:
        with self._lock:
            self.num_reads += 1
            waits = may_wait and self._num_free is not None and self.num_reads > self._num_free
        if waits:
            self.released.wait(PATIENCE_S)
        data, bounds = reader.gather(*asked)  # type: ignore[arg-type]
        with self._lock:
            self.num_bytes += data.nbytes
        return data, bounds


class _WatchedReader:
    def __init__(self, watched: WatchedSnapshots, reader: RecordReader, may_wait: bool) -> None:
        self._watched, self._reader, self._may_wait = watched, reader, may_wait

    def gather(self, file_ids: UInt32Array, offsets: Int64Array, lengths: Int64Array | int) -> tuple[UInt8Array, Int64Array]:
        return self._watched.read(self._reader, self._may_wait, file_ids, offsets, lengths)


def keys_of(batches: Iterable[Payloads]) -> list[int]:
    """Return the keys of all batches of `numbers`, and check that each has its payload and its label."""
    got: list[int] = []
    for batch in batches:
        keys = batch.keys.tolist()
        assert [int.from_bytes(batch.payload(i), "little") for i in range(len(keys))] == [1_000_000 + key for key in keys]
        assert batch.labels.tolist() == [key % 10 for key in keys]
        got += keys
    return got
