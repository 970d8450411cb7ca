"""Sides that figures compare: cache methods for trainings that run together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmark.cache.reading import BATCH_SIZE, Images
from benchmark.cache.samplers.compared_loader import MANAGED, ComparedLoader, ComparedSource
from modyn.cache.keys import TierName
from modyn.cache.plan.profile import CacheProfile
from modyn.cache.plan.tier_choice import CacheNeeds, SampleOrder, choose_sampler, choose_tiers
from modyn.cache.tiers.tier import StoreName
from modyn.config.cache import CacheConfig, SamplerName
from modyn.dataset.cached.sampler_loader import SamplerLoader, trigger_set_keys
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetSource
from modyn.dataset.loader import BatchLoader
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.records import Int64Array, TriggerSetInfo

PLAIN: Final = "plain"
OURS: Final = "ours"
SIDES: Final = (PLAIN, "static", "opportunistic", *MANAGED, OURS)
"""Sides that can be opened."""
CACHED: Final = tuple(side for side in SIDES if side != PLAIN)
CHECKED: Final = OURS
"""Side of checks that need only one side."""


@dataclass(frozen=True, slots=True)
class Side:
    """The samples that all trainings of a side read, and the cache method. Picklable, because each training is a process."""

    name: str
    trigger_set: TriggerSetInfo
    data: DataConfig
    source: DatasetSource

    def loader(self, seed: int, epochs: int, batch_size: int = BATCH_SIZE, workers: int = 1) -> BatchLoader:
        """The samples as the training with this seed reads them, with one worker in its own process."""
        options = LoadOptions(batch_size, drop_last=False, shuffle=True, seed=seed, epochs=epochs)
        dataset = TriggerSetDataset(self.trigger_set, self.data, self.source.connect, options)
        cache = self.source.cache
        if cache is None or cache.managed is None:
            return BatchLoader(dataset, workers)
        wanted = trigger_set_keys(dataset)
        assert wanted is not None
        kind = ComparedLoader if isinstance(cache, ComparedSource) else SamplerLoader
        return kind(dataset, cache, wanted, workers)

    def trained(self, loader: BatchLoader, keys: Int64Array) -> None:
        """Say that a batch was trained on where no model is. A sampler that ranks samples by their losses is given some that are the same each time:
        log-normal by key, so that few samples are much more important than most, as `benchmark.cache simulate` draws them.
        """
        if isinstance(loader, ComparedLoader) and loader.needs_losses:
            losses = np.random.default_rng(0).lognormal(size=self.trigger_set.num_keys)
            loader.rank(keys, losses[keys % len(losses)].astype(np.float32))


def open_side(
    name: str, found: Images, share: float, store: StoreName = "memory", jobs: int = 2, profile: CacheProfile | None = None
) -> Side:
    """A side whose cache holds nothing yet; that of another one is emptied. The one place that knows what a side's name means.

    plain: no cache. static: what is decoded first is kept, and served to all (MINIO). ours: what `cache: {size: ..., jobs: N}` comes to. Others: that
    sampler, with all of the memory for the tier that it manages, and but for opportunistic in shared memory; shade ranks samples by the losses of
    `Side.trained`, and so repeats some and leaves out others.

    Args: share: how much of the samples would fit decoded; each side may use the same memory. jobs: trainings at once. profile: what ours is planned
    by; None: nothing was measured. Raises: ValueError: there is no such side.
    """
    sampler: SamplerName = "static"
    compared = ""
    if name not in SIDES:
        raise ValueError(f"there is no side '{name}'; there are {', '.join(SIDES)}")
    size = found.budget(share)
    match name:
        case "plain":
            found.clear()
            return Side(name, found.trigger_set, found.data, found.source(None))
        case "static":
            budgets: Mapping[TierName, int] = {"decoded": size}
        case "ours":
            config = CacheConfig(size=size, jobs=jobs, store=store)
            needs = CacheNeeds(
                True, False, 1 << 40, True, keeps_augmented=True, order=SampleOrder(True, batch_size=BATCH_SIZE), profile=profile
            )
            budgets = choose_tiers(config, needs).budgets
            sampler = choose_sampler(config, budgets, needs)
        case "opportunistic":
            sampler, budgets = "opportunistic", {"augmented": size}
        case _:
            compared, store, budgets = name, "memory", {MANAGED[name]: size}
    cache = replace(found.cache(store, budgets), sampler=sampler, jobs=jobs)
    if compared:
        cache = ComparedSource(cache.store, cache.address, cache.places, jobs=jobs, compared=compared)
    return Side(name, found.trigger_set, found.data, found.source(cache))
