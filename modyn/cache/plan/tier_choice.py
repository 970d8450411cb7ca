"""Choose the tiers of a training and their sizes from the section `cache` for one dataset. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from modyn.cache.keys import TierName
from modyn.cache.plan.performance_model import DatasetSizes, Split, values_in_step
from modyn.cache.plan.profile import CacheProfile
from modyn.cache.plan.split_plan import CachePlan, plan_cache
from modyn.cache.tiers.tier import StoreName
from modyn.config.cache import CacheConfig, SamplerName, managed_tier


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The order in which samples are read. The defaults describe an evaluation, whose order is fixed."""

    may_reorder: bool = False
    """Whether the training draws its order at random, so that a sampler may change the order."""
    is_seeded: bool = False
    """Whether the order must be the same in each run."""
    batch_size: int = 1
    num_workers: int = 1
    """Number of processes that make batches."""


@dataclass(frozen=True, slots=True)
class CacheNeeds:
    """Properties of a pipeline and its machine that determine the cache."""

    keeps_decoded: bool
    """Whether Python decodes each sample, and the result depends only on the sample."""
    is_remote: bool
    """Whether payloads come over a network, not from files of this machine."""
    shared_memory_bytes: int
    """Bytes that the shared memory of this machine can hold."""
    has_redis: bool
    """Whether the configuration names a Redis."""
    keeps_augmented: bool = False
    """Whether Python prepares each sample, and the version of this code is known."""
    order: SampleOrder = SampleOrder()
    profile: CacheProfile | None = None
    """Profile that `modyn cache profile` measured for this section `data`; None: there is no profile."""


@dataclass(frozen=True, slots=True)
class TierChoice:
    """The tiers to use."""

    store: StoreName | None
    """Store of the tiers; None: no cache."""
    budgets: Mapping[TierName, int]
    """Bytes of each tier that gets a part of the split."""
    reason: str
    """Sentence for users."""


def choose_sampler(config: CacheConfig, budgets: Mapping[TierName, int], needs: CacheNeeds) -> SamplerName:
    """Choose the sampler, the rule that chooses the cached samples of a batch. Args: budgets: bytes of each tier of the cache."""
    wanted: SamplerName = config.sampler if config.sampler != "auto" else "static" if needs.order.is_seeded else "coordinated"
    managed = managed_tier(wanted)
    return wanted if needs.order.may_reorder and managed in usable(budgets, needs) else "static"


def choose_tiers(config: CacheConfig, needs: CacheNeeds) -> TierChoice:
    """Choose store and tiers. Args: config: its `size` must be set.

    An explicit split is used unchanged, except for forms that cannot be kept. `auto` follows `plan_tiers` if the dataset was profiled. Without a
    profile, a cache of trainings that share augmented samples has 70 % decoded and 30 % augmented samples, or 100 % augmented samples if decoded
    samples cannot be kept. Any other cache has 100 % decoded samples if Python decodes each sample, or else 100 % encoded samples if samples come
    over a network. Otherwise there is no cache, because the operating system caches files of this machine.
    """
    assert config.size is not None
    stores = _stores(config, needs)
    if not stores:
        return _none(_no_room(config, needs))
    store = stores[0]
    if config.split != "auto":
        split = Split.parse(config.split)
        return _divided(store, config.size, split, needs, f"The split {split} is that of the pipeline.")
    if needs.profile is not None and store in needs.profile.stores:
        plan = plan_tiers(config, needs, needs.profile)
        if plan.split is None:
            return _none(plan.reason)
        return _divided(cast("StoreName", plan.cache), config.size, plan.split, needs, plan.reason)
    # Without a profile, the choice follows from the pipeline alone.
    advice = "`modyn cache profile` measures what would be best"
    if shares_augmented(config, needs):
        # Trainings in step need little room for augmented samples. Decoded samples save more of the work that each training still does itself.
        split = Split(0, 70, 30) if needs.keeps_decoded else Split(0, 0, 100)
        return _divided(store, config.size, split, needs, f"Trainings prepare augmented samples for each other; {advice}.")
    if needs.keeps_decoded:
        return _divided(
            store, config.size, Split(0, 100, 0), needs, f"All is for decoded samples, which save decoding; {advice}."
        )
    if needs.is_remote:
        return _divided(
            store, config.size, Split(100, 0, 0), needs, f"All is for samples as stored, which save the network; {advice}."
        )
    return _none(
        "no decoding could be saved, and files of this machine are in the operating system's own cache; `split` asks for one anyway"
    )


def plan_tiers(config: CacheConfig, needs: CacheNeeds, profile: CacheProfile) -> CachePlan:
    """Plan store and split by the performance model: the result of `split: auto` for a measured dataset, which `modyn cache plan` shows. Choose the
    first usable store that pays, unless another store is faster by LEAST_GAIN (`plan_cache`). Without a usable store there are no predictions.

    Args: config: its `size` must be set. Raises: NotFoundError: the preferred store was not measured.
    """
    assert config.size is not None
    shares, dataset, stores = shares_augmented(config, needs), profile.workload.dataset, _stores(config, needs)
    # One training alone gains nothing from augmented samples.
    kept = replace(
        dataset, keeps_decoded=dataset.keeps_decoded and needs.keeps_decoded, keeps_augmented=dataset.keeps_augmented and shares
    )
    plan = plan_cache(
        replace(profile.workload, dataset=kept),
        {name: profile.cache_store(name, config.size) for name in stores if name in (stores[0], *profile.stores)},
        config.jobs if shares else 1,
        num_values_in_step=values_in_step(dataset.num_samples, config.jobs, needs.order.batch_size, needs.order.num_workers)
        if shares
        else 0,
        by_times=True,
    )
    if not stores:
        return replace(plan, reason=_no_room(config, needs))
    if plan.cache is None or plan.split is None:
        return plan
    split = _without_small_parts(plan.split, config.size, kept, needs.order.batch_size)
    if split == plan.split:
        return plan
    reason = f"{plan.reason} It is divided {split}, for the other parts would hold less than a batch."
    return replace(plan, split=split, samples_per_s=plan.predictions[plan.cache].of(split), reason=reason)


def _no_room(config: CacheConfig, needs: CacheNeeds) -> str:
    return f"a cache of {config.size:,} bytes is more than half of the shared memory ({needs.shared_memory_bytes:,} bytes), and there is no Redis"


def _stores(config: CacheConfig, needs: CacheNeeds) -> list[StoreName]:
    """Return the stores that can hold the cache, the default first."""
    assert config.size is not None
    if config.store != "auto":
        return [config.store]
    # Shared memory also contains batches of worker processes and pages of databases, so the cache may have half of it.
    able: dict[StoreName, bool] = {"memory": 2 * config.size <= needs.shared_memory_bytes, "redis": needs.has_redis}
    return [name for name, is_able in able.items() if is_able]


def shares_augmented(config: CacheConfig, needs: CacheNeeds) -> bool:
    """Whether trainings may prepare augmented samples for each other."""
    is_auto = config.sampler == "auto" and config.jobs > 1 and not needs.order.is_seeded
    return (is_auto or (config.sampler != "auto" and managed_tier(config.sampler) == "augmented")) and bool(
        usable({"augmented": 0}, needs)
    )


def _without_small_parts(split: Split, size: int, dataset: DatasetSizes, batch_size: int) -> Split:
    """Add parts with room for less than a batch of samples to the largest part, because such small parts would serve almost no samples.

    >>> str(_without_small_parts(Split(0, 4, 96), 1000, DatasetSizes(100, 1.0, 2.0, 2.0), 64))
    '0-0-100'
    """
    least = [
        batch_size * sample_bytes for sample_bytes in (dataset.encoded_bytes, dataset.decoded_bytes, dataset.augmented_bytes)
    ]
    parts = (split.encoded, split.decoded, split.augmented)
    kept = [part if part * size >= 100 * few else 0 for part, few in zip(parts, least, strict=True)]
    largest = parts.index(max(parts))
    # Small parts become 0, and the largest part gets their percents.
    kept[largest] = 0
    kept[largest] = 100 - sum(kept)
    return Split(*kept)


def _divided(store: StoreName, size: int, split: Split, needs: CacheNeeds, reason: str) -> TierChoice:
    percents: dict[TierName, int] = {"encoded": split.encoded, "decoded": split.decoded, "augmented": split.augmented}
    budgets = {name: size * percent // 100 for name, percent in percents.items() if percent}
    if usable(budgets, needs):
        return TierChoice(store, budgets, reason)
    return _none(f"the split {split} leaves nothing that could be kept")


def usable(budgets: Mapping[TierName, int], needs: CacheNeeds) -> tuple[TierName, ...]:
    """Return the tiers of `budgets` that a pipeline can use."""
    able = {"encoded": True, "decoded": needs.keeps_decoded, "augmented": needs.keeps_augmented and needs.order.may_reorder}
    return tuple(name for name in budgets if able[name])


def _none(reason: str) -> TierChoice:
    return TierChoice(None, {}, reason)
