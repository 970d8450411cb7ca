"""How trainings that run together are cached: the sides that figures compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmark.cache.reading import BATCH_SIZE, Images
from modyn.cache.keys import TierName
from modyn.cache.profile import CacheProfile
from modyn.cache.tier import StoreName
from modyn.cache.tier_choice import CacheNeeds, choose_sampler, choose_tiers
from modyn.config.cache import COMPARED, CacheConfig, SamplerName, managed_tier
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetSource
from modyn.dataset.loader import BatchLoader
from modyn.dataset.sampler_loader import SamplerLoader, trigger_set_keys
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.records import Int64Array, TriggerSetInfo

PLAIN: Final = "plain"
OURS: Final = "ours"
SIDES: Final = (PLAIN, "static", *COMPARED, OURS)
"""Those that can be opened."""
CACHED: Final = tuple(side for side in SIDES if side != PLAIN)
CHECKED: Final = OURS
"""What is checked where one side is enough."""


@dataclass(frozen=True, slots=True)
class Side:
    """What all trainings of a side read, and how. Picklable: each is a process."""

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
        return SamplerLoader(dataset, cache, wanted, workers)

    def trained(self, loader: BatchLoader, keys: Int64Array) -> None:
        """Say that a batch was trained on where no model is. A sampler that ranks samples by their losses is given some that are the same each time:
        log-normal by key, so that few samples are much more important than most, as `benchmark.cache simulate` draws them.
        """
        if isinstance(loader, SamplerLoader) and loader.needs_losses:
            losses = np.random.default_rng(0).lognormal(size=self.trigger_set.num_keys)
            loader.rank(keys, losses[keys % len(losses)].astype(np.float32))


def open_side(
    name: str, found: Images, share: float, store: StoreName = "memory", jobs: int = 2, profile: CacheProfile | None = None
) -> Side:
    """A side whose cache holds nothing yet; that of another one is emptied. The one place that knows what a side's name means.

    plain: no cache. static: what is decoded first is kept, and served to all (MINIO). ours: what `cache: {size: ..., jobs: N}` comes to. Others: that
    sampler, with all of the memory for the tier that it manages; shade ranks samples by the losses of `Side.trained`, and so repeats some and leaves
    out others.

    Args: share: how much of the samples would fit decoded; each side may use so many bytes. jobs: trainings at once. profile: what ours is planned
    by; None: nothing was measured. Raises: ValueError: there is no such side.
    """
    sampler: SamplerName = "static"
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
                True, False, 1 << 40, True, keeps_augmented=True, may_reorder=True, batch_size=BATCH_SIZE, profile=profile
            )
            budgets = choose_tiers(config, needs).budgets
            sampler = choose_sampler(config, budgets, needs)
        case _:
            sampler = name  # type: ignore[assignment]
            managed = managed_tier(name)
            assert managed is not None
            budgets = {managed: size}
    cache = replace(found.cache(store, budgets), sampler=sampler, jobs=jobs)
    return Side(name, found.trigger_set, found.data, found.source(cache))
