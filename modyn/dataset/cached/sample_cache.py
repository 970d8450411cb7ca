"""The cache of a process that reads samples: it finds values in the tiers of one dataset, and stores values there. Only workers import this module,
because it imports torch.

A cache may find nothing and store nothing; then samples are read and decoded as without a cache.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from modyn.cache.keys import TierName, value_identity
from modyn.cache.sample_codec import SampleCodec
from modyn.cache.sample_numbers import among
from modyn.cache.tiers.tier import CacheTier, PartedBuffer, TierPlace
from modyn.dataset.batch import NO_WORK, CacheWork
from modyn.dataset.chunks import GatheredSamples, PreparedValues, fill_in
from modyn.records import BoolArray, Float32Array, Int64Array
from modyn.rpc.logs import get_logger
from modyn.storage.model.samples import Payloads, UInt8Array

FULL_S: Final = 1.0
"""Pause in seconds after a tier stored less than half of the given values, because encoding values that do not fit wastes time."""
RETRIED: Final = 1024
"""Largest number of samples that one drop tries again, because earlier drops of these samples failed."""


@dataclass(frozen=True, slots=True, eq=False)
class FoundSamples:
    """Result of looking up n samples in a cache."""

    prepared: PreparedValues
    encoded: dict[int, UInt8Array]
    """Payloads by row, for samples that no tier has prepared and whose bytes are needed."""

    def missing(self, needed: BoolArray) -> Int64Array:
        """Return the rows that are `needed`, bool (n,), and in no tier: int64 (m,), ascending."""
        rows = np.flatnonzero(needed & self.prepared.missing)
        return rows[[row not in self.encoded for row in rows.tolist()]] if self.encoded else rows

    def gathered(self, payloads: Payloads, weights: Float32Array) -> GatheredSamples:
        """Return the samples of a batch with the cached values. Args: payloads: of the samples; a sample with a cached value has no bytes."""
        is_held = np.zeros(len(payloads), np.bool_)
        is_held[list(self.encoded)] = True
        counts = self.prepared.counts(len(self.encoded))
        return GatheredSamples(fill_in(payloads, self.encoded), weights, self.prepared, counts, is_held=is_held)


class SampleCache:
    """The open tiers of one dataset. Thread-safe."""

    def __init__(self, tiers: Mapping[TierName, TierInUse]) -> None:
        self._tiers = dict(tiers)

    def find(self, keys: Int64Array, needed: BoolArray | None = None) -> FoundSamples:
        """Look samples up. Args: keys: int64 (n,). needed: bool (n,), whether a sample's payload is still missing; None: the payloads of all samples
        are missing.
        """
        prepared, encoded = self.prepared(keys), dict[int, UInt8Array]()
        if "encoded" in self._tiers:
            rows = np.flatnonzero(prepared.missing if needed is None else prepared.missing & needed)
            found = zip(rows.tolist(), self._tiers["encoded"].get(keys[rows]), strict=True)
            encoded = {row: value for row, value in found if value is not None}
        return FoundSamples(prepared, encoded)

    def prepared(self, keys: Int64Array) -> PreparedValues:
        """Look up decoded and augmented values. Args: keys: int64 (n,)."""
        nothing = [None] * len(keys)
        return PreparedValues(nothing, self._tiers["decoded"].get(keys) if "decoded" in self._tiers else nothing)

    def holds(self, keys: Int64Array) -> BoolArray:
        """Look up which samples are in any tier, without reading them. Args: keys: int64 (n,)."""
        held = np.zeros(len(keys), np.bool_)
        for tier in self._tiers.values():
            held[~held] = tier.holds(keys[~held])
        return held

    def keep(self, tier: TierName, keys: Int64Array, values: Sequence[Any]) -> Int64Array:
        """Store samples in a tier, if the tier exists and has room. Args: keys: int64 (n,). values: n values. Returns: keys of the stored samples."""
        return self._tiers[tier].keep(keys, values) if tier in self._tiers and len(keys) else keys[:0]

    def keep_payloads(self, samples: GatheredSamples, decoded: Int64Array) -> None:
        """Store payloads in the tier of encoded samples, if this tier exists. Only samples that this batch decoded, and that no other tier contains,
        are stored. A sample that moves to the tier of decoded samples leaves this tier, because a second copy would be of no use.

        Args: decoded: keys of samples that were just stored decoded.
        """
        tier = self._tiers.get("encoded")
        if tier is None or samples.is_held is None or samples.prepared is None:
            return
        keys = samples.payloads.keys
        is_new = samples.prepared.missing
        # Samples that are now in the tier of decoded samples.
        moved = among(keys, decoded) & is_new
        tier.drop(keys[moved & samples.is_held])
        rows = np.flatnonzero(is_new & ~moved & ~samples.is_held)
        if len(rows) and tier.has_room:
            if "decoded" in self._tiers:
                rows = rows[~self._tiers["decoded"].holds(keys[rows])]  # Other processes may have stored them in the meantime.
            tier.keep(keys[rows], [np.frombuffer(samples.payloads.payload(row), np.uint8) for row in rows.tolist()])

    def without(self, tier: TierName) -> SampleCache:
        """Return the cache without one tier."""
        same = copy(self)
        same._tiers = {name: used for name, used in self._tiers.items() if name != tier}
        return same

    @property
    def work(self) -> CacheWork:
        """Work that only the cache needed, since the last call."""
        not_asked = sum(tier.take_not_asked() for tier in self._tiers.values())
        return CacheWork(not_asked=not_asked) if not_asked else NO_WORK

    @property
    def tiers(self) -> Mapping[TierName, TierInUse]:
        """The open tiers."""
        return self._tiers

    def close(self) -> None:
        """Close the connections. Stored values stay."""
        for tier in self._tiers.values():
            tier.close()


class TierInUse:
    """One tier, which stores values. Thread-safe."""

    def __init__(
        self, place: TierPlace, tier: CacheTier, codec: SampleCodec, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place, self._tier, self._codec, self._clock = place, tier, codec, clock
        self._log = get_logger("cache").bind(tier=place.name)
        # Threads may overwrite this value; then a few samples more or fewer are stored.
        self._full_until = -np.inf
        self._undropped = dict[int, None]()
        """Keys that the tier could not drop, the oldest first. Later drops try these keys again, because their values are not served, but take room.
        """
        # Guards `_undropped`, which several threads of a process read and change.
        self._undropped_lock = threading.Lock()
        self._has_warned = self._has_refused = False

    def get(self, keys: Int64Array, stamps: Int64Array | None = None) -> list[Any]:
        """Look up values of samples.

        Args: keys: int64 (n,). stamps: int64 (n,), the stamps of the wanted values; None: values of this tier have no stamps. Returns: n values; None
        for a value that is absent, damaged, or has another stamp.
        """
        identities = self._identities(keys, stamps)
        return [self._codec.decode(*found) for found in zip(self._tier.get(keys), identities, strict=True)]

    def holds(self, keys: Int64Array) -> BoolArray:
        """See `CacheTier.holds`."""
        return self._tier.holds(keys)

    @property
    def has_room(self) -> bool:
        """Whether the tier has room. For FULL_S seconds after the tier was full, the result is False."""
        return self._clock() >= self._full_until

    def keep(self, keys: Int64Array, values: Sequence[Any]) -> Int64Array:
        """Store values, except those that cannot be encoded or do not fit. If the tier was full less than FULL_S seconds ago, store no values.
        Returns the keys of the stored values.
        """
        if not self.has_room:
            return keys[:0]
        kept = self.put(keys, values)
        if 2 * len(kept) < len(keys):
            self._full_until = self._clock() + FULL_S
        return kept

    def put(self, keys: Int64Array, values: Sequence[Any], stamps: Int64Array | None = None) -> Int64Array:
        """Store values, except those that cannot be encoded or do not fit. Args: stamps: see `get`. Returns the keys of the stored values."""
        identities = self._identities(keys, stamps)
        encoded = {
            row: buffer
            for row, (key, value, identity) in enumerate(zip(keys.tolist(), values, identities, strict=True))
            if (buffer := self._encoded(key, value, identity)) is not None
        }
        buffers, rows = list(encoded.values()), np.array(list(encoded), np.int64)
        kept = self._tier.put(keys[rows], buffers) if encoded else np.empty(0, np.bool_)
        size = sum(map(self._tier.charge, map(len, buffers)))
        if size > self._place.budget_bytes and not self._has_warned:
            self._has_warned = True
            reason = f"{len(keys)} samples take {size:,} bytes, more than all of the tier: give the cache a larger size"
            self._log.warning("cache_is_smaller_than_a_batch", budget_bytes=self._place.budget_bytes, reason=reason)
        self.forget_drops(keys[rows][kept])
        return keys[rows][kept]

    def drop(self, keys: Int64Array) -> None:
        """Evict samples. While the tier is locked or unavailable, it cannot drop samples. Later calls try again, with up to `RETRIED` samples."""
        with self._undropped_lock:
            wanted = {*islice(self._undropped, RETRIED), *keys.tolist()}
        if not wanted:
            return
        # The lock is not held during the call to the tier, which may take long.
        if self._tier.drop(np.array(sorted(wanted), np.int64)):
            self.forget_drops(wanted)
        else:
            with self._undropped_lock:
                self._undropped.update(dict.fromkeys(keys.tolist()))

    def forget_drops(self, keys: Int64Array | Iterable[int]) -> None:
        """Do not drop these samples later, because they are already dropped, or have a new value."""
        with self._undropped_lock:
            for key in keys.tolist() if isinstance(keys, np.ndarray) else keys:
                self._undropped.pop(key, None)

    def take_not_asked(self) -> int:
        """See `CacheTier.take_not_asked`."""
        return self._tier.take_not_asked()

    def room(self, values: Sequence[Any]) -> int:
        """Return the number of values of the same mean size that fit in the tier; 0: no value can be stored."""
        sizes = [self._tier.charge(len(buffer)) for value in values if (buffer := self._encoded(-1, value, b"")) is not None]
        return self._place.budget_bytes * len(sizes) // sum(sizes) if sizes else 0

    def close(self) -> None:
        """See `CacheTier.close`."""
        self._tier.close()

    def _identities(self, keys: Int64Array, stamps: Int64Array | None) -> list[bytes]:
        stamps = np.zeros_like(keys) if stamps is None else stamps
        # The identity covers the namespace, the key and the stamp, so that a value of another sample is detected.
        return [value_identity(self._place.namespace, *pair) for pair in zip(keys.tolist(), stamps.tolist(), strict=True)]

    def _encoded(self, key: int, value: object, identity: bytes) -> PartedBuffer | None:
        """Encode a value without a copy; None: the value cannot be encoded. The pipeline reports the error of such a value, as without a cache."""
        try:
            return self._codec.encode_parts(value, identity)
        except Exception as error:  # noqa: BLE001  (values are objects of the user's libraries)
            if not self._has_refused:
                self._has_refused = True
                self._log.warning("cache_cannot_keep_sample", key=key, reason=str(error))
            return None
