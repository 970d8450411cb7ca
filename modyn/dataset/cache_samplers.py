"""Open the sampler that a cache names, for one training."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from modyn.cache.keys import NAMESPACE_BYTES
from modyn.cache.performance_model import values_in_step
from modyn.cache.sharing.clearing import SHARING
from modyn.cache.sharing.compared_job import ComparedJob
from modyn.cache.sharing.memory_state import MemoryState
from modyn.cache.sharing.served_batch import BatchSampler
from modyn.cache.sharing.shared_job import SharedJob
from modyn.cache.sharing.state import SharedState, SharePlace
from modyn.dataset.cache_source import CacheSource
from modyn.records import Int64Array
from modyn.rpc.logs import get_logger

SLACK: Final = 0.95
"""Of the room: values of different processes come before those that make room for them are dropped."""


def open_sampler(
    cache: CacheSource | None,
    capacity: int,
    keys: Int64Array,
    seed: int,
    resumed: Mapping[str, Any] | None,
    batch_size: int,
    num_workers: int,
) -> BatchSampler:
    """Let a training decide its batches by the sampler of its cache, and with nothing cached where there is none.

    Args: capacity: values that the tier of the sampler has room for. keys: ascending, none twice. resumed: state of its order in the last checkpoint.
    batch_size, num_workers: of the training.
    """
    managed = cache.managed if cache is not None else None
    if cache is None or managed is None or managed not in cache.places or not capacity:
        if managed is not None:
            get_logger("cache").warning(
                "cache_not_shared", reason="no value of this pipeline can be kept augmented, or the store is away"
            )
        return SharedJob(None, keys, seed, augmented=True, resumed=resumed)
    if cache.sampler != "coordinated":
        folder = Path(cache.address) / SHARING / f"{cache.places[managed].namespace.hex()}-{cache.sampler}"
        return ComparedJob(folder, cache.sampler, capacity, keys, seed, managed == "augmented", resumed)
    _warn_of_little_room(max(2, cache.jobs), capacity, len(keys), batch_size, num_workers)
    # A state of another budget would have another capacity.
    tier = cache.places[managed]
    name = hashlib.blake2b(tier.namespace + tier.budget_bytes.to_bytes(8), digest_size=NAMESPACE_BYTES).digest()
    place = SharePlace(name, max(1, int(SLACK * capacity)))
    return SharedJob(_state(cache, place), keys, seed, augmented=True, resumed=resumed)


def _warn_of_little_room(jobs: int, capacity: int, num_samples: int, batch_size: int, num_workers: int) -> None:
    """Say that trainings in step would miss values of each other: room is made for new ones before all have been served."""
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
    # Imported here: its library is needed by nothing else, and most workers have no such cache.
    from modyn.cache.sharing.redis_state import RedisState

    return RedisState(place, cache.address, breaker=cache.breaker)
