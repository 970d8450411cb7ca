"""Payloads put together and taken apart: rows of them, several answers in one buffer, and what a cache holds beside what was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from modyn._core import take
from modyn.records import Int64Array, LabelArray
from modyn.storage.model.samples import UInt8Array
from modyn.storage.payloads import Payloads


def select_payloads(payloads: Payloads, rows: Int64Array | slice) -> Payloads:
    """Samples `rows`: a slice (start, stop) as views, int64 (n,) as copies, in that order, duplicates allowed. Offsets begin with 0."""
    if isinstance(rows, slice):
        bounds = payloads.offsets[rows.start : rows.stop + 1]
        data, offsets = payloads.data[bounds[0] : bounds[-1]], bounds - bounds[0] if bounds[0] else bounds
        return Payloads(payloads.keys[rows], payloads.labels[rows], data, offsets, payloads.record_size)
    size = payloads.common_size
    if size:
        data, offsets = take(payloads.data[payloads.offsets[0] : payloads.offsets[-1]], size, rows)
    else:
        data, offsets = take(payloads.data, payloads.offsets, rows)
    return Payloads(payloads.keys[rows], payloads.labels[rows], data, offsets, size)


def concatenate_payloads(answers: Sequence[Payloads]) -> Payloads:
    """The samples of all answers, in order, in one buffer; a single one is not copied."""
    if len(answers) == 1:
        return answers[0]
    buffer = PayloadBuffer(sum(map(len, answers)), room=sum(int(answer.offsets[-1] - answer.offsets[0]) for answer in answers))
    for answer in answers:
        buffer.add(answer)
    return buffer.payloads()


def spread(read: Payloads, rows: Int64Array, keys: Int64Array, labels: LabelArray) -> Payloads:
    """The samples of `keys`, of which those at `rows` have the bytes of `read`, without copying these, and others none.

    Args: read: of m samples. rows: int64 (m,), ascending. keys, labels: (n,).
    """
    if len(rows) == len(keys):
        return read
    sizes = np.zeros(len(keys), np.int64)
    sizes[rows] = np.diff(read.offsets)
    return Payloads(keys, labels, read.data[read.offsets[0] : read.offsets[-1]], _offsets(sizes))


def fill_in(payloads: Payloads, parts: Mapping[int, UInt8Array]) -> Payloads:
    """The same samples, of which those at the rows of `parts`, which have no bytes, get these."""
    if not parts:
        return payloads
    sizes = np.diff(payloads.offsets)
    sizes[list(parts)] = [len(part) for part in parts.values()]
    offsets, data = _offsets(sizes), np.empty(int(sizes.sum()), np.uint8)
    for row in range(len(payloads)):
        data[offsets[row] : offsets[row + 1]] = parts[row] if row in parts else payloads.payload(row)
    return Payloads(payloads.keys, payloads.labels, data, offsets)


def _offsets(sizes: Int64Array) -> Int64Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


class PayloadBuffer:
    """One buffer for answers as they come, so that none of them waits in memory for the last.

    Args: most: samples at most. usual_bytes: of all of them, or more than that. room: bytes to allocate at once, where they are known.
    """

    def __init__(self, most: int, usual_bytes: int = 0, room: int = 0) -> None:
        self._most = most
        self._usual_bytes = usual_bytes
        self._num_samples = 0
        self._keys = np.empty(most, np.int64)
        self._labels: LabelArray = np.empty(0, np.int64)
        self._offsets = np.zeros(most + 1, np.int64)
        self._data = np.empty(room, np.uint8)
        self._sizes: set[int | None] = set()

    def add(self, answer: Payloads) -> None:
        """Copy the samples of `answer` behind those that the buffer holds."""
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
        """Make room for all samples if those to come are as large as those that have; but for more than `usual_bytes` only up to twice the
        bytes needed now, since one sample says little of the others."""
        expected = -(-needed * self._most // num_samples)
        grown = np.empty(max(needed, min(expected, max(2 * needed, self._usual_bytes))), np.uint8)
        grown[:used] = self._data[:used]
        self._data = grown

    def payloads(self) -> Payloads:
        """All samples that were added, in that order, as views of the buffer."""
        n = self._num_samples
        offsets = self._offsets[: n + 1]
        size = next(iter(self._sizes)) if len(self._sizes) == 1 else None
        return Payloads(self._keys[:n], self._labels[:n], self._data[: offsets[-1]], offsets, size)
