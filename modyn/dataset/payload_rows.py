"""Some samples of payloads that have arrived, and the samples of several answers as one: in one buffer, in the order asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from modyn._core import take
from modyn.records import Int64Array, LabelArray
from modyn.storage.flight.client import Payloads


def no_payloads() -> Payloads:
    nothing = np.empty(0, np.int64)
    return Payloads(nothing, nothing, np.empty(0, np.uint8), np.zeros(1, np.int64))


def neighbours(payloads: Payloads, start: int, stop: int) -> Payloads:
    """Samples [start, stop), as views: `data` holds their bytes and no others."""
    bounds = payloads.offsets[start : stop + 1]
    offsets = bounds - bounds[0] if bounds[0] else bounds
    data = payloads.data[bounds[0] : bounds[-1]]
    return Payloads(payloads.keys[start:stop], payloads.labels[start:stop], data, offsets, payloads.record_size)


def taken(payloads: Payloads, rows: Int64Array) -> Payloads:
    """Samples `rows`, int64 (n,), in that order, duplicates allowed: copied."""
    size = payloads.common_size
    if size:
        data, offsets = take(payloads.data[payloads.offsets[0] : payloads.offsets[-1]], size, rows)
    else:
        data, offsets = take(payloads.data, payloads.offsets, rows)
    return Payloads(payloads.keys[rows], payloads.labels[rows], data, offsets, size)


def concatenated(parts: Sequence[Payloads]) -> Payloads:
    """The samples of all parts, in order, in one buffer; a single part is not copied."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return no_payloads()
    sizes = {part.record_size for part in parts}
    return Payloads(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.data[part.offsets[0] : part.offsets[-1]] for part in parts]),
        _ends(np.concatenate([part.offsets[1:] - part.offsets[:-1] for part in parts])),
        sizes.pop() if len(sizes) == 1 else None,
    )


class Collected:
    """Answers put into one buffer as they come, so that none of them waits in memory for the last: at most `most` samples, of about
    `usual_bytes` bytes or fewer."""

    def __init__(self, most: int, usual_bytes: int) -> None:
        self._most = most
        self._usual_bytes = usual_bytes
        self._num_samples = 0
        self._keys = np.empty(most, np.int64)
        self._labels: LabelArray = np.empty(0, np.int64)
        self._offsets = np.zeros(most + 1, np.int64)
        self._data = np.empty(0, np.uint8)
        self._sizes: set[int | None] = set()

    def add(self, answer: Payloads) -> None:
        if not len(answer):
            return
        start, stop = self._num_samples, self._num_samples + len(answer)
        used = int(self._offsets[start])
        ends = answer.offsets[1:] + (used - answer.offsets[0])
        if ends[-1] > len(self._data):
            self._grow(used, int(ends[-1]), stop)
        if not start:
            self._labels = np.empty_like(answer.labels, shape=self._most)
        self._keys[start:stop] = answer.keys
        self._labels[start:stop] = answer.labels
        self._offsets[start + 1 : stop + 1] = ends
        self._data[used : ends[-1]] = answer.data[answer.offsets[0] : answer.offsets[-1]]
        self._sizes.add(answer.record_size)
        self._num_samples = stop

    def _grow(self, used: int, needed: int, num_samples: int) -> None:
        """Room for all, should those to come be as large as those that have: at once where samples are of one size. Twice what is needed at
        most beyond a window's usual size, since one sample says little of the others."""
        expected = -(-needed * self._most // num_samples)
        grown = np.empty(max(needed, min(expected, max(2 * needed, self._usual_bytes))), np.uint8)
        grown[:used] = self._data[:used]
        self._data = grown

    def payloads(self) -> Payloads:
        """All that were added, in that order, as views of what they were put into."""
        n = self._num_samples
        offsets = self._offsets[: n + 1]
        size = next(iter(self._sizes)) if len(self._sizes) == 1 else None
        return Payloads(self._keys[:n], self._labels[:n], self._data[: offsets[-1]], offsets, size)


def _ends(lengths: Int64Array) -> Int64Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
