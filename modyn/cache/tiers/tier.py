"""Interface of a cache tier, the same for all stores that contain samples. A tier reads, keeps and drops many samples at once, within a budget.

A cache may lose samples: samples may be gone at the next call. `get`, `put` and `drop` raise no error if the store fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from modyn.errors import ConfigError, ConflictError
from modyn.records import BoolArray, Int64Array

Buffer = bytes | bytearray | memoryview
"""The bytes of one sample in any form. Memoryviews are contiguous, of single bytes."""


class PartedBuffer:
    """The bytes of one sample in several pieces of memory that other objects own. A tier writes the pieces without joining them. The pieces are made
    on demand, so no copy is made of a sample for which the tier has no room."""

    __slots__ = ("_make", "_num_bytes")

    def __init__(self, num_bytes: int, make: Callable[[], Sequence[Buffer]]) -> None:
        """Args: make: returns the pieces, together `num_bytes` bytes. The memory of the pieces must not change until the buffer is written."""
        self._num_bytes, self._make = num_bytes, make

    def __len__(self) -> int:
        return self._num_bytes

    def __bytes__(self) -> bytes:
        return b"".join(self.parts())

    def parts(self) -> Sequence[Buffer]:
        """Make the pieces in order. No piece is empty."""
        return self._make()


WritableBuffer = Buffer | PartedBuffer


def parts_of(buffer: WritableBuffer) -> Sequence[Buffer]:
    """Return the pieces of a buffer in order."""
    return buffer.parts() if isinstance(buffer, PartedBuffer) else [buffer]


StoreName = Literal["memory", "redis"]

IDLE_S: Final = 3600
"""Seconds without reads and writes after which the samples of a namespace may be dropped."""
IN_USE_S: Final = 10
"""Seconds after the last use of a tier during which its budget cannot change. An owner that pauses for longer and then finds another budget stores no
more samples."""


@dataclass(frozen=True, slots=True)
class TierPlace:
    """Settings of a tier and its samples. All processes that share the tier have the same settings."""

    name: str
    """Name of the tier: encoded, decoded or augmented. All namespaces of the tier share one budget."""
    namespace: bytes
    """Namespace of the samples, see `keys.namespace`. Samples of other namespaces are not found."""
    budget_bytes: int
    """Budget of all samples of the tier, in all namespaces, each counted by `CacheTier.charge`."""

    def __post_init__(self) -> None:
        if not self.name.isascii() or not self.name.isidentifier():
            raise ConfigError(f"{self.name!r} is not a name of a tier: write letters a to z, digits and `_`")
        if self.budget_bytes < 0:
            raise ConfigError(f"the tier '{self.name}' has a budget of {self.budget_bytes:,} bytes; give at least 0")

    def conflict(self, where: str, other_budget_bytes: int) -> ConflictError:
        """Return the error for a second owner with another budget. Args: where: name of the store, without a password."""
        return ConflictError(
            f"the tier '{self.name}' in {where} has a budget of {other_budget_bytes:,} bytes, and this one wants {self.budget_bytes:,}: "
            "give both the same size and split, or wait until the other has ended"
        )


@dataclass(frozen=True, slots=True)
class TierUsage:
    """Size of a tier, determined without reading samples, and counts of this object's calls."""

    is_reachable: bool
    """Whether the store is available. If not, bytes and samples are 0."""
    used_bytes: int
    """Bytes of all namespaces of the tier, each sample counted by `CacheTier.charge`."""
    num_samples: int
    """Samples of this object's namespace."""
    hits: int
    """Samples that `get` of this object has found."""
    misses: int
    not_kept: int
    """Samples that `put` of this object has not kept."""


@dataclass(frozen=True, slots=True)
class StoredTier:
    """Budget and size of a tier in a store, with the samples of all processes."""

    name: str
    budget_bytes: int
    used_bytes: int
    """Bytes of all samples, each counted by `CacheTier.charge`."""
    num_samples: int
    num_namespaces: int
    """Number of namespaces with samples. Each namespace belongs to a dataset and the code that decodes its samples."""
    num_evicted: int = 0
    """Number of samples that were dropped since the tier was made or cleared: by a sampler, because their namespace was not used, or because the
    store was divided again. The last drops of a killed process may be missing."""
    evicted_bytes: int = 0
    """Bytes of these samples."""


class CacheTier(Protocol):
    """A tier for one namespace. Thread-safe. Only `open` raises errors of the store. While the store is unavailable, other methods find and keep no
    samples."""

    def charge(self, num_bytes: int) -> int:
        """Return the part of the budget that a buffer of `num_bytes` takes."""

    def open(self) -> None:
        """Prepare the tier. Raises: ConflictError: another owner has set another budget for the tier. ConfigError: the store cannot provide this
        budget."""

    def get(self, keys: Int64Array) -> list[Buffer | None]:
        """Look up samples. Args: keys: int64 (n,), of samples. Returns: n buffers, None for each missing sample."""

    def holds(self, keys: Int64Array) -> BoolArray:
        """Return which samples exist, without counting hits. Args: keys: int64 (n,). Returns: bool (n,)."""

    def put(self, keys: Int64Array, buffers: Sequence[WritableBuffer]) -> BoolArray:
        """Store samples in order, as far as the budget allows. A sample replaces an earlier sample with the same key.

        Args: keys: int64 (n,). buffers: n.
        Returns: bool (n,): whether each sample was kept. If a sample was not kept, an earlier sample with the same key stays.
        """

    def drop(self, keys: Int64Array) -> bool:
        """Evict existing samples. Args: keys: int64 (n,). Returns: whether all of these samples are gone; False: some of them may remain."""

    def take_not_asked(self) -> int:
        """Return the number of samples that `get` has not looked up since the last call of this method, because the store was slow or unavailable."""

    def usage(self) -> TierUsage:
        """Return the size of the tier, and the counts of this object's calls."""

    def stored(self) -> StoredTier | None:
        """Return the budget and the counts of all namespaces. None: the tier has no budget, or the store is unavailable."""

    def clear(self) -> None:
        """Remove all samples of the tier in all namespaces, its budget and its counts of evictions. The next owner may set another budget."""

    def close(self) -> None:
        """Close connections. Samples are kept."""


class TierCounts:
    """Counts the calls of a tier. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Protects the sums, because several threads count at once.
        self._hits = self._misses = self._not_kept = 0

    def count_hits(self, buffers: Sequence[Buffer | None]) -> None:
        """Count the hits and misses of a result of `get`."""
        missing = buffers.count(None)
        with self._lock:
            self._hits += len(buffers) - missing
            self._misses += missing

    def count_not_kept(self, kept: BoolArray) -> None:
        """Count the samples that a call of `put` did not keep."""
        with self._lock:
            self._not_kept += len(kept) - int(kept.sum())

    def usage(self, is_reachable: bool, used_bytes: int, num_samples: int) -> TierUsage:
        """Return the counts and the given usage in one record."""
        with self._lock:
            return TierUsage(is_reachable, used_bytes, num_samples, self._hits, self._misses, self._not_kept)
