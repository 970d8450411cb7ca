"""The cache as one batch uses it that a sampler has decided. In workers only: imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from modyn.cache.keys import TierName
from modyn.cache.samplers.base import NO_SAMPLES
from modyn.cache.samplers.values import among
from modyn.cache.sharing.served_batch import SharedBatch
from modyn.cache.tier import BoolArray
from modyn.dataset.batch import NO_WORK, CacheWork, TierReport
from modyn.dataset.chunks import PreparedValues
from modyn.dataset.sample_cache import FoundSamples, SampleCache, TierInUse
from modyn.records import Int64Array


class BatchCache(SampleCache):
    """In one of the tiers, which the sampler manages, only its hits are looked up, and only what it admits is kept; others are used as always.

    Args: cache: the other tiers. name, tier: that of the sampler; None: it is away.
    """

    def __init__(self, cache: SampleCache, name: TierName, tier: TierInUse | None, batch: SharedBatch) -> None:
        super().__init__(cache.tiers)
        self._name, self._tier = name, tier
        self._hits, self._wanted = batch.keys[batch.hits], np.concatenate([batch.keys[batch.admitted], batch.refilled])
        # Lists, which `without` shares.
        self._kept: list[Int64Array] = []
        self._lost: list[Int64Array] = []
        self._refilled = batch.refilled
        self._work = [NO_WORK]
        if tier is not None:
            tier.drop(batch.evicted)
            self._work.append(CacheWork(evicted=len(batch.evicted)))

    @property
    def report(self) -> TierReport:
        """What has become of the batch in the tier of the sampler."""
        return TierReport(*(np.unique(np.concatenate([NO_SAMPLES, *keys])) for keys in (self._kept, self._lost)))

    @property
    def work(self) -> CacheWork:
        """As `SampleCache.work`: with what was prepared beside the batch."""
        return reduce(CacheWork.plus, self._work)

    def find(self, keys: Int64Array, needed: BoolArray | None = None) -> FoundSamples:
        """As `SampleCache.find`. Samples beside the batch are counted: what is found of them need not be decoded again."""
        found = super().find(keys, needed)
        if len(keys) and len(self._refilled) and among(keys, self._refilled).all():
            num_cached, num = found.prepared.counts(len(found.encoded)), len(keys)
            self._work.append(
                CacheWork(num - sum(num_cached), num - num_cached.decoded - num_cached.augmented, num - num_cached.augmented)
            )
        return found

    def prepared(self, keys: Int64Array) -> PreparedValues:
        """As `SampleCache.prepared`, with the hits of the sampler."""
        nothing: list[Any] = [None] * len(keys)
        rows = np.flatnonzero(among(keys, self._hits))
        managed = nothing
        if self._tier is not None:
            managed = _placed(self._tier.get(keys[rows]), rows, len(keys))
            self._lost.append(keys[rows][[managed[row] is None for row in rows.tolist()]])
        if self._name == "decoded":
            return PreparedValues(nothing, managed)
        rest = np.flatnonzero([value is None for value in managed])
        return PreparedValues(managed, _placed(super().prepared(keys[rest]).decoded, rest, len(keys)))

    def holds(self, keys: Int64Array) -> BoolArray:
        """As `SampleCache.holds`."""
        held = super().holds(keys)
        if self._tier is not None:
            rows = np.flatnonzero(~held & among(keys, self._hits))
            held[rows] = self._tier.holds(keys[rows])
        return held

    def keep(self, tier: TierName, keys: Int64Array, values: Sequence[Any]) -> None:
        """As `SampleCache.keep`; in the tier of the sampler what it admits."""
        if tier != self._name:
            super().keep(tier, keys, values)
            return
        rows = np.flatnonzero(among(keys, self._wanted))
        if len(rows) and self._tier is not None:
            self._kept.append(self._tier.put(keys[rows], [values[row] for row in rows.tolist()]))


def _placed(values: Sequence[Any], rows: Int64Array, num_rows: int) -> list[Any]:
    """A list of so many, with the values at `rows` and None elsewhere."""
    placed: list[Any] = [None] * num_rows
    for row, value in zip(rows.tolist(), values, strict=True):
        placed[row] = value
    return placed
