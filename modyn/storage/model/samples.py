"""Samples that pass between the packages of storage: positions in indexed files, and payloads in memory.

Imports nothing but NumPy and `modyn.records`, because every training worker loads this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from modyn.errors import DataError
from modyn.records import Int64Array, LabelArray
from modyn.storage.model.schema import DatasetSchema

UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]
OnMissing = Literal["raise", "skip"]
"""How a read handles deleted keys. A key that never existed always raises an error."""


class BadRow(NamedTuple):
    """An unusable row. offset: its first byte in the file. is_early: the only problem of the row is a time too far in the future."""

    offset: int
    reason: str
    is_early: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class IndexedSamples:
    """Positions of consecutive samples of one file. Arrays have shape (n,). n is 0 only if the chunk reports unusable or incomplete rows.

    offsets: int64, bytes from the start of the file; numbers of rows if the format has row groups.
    lengths: int64, bytes of the payloads; one int if all payloads have the same length.
    labels: int64 or float64. timestamps: int64 seconds; one int if all times are equal.
    end: number of bytes of the file that are indexed after this chunk. skipped: unusable rows between the previous chunk and `end`, in order.
    unended: reason why the only row of this chunk, a sample or a skipped row, may be incomplete; empty: the row is complete. A chunk with `unended`
    but without a row reports an incomplete row that cannot be used, and is the last chunk. If the incomplete row may be a sign that the whole file is
    read wrongly, the first chunk reports it too.
    schema: schema of the dataset, updated by this file; None: the format has no schema.
    typed_times: whether the types in the file define the unit of the times; otherwise the times are digits, which may be ambiguous.
    classes: if labels are names of classes, the names, and `labels` are positions in it; empty: `labels` are the labels.
    """

    offsets: Int64Array
    lengths: Int64Array | int
    labels: LabelArray
    timestamps: Int64Array | int
    end: int
    skipped: Sequence[BadRow] = ()
    unended: str = ""
    schema: DatasetSchema | None = None
    typed_times: bool = False
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True, eq=False)
class IndexedFiles:
    """Files of one sample each, in the requested order; the payload of file i is its bytes [0, lengths[i]). Arrays have shape (n,).

    lengths: int64. labels: int64 or float64. timestamps: int64 seconds.
    problems: position → reason why the file at this position cannot be used. In the arrays, the values at this position have no meaning. mtimes_ns:
    int64, modification times of the files when they were read; None if not known.
    """

    lengths: Int64Array
    labels: LabelArray
    timestamps: Int64Array
    problems: Mapping[int, DataError] = field(default_factory=dict)
    mtimes_ns: Int64Array | None = None

    def good(self) -> Int64Array:
        """Return the positions of the files without a problem, ascending: int64 (m,)."""
        return np.delete(np.arange(len(self.lengths), dtype=np.int64), np.fromiter(self.problems, np.int64, len(self.problems)))


@dataclass(frozen=True, slots=True, eq=False)
class Payloads:
    """Samples with their bytes: sample i is `data[offsets[i]:offsets[i + 1]]`. The arrays may be read-only views of a received buffer.

    keys: int64 (n,). labels: int64 or float64 (n,). data: uint8. offsets: int64 (n + 1,) into data.
    record_size: bytes of each sample if all are known to have the same number.
    """

    keys: Int64Array
    labels: LabelArray
    data: UInt8Array
    offsets: Int64Array
    record_size: int | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def common_size(self) -> int | None:
        """Size in bytes of every sample; None if the sizes differ or there is no sample. If `record_size` is not known, the size is computed."""
        return self.record_size if self.record_size is not None else common_size(self.offsets)

    def without(self, key: int) -> tuple[Payloads, Int64Array]:
        """Return the samples without those of `key`, and the positions of the returned samples in this object, int64 (m,). The bytes are copied."""
        kept = np.flatnonzero(self.keys != key)
        parts = [self.data[self.offsets[i] : self.offsets[i + 1]] for i in kept.tolist()]
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(part) for part in parts], dtype=np.int64)])
        data = np.concatenate(parts) if parts else self.data[:0]
        return Payloads(self.keys[kept], self.labels[kept], data, bounds, self.record_size), kept

    def payload(self, i: int) -> memoryview:
        """Return the bytes of sample i, without a copy."""
        return self.data[self.offsets[i] : self.offsets[i + 1]].data


def common_size(offsets: Int64Array) -> int | None:
    """Return the length of every sample between `offsets`; None if the lengths differ or there are no samples.

    >>> common_size(np.array([0, 4, 8])), common_size(np.array([0, 4, 9])), common_size(np.array([0]))
    (4, None, None)
    """
    num_samples = len(offsets) - 1
    if num_samples < 1:
        return None
    size = int(offsets[1] - offsets[0])
    # The total length is compared first, because this comparison is fast and finds most differences.
    if offsets[-1] - offsets[0] != size * num_samples or (np.diff(offsets) != size).any():
        return None
    return size


class RecordReader(Protocol):
    """Reads the payloads of one dataset. Thread-safe; reads release the GIL."""

    def gather(self, file_ids: UInt32Array, offsets: Int64Array, lengths: Int64Array | int) -> tuple[UInt8Array, Int64Array]:
        """Read the bytes of n samples in the requested order, duplicates included.

        Args: file_ids, offsets, lengths: (n,), as in `IndexedSamples`; `lengths` may be one int.
        Returns: data, and bounds int64 (n + 1,): sample i is `data[bounds[i]:bounds[i + 1]]`.
        Raises: DataError: a sample cannot be read; the message names file and offset. FileChangedError: a file changed since it was indexed.
        """
