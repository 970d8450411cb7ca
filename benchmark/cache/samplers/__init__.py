"""Samplers: which samples the next batch of each training serves that shares a cache, which values are kept and which are dropped.

Numbers only: no sample is read, and no time passes. Samples are numbered 0 … n − 1. What is random comes from seeds.

>>> import numpy as np
>>> sampler = SAMPLERS["coordinated"](num_samples=1000, capacity=200, augmented=True)
>>> jobs = [sampler.join(np.arange(1000), seed) for seed in (1, 2)]
>>> batches = [sampler.next_batch(job, 100) for _ in range(10) for job in jobs]
>>> sum(batch.num_prepared for batch in batches), sum(int(batch.hits.sum()) for batch in batches)
(1000, 1000)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmark.cache.samplers.base import Sampler, Serving
from benchmark.cache.samplers.coordinated import Coordinated
from benchmark.cache.samplers.lru import LRU, Quiver
from benchmark.cache.samplers.opportunistic import Opportunistic
from benchmark.cache.samplers.shade import Shade
from benchmark.cache.samplers.shared_loader import SharedLoader
from benchmark.cache.samplers.static import Static, Uncached
from benchmark.cache.samplers.values import CachedValues
from modyn.cache.sharing.cache_job import CacheJob

__all__ = ["SAMPLERS", "CacheJob", "CachedValues", "Sampler", "Serving", "Shade"]

SAMPLERS: Final[Mapping[str, type[Sampler]]] = {
    "coordinated": Coordinated,
    "lru": LRU,
    "none": Uncached,
    "opportunistic": Opportunistic,
    "quiver": Quiver,
    "shade": Shade,
    "shared_loader": SharedLoader,
    "static": Static,
}
