"""Open the sampler of a cache for one training."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from modyn.cache.keys import NAMESPACE_BYTES
from modyn.cache.plan.performance_model import values_in_step
from modyn.cache.sharing.clearing import SHARING
from modyn.cache.sharing.memory_state import MemoryState
from modyn.cache.sharing.rules import RULES
from modyn.cache.sharing.served_batch import BatchSampler
from modyn.cache.sharing.shared_job import SharedJob
from modyn.cache.sharing.state import SharedState, SharePlace
from modyn.dataset.cached.cache_source import CacheSource
from modyn.records import Int64Array
from modyn.rpc.logs import get_logger

SLACK: Final = 0.95
"""Fraction of the tier that is used. The rest is needed, because one process stores new values before another process drops the values that make room
for them."""


def open_sampler(
    cache: CacheSource | None,
    capacity: int,
    keys: Int64Array,
    seed: int,
    resumed: Mapping[str, Any] | None,
    batch_size: int,
    num_workers: int,
) -> BatchSampler:
    """Open the sampler that decides the batches of a training. If the cache has no tier for the sampler, the sampler caches nothing.

    Args: capacity: number of values that fit in the tier of the sampler. keys: ascending, without duplicates. resumed: state of the order in the last
    checkpoint. batch_size, num_workers: those of the training.
    """
    managed = cache.managed if cache is not None else None
    if cache is None or managed is None or managed not in cache.places or not capacity:
        if managed is not None:
            get_logger("cache").warning(
                "cache_not_shared", reason="no value of this pipeline can be kept augmented, or the store is away"
            )
        return SharedJob(None, keys, seed, augmented=True, resumed=resumed)
    if cache.sampler == "coordinated":
        _warn_of_little_room(max(2, cache.jobs), capacity, len(keys), batch_size, num_workers)
    # The budget is a part of the name, because a state with another budget has another capacity.
    tier = cache.places[managed]
    name = hashlib.blake2b(tier.namespace + tier.budget_bytes.to_bytes(8), digest_size=NAMESPACE_BYTES).digest()
    place = SharePlace(name, max(1, int(SLACK * capacity)))
    return SharedJob(_state(cache, place), keys, seed, augmented=True, resumed=resumed, rule=RULES[cache.sampler])


def _warn_of_little_room(jobs: int, capacity: int, num_samples: int, batch_size: int, num_workers: int) -> None:
    """Log a warning if trainings in step would miss each other's values, because values would be replaced before all trainings have used them."""
    needed = values_in_step(num_samples, jobs, batch_size, num_workers)
    if capacity < needed:
        reason = (
            f"there is room for {capacity:,} augmented samples, and {jobs} trainings in step need it for {needed:,}: they will prepare some that "
            "others have prepared; give the cache a larger `size`, or `split` a larger part for augmented samples"
        )
        get_logger("cache").warning("cache_has_little_room_to_share", capacity=capacity, reason=reason)


def _state(cache: CacheSource, place: SharePlace) -> SharedState:
    if cache.store == "memory":
        return MemoryState(place, Path(cache.address) / SHARING)
    # Imported here, because most workers have no such cache and nothing else needs its library.
    from modyn.cache.sharing.redis_state import RedisState

    return RedisState(place, cache.address, breaker=cache.breaker)
