"""The cache for one batch whose samples a sampler chose. Only workers import this module, because it imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from modyn.cache.keys import TierName
from modyn.cache.sample_numbers import NO_SAMPLES, among
from modyn.cache.sharing.served_batch import SharedBatch
from modyn.dataset.batch import NO_WORK, CacheWork, TierReport
from modyn.dataset.cached.sample_cache import FoundSamples, SampleCache, TierInUse
from modyn.dataset.chunks import PreparedValues
from modyn.records import BoolArray, Int64Array


class BatchCache(SampleCache):
    """A cache for one batch. The sampler manages one tier. The batch reads only the sampler's hits from this tier, and stores only samples that the
    sampler admits there.

    Args: cache: the other tiers. name, tier: the tier that the sampler manages; None: the tier is unavailable.
    """

    def __init__(self, cache: SampleCache, name: TierName, tier: TierInUse | None, batch: SharedBatch) -> None:
        super().__init__(cache.tiers)
        self._name, self._tier = name, tier
        self._batch = batch
        self._hits, self._wanted = batch.keys[batch.hits], batch.keys[batch.admitted]
        # Lists, because the copies that `without` makes share them.
        self._kept: list[Int64Array] = []
        self._lost: list[Int64Array] = []
        self._num_evicted = 0
        # The batch still reads its hits, so `finish` drops the hits that no training needs any more. Other samples are dropped now.
        is_served = among(batch.evicted, self._hits)
        self._served_out = batch.evicted[is_served]
        if tier is not None:
            tier.forget_drops(self._hits)  # If an earlier drop of a hit failed, another process has stored it again since.
            tier.drop(batch.evicted[~is_served])
            self._num_evicted = len(batch.evicted)

    def finish(self) -> TierReport:
        """Drop the hits that no training needs any more, after the batch is made. Returns the changes in the tier of the sampler."""
        if self._tier is not None:
            self._tier.drop(self._served_out)
        return TierReport(*(np.unique(np.concatenate([NO_SAMPLES, *keys])) for keys in (self._kept, self._lost)))

    @property
    def work(self) -> CacheWork:
        """See `SampleCache.work`."""
        not_asked = self._tier.take_not_asked() if self._tier is not None else 0
        return super().work.plus(CacheWork(evicted=self._num_evicted, not_asked=not_asked))

    def prepared(self, keys: Int64Array) -> PreparedValues:
        """See `SampleCache.prepared`, with the hits of the sampler."""
        nothing: list[Any] = [None] * len(keys)
        rows = np.flatnonzero(among(keys, self._hits))
        managed = nothing
        if self._tier is not None:
            managed = _place_at(self._tier.get(keys[rows], self._batch.stamps_of(keys[rows])), rows, len(keys))
            self._lost.append(keys[rows][[managed[row] is None for row in rows.tolist()]])
        if self._name == "decoded":
            return PreparedValues(nothing, managed)
        rest = np.flatnonzero([value is None for value in managed])
        return PreparedValues(managed, _place_at(super().prepared(keys[rest]).decoded, rest, len(keys)))

    def holds(self, keys: Int64Array) -> BoolArray:
        """See `SampleCache.holds`."""
        held = super().holds(keys)
        if self._tier is not None:
            rows = np.flatnonzero(~held & among(keys, self._hits))
            held[rows] = self._tier.holds(keys[rows])
        return held

    def keep(self, tier: TierName, keys: Int64Array, values: Sequence[Any]) -> Int64Array:
        """See `SampleCache.keep`. The tier of the sampler stores only samples that the sampler admits."""
        if tier != self._name:
            return super().keep(tier, keys, values)
        rows = np.flatnonzero(among(keys, self._wanted))
        if not len(rows) or self._tier is None:
            return NO_SAMPLES
        stamps = self._batch.stamps_of(keys[rows])
        self._kept.append(self._tier.put(keys[rows], [values[row] for row in rows.tolist()], stamps))
        return self._kept[-1]


class FillCache(SampleCache):
    """A cache for samples that are prepared in the background. The cache stores all of these samples in the tier of the sampler, and reads none from
    there.

    Args: as for `BatchCache`. batch: the batch with which the sampler chose these samples.
    """

    def __init__(self, cache: SampleCache, name: TierName, tier: TierInUse, batch: SharedBatch) -> None:
        super().__init__(cache.tiers)
        self._name, self._tier, self._batch = name, tier, batch
        # Lists, because the copies that `without` makes share them.
        self._work = [NO_WORK]
        self._kept: list[Int64Array] = [NO_SAMPLES]

    @property
    def work(self) -> CacheWork:
        """See `SampleCache.work`. Samples that were found in the cache do not count as read or decoded."""
        return reduce(CacheWork.plus, self._work)

    def report(self, keys: Int64Array) -> TierReport:
        """Return which of these samples are in the tier now, and which are not. Call this method after the samples are prepared."""
        kept = np.concatenate(self._kept)
        return TierReport(kept, keys[~among(keys, kept)])

    def find(self, keys: Int64Array, needed: BoolArray | None = None) -> FoundSamples:
        """See `SampleCache.find`."""
        found = super().find(keys, needed)
        num, (encoded, decoded, _) = len(keys), found.prepared.counts(len(found.encoded))
        self._work.append(CacheWork(num - encoded - decoded, num - decoded, num))
        return found

    def keep(self, tier: TierName, keys: Int64Array, values: Sequence[Any]) -> Int64Array:
        """See `SampleCache.keep`."""
        if tier == self._name:
            self._kept.append(self._tier.put(keys, values, self._batch.refilled_stamps_of(keys)))
            return self._kept[-1]
        return super().keep(tier, keys, values)


def _place_at(values: Sequence[Any], rows: Int64Array, num_rows: int) -> list[Any]:
    """Return a list of `num_rows`, with the values at `rows` and None elsewhere."""
    placed: list[Any] = [None] * num_rows
    for row, value in zip(rows.tolist(), values, strict=True):
        placed[row] = value
    return placed
