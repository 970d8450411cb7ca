"""How the samples of a run are read: by position in its stream."""

from __future__ import annotations

from typing import Protocol

from modyn.records import Int64Array, SampleBatch
from modyn.rpc.retry import CancellationToken

BLOCK = 65_536
"""Positions that a sampler decides on at once. Fixed, because a seed means the same sample only as long as this stays."""


class SampleReader(Protocol):
    """Random access to the samples of one run by position in its stream: SampleLog, or arrays in tests."""

    def read(self, start: int, end: int) -> SampleBatch:
        """Return samples [start, end), positions from 0 in the stream, all of which must exist."""

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Return the keys of samples [start, end), int64 (end - start,), which is what most policies need."""


class CancellableReader:
    """Reads as `reader` does, until `token` is cancelled: from then on each read raises its cause."""

    def __init__(self, reader: SampleReader, token: CancellationToken) -> None:
        self._reader = reader
        self._token = token

    def read(self, start: int, end: int) -> SampleBatch:
        """Return samples [start, end)."""
        self._token.check()
        return self._reader.read(start, end)

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Return the keys of samples [start, end)."""
        self._token.check()
        return self._reader.read_keys(start, end)
