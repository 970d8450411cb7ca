"""The samples of a run in the order in which their labels arrived. Trigger sets are selected from this stream.

As long as each sample of a run arrives with its label, this stream is the log of the run. If labels arrive late from sample number N on, a second log
of the same form, the file `labels.N`, holds the later samples in the order of their labels. The first N samples are the same in both orders, and only
the first log holds them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np

from modyn.errors import ConflictError
from modyn.records import Int64Array, LabelArray, RunId, SampleBatch
from modyn.selector.sample_log import GroupEntry, HeldSamples, SampleLog
from modyn.selector.window import StreamReader

_PREFIX = "labels."


class LabelledStream(StreamReader):
    """A run's samples, numbered in the order of their labels. Raises the errors of `SampleLog`."""

    def __init__(self, samples: SampleLog, labels: SampleLog, first: int) -> None:
        """Args: samples: the stream in order of arrival. labels: the samples of the stream from number `first` on, in the order of their labels."""
        self._samples, self._labels, self._first = samples, labels, first

    @classmethod
    def find(cls, run_id: RunId, directory: Path, samples: SampleLog) -> Self | None:
        """Return the labelled stream of a run, or None if no label has arrived late yet."""
        path = next(directory.glob(f"{_PREFIX}*"), None)
        if path is None:
            return None
        return cls(samples, SampleLog(run_id, directory, path.name), int(path.name.removeprefix(_PREFIX)))

    @classmethod
    def begin(cls, run_id: RunId, directory: Path, samples: SampleLog, first: int) -> Self:
        """Create the second log of a run, for the samples from number `first` on, durably. Raises ConflictError: earlier samples are missing."""
        if not 0 <= first <= (held := samples.state().num_samples):
            raise ConflictError(
                f"labels of run '{run_id}' cannot begin to come late at sample {first}: {held} are held; inform the rest first"
            )
        labels = SampleLog(run_id, directory, f"{_PREFIX}{first}")
        labels.create()
        return cls(samples, labels, first)

    def append(self, number: int, batch: SampleBatch) -> int:
        """Append the samples of `batch` that are not stored yet. The first sample of `batch` has the number `number`. Returns the number of samples.

        Raises: ConflictError: there would be a gap, or repeated samples differ from the stored samples.
        """
        if number < self._first:
            raise ConflictError(
                f"labels of run '{self._labels.run_id}' came late from sample {self._first} on, not from {number} on; a stream must be repeated as "
                "it was"
            )
        return self._first + self._labels.append(number - self._first, batch)[0]

    def repair(self) -> None:
        """See `SampleLog.repair`."""
        self._labels.repair()

    def state(self) -> HeldSamples:
        """Return the number of samples, and the type of their labels."""
        found = self._labels.state()
        # While the second log is empty, the first log alone knows the type of the labels.
        floats = self._samples.state().float_labels if found.float_labels is None else found.float_labels
        return HeldSamples(self._first + found.num_samples, floats, GroupEntry())

    def read(self, start: int, end: int) -> SampleBatch:
        """Return the samples with numbers [start, end)."""
        same, late = self._split(start, end)
        if same and late:
            return SampleBatch.concatenate([self._samples.read(*same), self._labels.read(*late)])
        return self._labels.read(*late) if late else self._samples.read(*(same or (0, 0)))

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Return the keys of the samples with numbers [start, end): int64 (end - start,)."""
        same, late = self._split(start, end)
        parts = [log.read_keys(*part) for log, part in ((self._samples, same), (self._labels, late)) if part]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])

    def read_labels(self, start: int, end: int) -> LabelArray:
        """Return the labels of the samples with numbers [start, end): int64 or float64 (end - start,)."""
        same, late = self._split(start, end)
        if same and late:
            return np.concatenate([self._samples.read_labels(*same), self._labels.read_labels(*late)])
        return self._labels.read_labels(*late) if late else self._samples.read_labels(*(same or (0, 0)))

    def _split(self, start: int, end: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Return the ranges [start, end) of rows of these samples in the first log and in the second log. If a log has none of these samples, its
        range is None.
        """
        first = self._first
        same = (start, min(end, first)) if start < min(end, first) else None
        late = (max(start - first, 0), end - first) if max(start, first) < end else None
        return same, late
