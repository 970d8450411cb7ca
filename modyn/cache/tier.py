"""What a tier of the cache offers, wherever its samples lie: many samples are read, kept and dropped at once, within a budget of bytes.

A cache is allowed to lose: what was kept may be gone at the next call, and no failure of what holds it is raised by `get`, `put` and `drop`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from modyn.errors import ConfigError, ConflictError
from modyn.records import BoolArray, Int64Array

Buffer = bytes | bytearray | memoryview
"""The bytes of one sample, whatever form it is in. Memoryviews are contiguous, of single bytes."""


class PartedBuffer:
    """The bytes of one sample in several pieces of memory, which others own: a tier writes them without putting them together. What has no room is
    only measured: the pieces are made when they are asked for."""

    __slots__ = ("_make", "_num_bytes")

    def __init__(self, num_bytes: int, make: Callable[[], Sequence[Buffer]]) -> None:
        """Args: make: returns the pieces, of `num_bytes` together. Their memory must not change until the buffer is written."""
        self._num_bytes, self._make = num_bytes, make

    def __len__(self) -> int:
        return self._num_bytes

    def __bytes__(self) -> bytes:
        return b"".join(self.parts())

    def parts(self) -> Sequence[Buffer]:
        """Make the pieces, in turn; none is empty."""
        return self._make()


WritableBuffer = Buffer | PartedBuffer


def parts_of(buffer: WritableBuffer) -> Sequence[Buffer]:
    """Return the pieces of a buffer, in turn."""
    return buffer.parts() if isinstance(buffer, PartedBuffer) else [buffer]


StoreName = Literal["memory", "redis"]

IDLE_S: Final = 3600
"""Seconds after which samples of a namespace that nothing reads or keeps any more may be dropped."""
IN_USE_S: Final = 10
"""Seconds after its last use for which the budget of a tier cannot be changed. An owner that was away for longer, and finds another budget, keeps
nothing more."""


@dataclass(frozen=True, slots=True)
class TierPlace:
    """Which tier of which samples: what all processes that share it agree on."""

    name: str
    """encoded, decoded or augmented: the tier, whose budget all its namespaces share."""
    namespace: bytes
    """Of the samples, by `keys.namespace`: samples of other namespaces are not found."""
    budget_bytes: int
    """Of all samples of the tier, in all namespaces, each counted by `CacheTier.charge`."""

    def __post_init__(self) -> None:
        if not self.name.isascii() or not self.name.isidentifier():
            raise ConfigError(f"{self.name!r} is no name of a tier: write letters a to z, digits and `_`")
        if self.budget_bytes < 0:
            raise ConfigError(f"the tier '{self.name}' has a budget of {self.budget_bytes:,} bytes; give at least 0")

    def conflict(self, where: str, other_budget_bytes: int) -> ConflictError:
        """The error of a second owner with another budget. Args: where: what holds the tier, without a password."""
        return ConflictError(
            f"the tier '{self.name}' in {where} has a budget of {other_budget_bytes:,} bytes, and this one wants {self.budget_bytes:,}: "
            "give both the same size and split, or wait until the other has ended"
        )


@dataclass(frozen=True, slots=True)
class TierUsage:
    """How full a tier is, known without looking at its samples, and what this object was asked for."""

    is_reachable: bool
    """False: what holds it is away, and bytes and samples are 0."""
    used_bytes: int
    """By all namespaces of the tier, each sample counted by `CacheTier.charge`."""
    num_samples: int
    """Of the own namespace."""
    hits: int
    """Samples that `get` of this object has found."""
    misses: int
    not_kept: int
    """Samples that `put` of this object has not kept."""


@dataclass(frozen=True, slots=True)
class StoredTier:
    """What a store holds of a tier, of all processes that keep samples there."""

    name: str
    budget_bytes: int
    used_bytes: int
    """Each sample counted by `CacheTier.charge`."""
    num_samples: int
    num_namespaces: int
    """Datasets, each as one kind of code decodes it, that have samples there."""
    num_evicted: int = 0
    """Samples that were dropped since the tier was made or cleared: by a sampler, with a namespace that nothing asked for any more, or to divide the
    store anew. What a process that was killed dropped last may be missing."""
    evicted_bytes: int = 0
    """That they used."""


class CacheTier(Protocol):
    """A tier for one namespace. For any thread; others than `open` raise nothing of what holds it: they find and keep nothing while it is away."""

    def charge(self, num_bytes: int) -> int:
        """Return the part of the budget that a buffer of so many bytes takes."""

    def open(self) -> None:
        """Make it ready. Raises: ConflictError: another owner has given it another budget. ConfigError: it cannot have this budget here."""

    def get(self, keys: Int64Array) -> list[Buffer | None]:
        """Look samples up. Args: keys: int64 (n,), of samples. Returns: n buffers; None: it is not there."""

    def holds(self, keys: Int64Array) -> BoolArray:
        """Look up which samples are there, without counting that. Args: keys: int64 (n,). Returns: bool (n,)."""

    def put(self, keys: Int64Array, buffers: Sequence[WritableBuffer]) -> BoolArray:
        """Keep samples, in turn, as far as the budget allows, each in the place of the one that had its key.

        Args: keys: int64 (n,). buffers: n. Returns: bool (n,): which were kept. Where a sample was not, the earlier one is left.
        """

    def drop(self, keys: Int64Array) -> bool:
        """Evict samples, as far as they are there. Args: keys: int64 (n,). Returns: whether it is done: False leaves any of them."""

    def take_not_asked(self) -> int:
        """Count the samples that `get` was asked for since the last call and did not look up, since what holds them was slow or away just now."""

    def usage(self) -> TierUsage:
        """Count what is kept, and what was asked for."""

    def stored(self) -> StoredTier | None:
        """Count what is kept in all namespaces. None: nothing has a budget there, or what holds it is away."""

    def clear(self) -> None:
        """Forget all samples of the tier, in all namespaces, its budget and what was evicted: the next owner may give another budget."""

    def close(self) -> None:
        """Give up connections. What is kept stays."""


class TierCounts:
    """Counts what a tier was asked for, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Guards the sums: several threads read at once.
        self._hits = self._misses = self._not_kept = 0

    def found(self, buffers: Sequence[Buffer | None]) -> None:
        """Count an answer of `get`."""
        missing = buffers.count(None)
        with self._lock:
            self._hits += len(buffers) - missing
            self._misses += missing

    def kept(self, kept: BoolArray) -> None:
        """Count an answer of `put`."""
        with self._lock:
            self._not_kept += len(kept) - int(kept.sum())

    def usage(self, is_reachable: bool, used_bytes: int, num_samples: int) -> TierUsage:
        """Return the counts, beside what is kept."""
        with self._lock:
            return TierUsage(is_reachable, used_bytes, num_samples, self._hits, self._misses, self._not_kept)
