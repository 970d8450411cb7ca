"""The cache as a process that reads samples uses it: tiers of one dataset, how values are found in them and kept. In workers only: imports torch.

It may find nothing and keep nothing; then samples are read and decoded as without it.
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
from modyn.cache.tier import CacheTier, PartedBuffer, TierPlace
from modyn.dataset.batch import NO_WORK, CacheWork
from modyn.dataset.chunks import GatheredSamples, PreparedValues, fill_in
from modyn.records import BoolArray, Float32Array, Int64Array
from modyn.rpc.logs import get_logger
from modyn.storage.model.samples import Payloads, UInt8Array

FULL_S: Final = 1.0
"""Seconds for which a tier that has not kept half of what it was given is given nothing: encoding what does not fit costs time."""
RETRIED: Final = 1024
"""The number of samples that could not be dropped and are tried again with a later drop."""


@dataclass(frozen=True, slots=True, eq=False)
class FoundSamples:
    """What a cache holds of n samples."""

    prepared: PreparedValues
    encoded: dict[int, UInt8Array]
    """By row: payloads of those that are not there prepared, and whose bytes are needed."""

    def missing(self, needed: BoolArray) -> Int64Array:
        """Those of the rows that are `needed`, bool (n,), which are in no tier: int64 (m,), ascending."""
        rows = np.flatnonzero(needed & self.prepared.missing)
        return rows[[row not in self.encoded for row in rows.tolist()]] if self.encoded else rows

    def gathered(self, payloads: Payloads, weights: Float32Array) -> GatheredSamples:
        """The samples of a batch, with what was found. Args: payloads: without bytes where it was found."""
        is_held = np.zeros(len(payloads), np.bool_)
        is_held[list(self.encoded)] = True
        counts = self.prepared.counts(len(self.encoded))
        return GatheredSamples(fill_in(payloads, self.encoded), weights, self.prepared, counts, is_held=is_held)


class SampleCache:
    """The open tiers of one dataset. For any thread."""

    def __init__(self, tiers: Mapping[TierName, TierInUse]) -> None:
        self._tiers = dict(tiers)

    def find(self, keys: Int64Array, needed: BoolArray | None = None) -> FoundSamples:
        """Look samples up. Args: keys: int64 (n,). needed: bool (n,), those whose payloads are not there by other means; None: all."""
        prepared, encoded = self.prepared(keys), dict[int, UInt8Array]()
        if "encoded" in self._tiers:
            rows = np.flatnonzero(prepared.missing if needed is None else prepared.missing & needed)
            found = zip(rows.tolist(), self._tiers["encoded"].get(keys[rows]), strict=True)
            encoded = {row: value for row, value in found if value is not None}
        return FoundSamples(prepared, encoded)

    def prepared(self, keys: Int64Array) -> PreparedValues:
        """Look up values that need not be decoded. Args: keys: int64 (n,)."""
        nothing = [None] * len(keys)
        return PreparedValues(nothing, self._tiers["decoded"].get(keys) if "decoded" in self._tiers else nothing)

    def holds(self, keys: Int64Array) -> BoolArray:
        """Which samples are in any tier now, without reading them. Args: keys: int64 (n,)."""
        held = np.zeros(len(keys), np.bool_)
        for tier in self._tiers.values():
            held[~held] = tier.holds(keys[~held])
        return held

    def keep(self, tier: TierName, keys: Int64Array, values: Sequence[Any]) -> Int64Array:
        """Keep samples in a tier, if there is one and as far as it has room. Args: keys: int64 (n,). values: n. Returns: keys of those that were
        kept."""
        return self._tiers[tier].keep(keys, values) if tier in self._tiers and len(keys) else keys[:0]

    def keep_payloads(self, samples: GatheredSamples, decoded: Int64Array) -> None:
        """Keep samples as they are stored, if there is a tier for these: those of a batch that were decoded, and of which no other tier holds what
        was made of them. A sample that moves to the tier of decoded ones leaves this one: held twice, it would serve no more than once.

        Args: decoded: keys of those that were just kept decoded.
        """
        tier = self._tiers.get("encoded")
        if tier is None or samples.is_held is None or samples.prepared is None:
            return
        keys = samples.payloads.keys
        is_new = samples.prepared.missing
        moved = among(keys, decoded) & is_new
        tier.drop(keys[moved & samples.is_held])
        rows = np.flatnonzero(is_new & ~moved & ~samples.is_held)
        if len(rows) and tier.has_room:
            if "decoded" in self._tiers:
                rows = rows[~self._tiers["decoded"].holds(keys[rows])]  # Others may have kept them there meanwhile.
            tier.keep(keys[rows], [np.frombuffer(samples.payloads.payload(row), np.uint8) for row in rows.tolist()])

    def without(self, tier: TierName) -> SampleCache:
        """The same without a tier."""
        same = copy(self)
        same._tiers = {name: used for name, used in self._tiers.items() if name != tier}
        return same

    @property
    def work(self) -> CacheWork:
        """What was done for the cache only, since this was asked last."""
        not_asked = sum(tier.take_not_asked() for tier in self._tiers.values())
        return CacheWork(not_asked=not_asked) if not_asked else NO_WORK

    @property
    def tiers(self) -> Mapping[TierName, TierInUse]:
        """The open tiers."""
        return self._tiers

    def close(self) -> None:
        """Give up connections. What is kept stays."""
        for tier in self._tiers.values():
            tier.close()


class TierInUse:
    """One tier, which keeps values. For any thread."""

    def __init__(
        self, place: TierPlace, tier: CacheTier, codec: SampleCodec, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place, self._tier, self._codec, self._clock = place, tier, codec, clock
        self._log = get_logger("cache").bind(tier=place.name)
        # Threads may overwrite each other's: some samples more or fewer are kept.
        self._full_until = -np.inf
        self._undropped = dict[int, None]()
        """Keys that the tier could not drop, the oldest first, for later drops: nothing is served of them, but they take room."""
        self._undropped_lock = threading.Lock()
        self._is_told = self._has_refused = False

    def get(self, keys: Int64Array, stamps: Int64Array | None = None) -> list[Any]:
        """Look up values of samples.

        Args: keys: int64 (n,). stamps: int64 (n,), that the values were put with; None: any value of the sample will do, and none has a stamp.
        Returns: n values; None: it is not there, damaged, or another one.
        """
        identities = self._identities(keys, stamps)
        return [self._codec.decode(*found) for found in zip(self._tier.get(keys), identities, strict=True)]

    def holds(self, keys: Int64Array) -> BoolArray:
        """As `CacheTier.holds`."""
        return self._tier.holds(keys)

    @property
    def has_room(self) -> bool:
        """False: it has just been full."""
        return self._clock() >= self._full_until

    def keep(self, keys: Int64Array, values: Sequence[Any]) -> Int64Array:
        """Keep those of the values that can be kept, unless the tier has just been full. Returns their keys."""
        if not self.has_room:
            return keys[:0]
        kept = self.put(keys, values)
        if 2 * len(kept) < len(keys):
            self._full_until = self._clock() + FULL_S
        return kept

    def put(self, keys: Int64Array, values: Sequence[Any], stamps: Int64Array | None = None) -> Int64Array:
        """Keep those of the values that can be kept. Args: stamps: as of `get`. Returns their keys."""
        identities = self._identities(keys, stamps)
        encoded = {
            row: buffer
            for row, (key, value, identity) in enumerate(zip(keys.tolist(), values, identities, strict=True))
            if (buffer := self._encoded(key, value, identity)) is not None
        }
        buffers, rows = list(encoded.values()), np.array(list(encoded), np.int64)
        kept = self._tier.put(keys[rows], buffers) if encoded else np.empty(0, np.bool_)
        size = sum(map(self._tier.charge, map(len, buffers)))
        if size > self._place.budget_bytes and not self._is_told:
            self._is_told = True
            reason = f"{len(keys)} samples take {size:,} bytes, more than all of the tier: give the cache a larger size"
            self._log.warning("cache_is_smaller_than_a_batch", budget_bytes=self._place.budget_bytes, reason=reason)
        self.forget_drops(keys[rows][kept])
        return keys[rows][kept]

    def drop(self, keys: Int64Array) -> None:
        """Evict samples. What the tier cannot drop now, since others hold it or it is away, is dropped with later calls, `RETRIED` with each."""
        with self._undropped_lock:
            wanted = {*islice(self._undropped, RETRIED), *keys.tolist()}
        if not wanted:
            return
        if self._tier.drop(np.array(sorted(wanted), np.int64)):
            self.forget_drops(wanted)
        else:
            with self._undropped_lock:
                self._undropped.update(dict.fromkeys(keys.tolist()))

    def forget_drops(self, keys: Int64Array | Iterable[int]) -> None:
        """Samples that are not to be dropped later: they are dropped, or have a new value."""
        with self._undropped_lock:
            for key in keys.tolist() if isinstance(keys, np.ndarray) else keys:
                self._undropped.pop(key, None)

    def take_not_asked(self) -> int:
        """See `CacheTier.take_not_asked`."""
        return self._tier.take_not_asked()

    def room(self, values: Sequence[Any]) -> int:
        """How many values of the mean size of these the tier has room for; 0: none of them can be kept."""
        sizes = [self._tier.charge(len(buffer)) for value in values if (buffer := self._encoded(-1, value, b"")) is not None]
        return self._place.budget_bytes * len(sizes) // sum(sizes) if sizes else 0

    def close(self) -> None:
        """As `CacheTier.close`."""
        self._tier.close()

    def _identities(self, keys: Int64Array, stamps: Int64Array | None) -> list[bytes]:
        stamps = np.zeros_like(keys) if stamps is None else stamps
        return [value_identity(self._place.namespace, *pair) for pair in zip(keys.tolist(), stamps.tolist(), strict=True)]

    def _encoded(self, key: int, value: object, identity: bytes) -> PartedBuffer | None:
        """A value as it is kept, sharing its memory; None: it cannot be. What is wrong with it is for the pipeline to find, as without a cache."""
        try:
            return self._codec.encode_parts(value, identity)
        except Exception as error:  # noqa: BLE001  (values are objects of the user's libraries)
            if not self._has_refused:
                self._has_refused = True
                self._log.warning("cache_cannot_keep_sample", key=key, reason=str(error))
            return None
