"""A run's stream in memory, which replaces the selector's log."""

from __future__ import annotations

from modyn.records import Int64Array, LabelArray, SampleBatch
from modyn.selector.window import StreamReader


class MemoryReader(StreamReader):
    """A stream in memory whose arrays are read-only."""

    def __init__(self, samples: SampleBatch) -> None:
        for column in (samples.keys, samples.timestamps, samples.labels):
            column.flags.writeable = False
        self.samples = samples

    def read(self, start: int, end: int) -> SampleBatch:
        """Return the samples [start, end) of the stream."""
        return self.samples.slice(start, end)

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Return the keys of the samples [start, end): int64 (n,)."""
        return self.samples.keys[start:end]

    def read_labels(self, start: int, end: int) -> LabelArray:
        """Return the labels of the samples [start, end): int64 or float64 (n,)."""
        return self.samples.labels[start:end]
