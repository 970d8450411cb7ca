"""The cache as one batch uses it that a sampler has decided. In workers only: imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from modyn.cache.keys import TierName
from modyn.cache.sample_numbers import NO_SAMPLES, among
from modyn.cache.sharing.served_batch import SharedBatch
from modyn.dataset.batch import NO_WORK, CacheWork, TierReport
from modyn.dataset.chunks import PreparedValues
from modyn.dataset.sample_cache import FoundSamples, SampleCache, TierInUse
from modyn.records import BoolArray, Int64Array


class BatchCache(SampleCache):
    """In one of the tiers, which the sampler manages, only its hits are looked up, and only what it admits is kept; others are used as always.

    Args: cache: the other tiers. name, tier: that of the sampler; None: it is away.
    """

    def __init__(self, cache: SampleCache, name: TierName, tier: TierInUse | None, batch: SharedBatch) -> None:
        super().__init__(cache.tiers)
        self._name, self._tier = name, tier
        self._batch = batch
        self._hits, self._wanted = batch.keys[batch.hits], batch.keys[batch.admitted]
        # Lists, which `without` shares.
        self._kept: list[Int64Array] = []
        self._lost: list[Int64Array] = []
        self._num_evicted = 0
        is_served = among(batch.evicted, self._hits)
        self._served_out = batch.evicted[is_served]
        if tier is not None:
            tier.forget_drops(self._hits)  # A sample that could not be dropped was filled again by another process.
            tier.drop(batch.evicted[~is_served])
            self._num_evicted = len(batch.evicted)

    def finish(self) -> TierReport:
        """Drop the hits that nothing is served any more, once the batch is made. Returns what has become of it in the tier of the sampler."""
        if self._tier is not None:
            self._tier.drop(self._served_out)
        return TierReport(*(np.unique(np.concatenate([NO_SAMPLES, *keys])) for keys in (self._kept, self._lost)))

    @property
    def work(self) -> CacheWork:
        """As `SampleCache.work`."""
        not_asked = self._tier.take_not_asked() if self._tier is not None else 0
        return super().work.plus(CacheWork(evicted=self._num_evicted, not_asked=not_asked))

    def prepared(self, keys: Int64Array) -> PreparedValues:
        """As `SampleCache.prepared`, with the hits of the sampler."""
        nothing: list[Any] = [None] * len(keys)
        rows = np.flatnonzero(among(keys, self._hits))
        managed = nothing
        if self._tier is not None:
            managed = _placed(self._tier.get(keys[rows], self._batch.stamps_of(keys[rows])), rows, len(keys))
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

    def keep(self, tier: TierName, keys: Int64Array, values: Sequence[Any]) -> Int64Array:
        """As `SampleCache.keep`; in the tier of the sampler what it admits."""
        if tier != self._name:
            return super().keep(tier, keys, values)
        rows = np.flatnonzero(among(keys, self._wanted))
        if not len(rows) or self._tier is None:
            return NO_SAMPLES
        stamps = self._batch.stamps_of(keys[rows])
        self._kept.append(self._tier.put(keys[rows], [values[row] for row in rows.tolist()], stamps))
        return self._kept[-1]


class FillCache(SampleCache):
    """For samples that are prepared beside batches: all of them are put into the tier that the sampler manages, where none is looked up.

    Args: as of `BatchCache`. batch: that the sampler wants them beside.
    """

    def __init__(self, cache: SampleCache, name: TierName, tier: TierInUse, batch: SharedBatch) -> None:
        super().__init__(cache.tiers)
        self._name, self._tier, self._batch = name, tier, batch
        # A list, which `without` shares.
        self._work = [NO_WORK]

    @property
    def work(self) -> CacheWork:
        """As `SampleCache.work`: what is found of the samples need not be read or decoded."""
        return reduce(CacheWork.plus, self._work)

    def find(self, keys: Int64Array, needed: BoolArray | None = None) -> FoundSamples:
        """As `SampleCache.find`."""
        found = super().find(keys, needed)
        num, (encoded, decoded, _) = len(keys), found.prepared.counts(len(found.encoded))
        self._work.append(CacheWork(num - encoded - decoded, num - decoded, num))
        return found

    def keep(self, tier: TierName, keys: Int64Array, values: Sequence[Any]) -> Int64Array:
        """As `SampleCache.keep`."""
        if tier == self._name:
            return self._tier.put(keys, values, self._batch.refilled_stamps_of(keys))
        return super().keep(tier, keys, values)


def _placed(values: Sequence[Any], rows: Int64Array, num_rows: int) -> list[Any]:
    """A list of so many, with the values at `rows` and None elsewhere."""
    placed: list[Any] = [None] * num_rows
    for row, value in zip(rows.tolist(), values, strict=True):
        placed[row] = value
    return placed
