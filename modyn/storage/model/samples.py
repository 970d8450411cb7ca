"""Samples as they pass between the rooms of storage: as indexed in files, and as payloads in memory.

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
"""What a read does with keys that were deleted. Keys that never existed are an error in any case."""


class BadRow(NamedTuple):
    """A row that cannot be used, from byte `offset` on, and why. is_early: only because its time lies too far in the future."""

    offset: int
    reason: str
    is_early: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class IndexedSamples:
    """Positions of consecutive samples of one file. Arrays have shape (n,), n >= 1, or 0 where rows were skipped.

    offsets: int64, bytes from the start of the file; rows, if the format declares row groups.
    lengths: int64, bytes of the payloads; one int if all are equal.
    labels: int64 or float64. timestamps: int64 seconds; one int if all are equal.
    end: bytes of the file that are indexed once this chunk is.
    skipped: rows before `end`, and behind the chunk before this one, that cannot be used, in order.
    unended: why the one row of this chunk, a sample or a skipped one, does not end yet and may be continued; empty: it ends. A chunk of
    neither is a part of a row that cannot be taken as it is: the last chunk, and also the first one where the part may mean that all is read wrong.
    schema: of the dataset, with what is known of it by this file; None: the format has none.
    typed_times: times have their unit in the types of the file, and are no digits that may be read in another way.
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

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True, eq=False)
class IndexedFiles:
    """Files of one sample each, in the order asked; the payload of file i is its bytes [0, lengths[i]). Arrays have shape (n,).

    lengths: int64. labels: int64 or float64. timestamps: int64 seconds.
    problems: position -> why that file cannot be used; the other columns have no meaning at these positions.
    mtimes_ns: int64, modification times of the files when they were read; None if not known.
    """

    lengths: Int64Array
    labels: LabelArray
    timestamps: Int64Array
    problems: Mapping[int, DataError] = field(default_factory=dict)
    mtimes_ns: Int64Array | None = None

    def good(self) -> Int64Array:
        """Positions of the files without a problem, ascending: int64 (m,)."""
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
        """Bytes of every sample; None if they differ or there is none. Computed where `record_size` is not known."""
        return self.record_size if self.record_size is not None else common_size(self.offsets)

    def without(self, key: int) -> tuple[Payloads, Int64Array]:
        """The samples but those of `key`, their bytes copied to offsets from 0; and their positions here, int64 (m,)."""
        kept = np.flatnonzero(self.keys != key)
        parts = [self.data[self.offsets[i] : self.offsets[i + 1]] for i in kept.tolist()]
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(part) for part in parts], dtype=np.int64)])
        data = np.concatenate(parts) if parts else self.data[:0]
        return Payloads(self.keys[kept], self.labels[kept], data, bounds, self.record_size), kept

    def payload(self, i: int) -> memoryview:
        """The bytes of sample i, not copied."""
        return self.data[self.offsets[i] : self.offsets[i + 1]].data


def common_size(offsets: Int64Array) -> int | None:
    """The length of every sample between `offsets`, or None if they differ or there are none.

    >>> common_size(np.array([0, 4, 8])), common_size(np.array([0, 4, 9])), common_size(np.array([0]))
    (4, None, None)
    """
    num_samples = len(offsets) - 1
    if num_samples < 1:
        return None
    size = int(offsets[1] - offsets[0])
    # The ends are compared first: where lengths differ, the ends mostly show it.
    if offsets[-1] - offsets[0] != size * num_samples or (np.diff(offsets) != size).any():
        return None
    return size


class RecordReader(Protocol):
    """Reads the payloads of one dataset. Thread-safe; the GIL is released while it reads."""

    def gather(self, file_ids: UInt32Array, offsets: Int64Array, lengths: Int64Array | int) -> tuple[UInt8Array, Int64Array]:
        """Read the bytes of n samples in the order asked, duplicates included.

        Args: file_ids, offsets, lengths: (n,), as in `IndexedSamples`; `lengths` may be one int.
        Returns: data, and bounds int64 (n + 1,): sample i is `data[bounds[i]:bounds[i + 1]]`.
        Raises: DataError: something cannot be read; it names file and offset. FileChangedError: a file changed since it was indexed.
        """
