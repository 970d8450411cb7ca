"""Trainings with a cache and batches that a compared sampler decides: a plug-in at `SamplerLoader.open_sampler`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from benchmark.cache.samplers.compared_job import ComparedJob
from modyn.cache.keys import TierName
from modyn.cache.sharing.clearing import SHARING
from modyn.cache.sharing.served_batch import BatchSampler
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.cached.sampler_loader import SamplerLoader
from modyn.records import Float32Array, Int64Array

MANAGED: Final[Mapping[str, TierName]] = {
    "shared_loader": "augmented",
    "lru": "decoded",
    "quiver": "decoded",
    "shade": "decoded",
}
"""For each compared sampler, the tier whose values the sampler keeps and drops."""


@dataclass(frozen=True, slots=True)
class ComparedSource(CacheSource):
    """A cache in shared memory of which a sampler for comparison manages a tier."""

    compared: str = ""

    @property
    def managed(self) -> TierName:
        """The tier of the sampler."""
        return MANAGED[self.compared]


class ComparedLoader(SamplerLoader):
    """The batches of a training whose cache is a `ComparedSource`."""

    def open_sampler(self, capacity: int) -> BatchSampler:
        """Open the sampler that the cache names."""
        cache = cast("ComparedSource", self._cache)
        if not capacity or cache.managed not in cache.places:
            return super().open_sampler(0)
        folder = Path(cache.address) / SHARING / f"{cache.places[cache.managed].namespace.hex()}-{cache.compared}"
        is_augmented = cache.managed == "augmented"
        return ComparedJob(folder, cache.compared, capacity, self._wanted.keys, self._dataset.plan.seed, is_augmented)

    @property
    def needs_losses(self) -> bool:
        """Whether the sampler chooses by the losses of samples."""
        return cast("ComparedSource", self._cache).compared == "shade"

    def rank(self, keys: Int64Array, losses: Float32Array) -> None:
        """Give the sampler the losses of samples that were trained on, (n,) each."""
        with self._lock:
            if isinstance(self._sampler, ComparedJob):
                self._sampler.rank(keys, losses)
