"""The cache of trainings and evaluations. The settings of the cache come from the sections `cache` of the pipeline and of the system file. Imports no
torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modyn.cache.keys import NAMESPACE_BYTES, TierName, namespace
from modyn.cache.plan.measured_rates import planned_again, rates_path, read_rates
from modyn.cache.plan.performance_model import Split
from modyn.cache.plan.profile import CacheProfile, profile_of, profile_path
from modyn.cache.plan.tier_choice import CacheNeeds, SampleOrder, choose_sampler, choose_tiers, usable
from modyn.cache.tiers.stores import TIERS, Adopts, StoreUsage, check_redis_room, claim_budgets, memory_usage, redis_usage
from modyn.cache.tiers.tier import StoreName, TierPlace
from modyn.config.base import Problem, Severity, check_section
from modyn.config.cache import CacheConfig, SamplerName, managed_tier
from modyn.config.system import SystemConfig
from modyn.config.system_sections.buckets import is_bucket
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.code.code_versions import code_version
from modyn.dataset.config import DataConfig
from modyn.errors import ConfigError, ConflictError, ModynError, UnavailableError
from modyn.json_codec import json_digest
from modyn.rpc.logs import get_logger
from modyn.state_folders import SHARED_MEMORY, shared_folder
from modyn.storage.client import DatasetInfo

_DECODING = (
    "bytes_parser_function",
    "batch_parser_function",
    "record_layout",
    "decode",
    "tokenizer",
    "deterministic_transformations",
)
"""Fields of a `data` section on which decoded samples depend."""
_AUGMENTING = ("transformations", "random_transformations")
"""Further fields on which augmented samples depend."""


def cache_settings(config: SystemConfig, pipeline: Mapping[str, Any]) -> CacheConfig:
    """Return the settings of a pipeline's cache. Settings of the pipeline override settings of the system file. Raises ConfigError."""
    return config.cache.overridden(pipeline.get("cache") or {})


def cache_problems(config: SystemConfig, pipeline: Mapping[str, Any]) -> list[Problem]:
    """List the problems of a pipeline's cache. Args: pipeline: a pipeline whose section `data` is valid or absent."""
    section = pipeline.get("cache") or {}
    if found := check_section(CacheConfig, section, "cache"):
        return found
    settings = cache_settings(config, pipeline)
    if settings.size is None:
        return [Problem("cache.size", "is required, such as 2GB")] if section else []
    try:
        check_machine(config, settings)
    except ConfigError as error:
        return [Problem("cache", error.message, Severity.UNAVAILABLE)]
    data, training, found = pipeline.get("data"), pipeline.get("training") or {}, []
    if settings.jobs > (at_once := config.trainer_server.max_workers):
        message = (
            f"{settings.jobs} trainings are to share samples, and this trainer server runs {at_once} at once: raise trainer_server.max_workers, "
            "unless others share the cache"
        )
        found = [Problem("cache.jobs", message, Severity.WARNING)]
    if not data or check_section(DataConfig, data, "data"):
        return found
    return found + list(_doubtful(settings, DataConfig.model_validate(data), training))


def _doubtful(settings: CacheConfig, data: DataConfig, training: Mapping[str, Any]) -> Iterator[Problem]:
    """List settings that do not fit a pipeline. Args: training: section of the pipeline, which may be invalid."""
    managed = None if settings.sampler == "auto" else managed_tier(settings.sampler)
    shuffle = bool(training.get("shuffle"))
    split = None if settings.split == "auto" else Split.parse(settings.split)
    if managed and not shuffle:
        yield Problem(
            "cache.sampler", f"'{settings.sampler}' chooses the order of samples: set training.shuffle: true, or write static"
        )
    if managed and split and not getattr(split, managed):
        yield Problem(
            "cache.sampler", f"'{settings.sampler}' needs a part of the cache for {managed} samples, and {split} has none"
        )
    if managed and training.get("seed") is not None:
        message = "the order of samples depends on other trainings: models are not the same each time in spite of training.seed"
        yield Problem("cache.sampler", message, Severity.WARNING)
    if split and split.decoded and not data.keeps_decoded:
        message = "there is nothing decoded to keep, since no code runs for each sample, or it may draw random numbers: that part stays empty"
        yield Problem("cache.split", message, Severity.WARNING)
    if split and split.augmented and managed != "augmented":
        needs = CacheNeeds(
            keeps_decoded=data.keeps_decoded,
            is_remote=False,
            shared_memory_bytes=0,
            has_redis=False,
            keeps_augmented=data.keeps_augmented,
            order=SampleOrder(may_reorder=shuffle, is_seeded=training.get("seed") is not None),
        )
        if choose_sampler(settings, {"augmented": 1}, needs) == "static":
            message = (
                "augmented samples are for samplers that may choose the order: training.shuffle without training.seed, or `sampler: coordinated`; "
                "that part stays empty"
            )
            yield Problem("cache.split", message, Severity.WARNING)


def training_cache(
    config: SystemConfig, settings: CacheConfig, data: DataConfig, info: DatasetInfo, order: SampleOrder
) -> CacheSource | None:
    """Choose the tiers in which a training caches its dataset's samples; None: the training has no cache, or a cache would not help.

    Args: settings: result of `cache_settings`. info: the dataset as it is now. Raises: ConfigError: this machine cannot have such a cache.
    """
    if settings.size is None:
        return None
    check_machine(config, settings)
    needs = _needs(config, data, info, order)
    changed: dict[str, Any] = {}
    if settings.split == "auto" and needs.profile is not None:
        needs, changed = _planned_again(config, needs, needs.profile, info)
    choice = choose_tiers(settings, needs)
    if choice.store is None:
        get_logger("training").info("cache", store=None, reason=choice.reason, **changed)
        return None
    store = CacheSource(choice.store, _address(config, choice.store), {}, settings.compression)
    # An unused division that was planned with outdated rates is not adopted. An explicit split never adopts another division.
    adopts = Adopts.NONE if settings.split != "auto" else Adopts.IN_USE if changed else Adopts.SAME_TIERS
    budgets = _claim(store, choice.budgets, adopts)
    reason = choice.reason if budgets == choice.budgets else "It is divided as other trainings have divided it."
    sampler = choose_sampler(settings, budgets, needs)
    get_logger("training").info("cache", store=choice.store, budgets=dict(budgets), sampler=sampler, reason=reason, **changed)
    return _source(replace(store, sampler=sampler, jobs=settings.jobs), budgets, needs, data, info)


def evaluation_cache(
    config: SystemConfig, section: Mapping[str, Any], dataset: DataConfig, find_info: Callable[[], DatasetInfo]
) -> CacheSource | None:
    """Choose the cache for samples that an evaluation reads; None: there is no cache. An existing division of the cache stays, even if the settings
    name another size or split. A cache without a division is divided as for a training. Errors are logged, because they cost only speed.

    Args: section: `cache` of the pipeline. dataset: the dataset of the samples. find_info: returns the present state of that dataset; called only if
    there is a cache. Raises: the errors of `find_info`.
    """
    log = get_logger("cache")
    try:
        settings = cache_settings(config, {"cache": section})
        if settings.size is None:
            return None
        check_machine(config, settings)
        # A profile belongs to a section `data`, so the fields about the evaluation of models are left out.
        data = DataConfig.model_validate({name: getattr(dataset, name) for name in DataConfig.model_fields})
        info = find_info()
        needs = _needs(config, data, info, SampleOrder())  # The order of an evaluation is fixed.
        choice = choose_tiers(settings, needs)
        if choice.store is None:
            log.info("cache", store=None, reason=choice.reason)
            return None
        store = CacheSource(choice.store, _address(config, choice.store), {}, settings.compression)
        stored = _stored(store)
        if not stored.is_reachable:
            # The division of an unavailable store is not known.
            log.warning("cache_away", reason=f"{stored.where} does not answer")
            return None
        held: dict[TierName, int] = {tier.name: tier.budget_bytes for tier in stored.tiers if tier.name in TIERS}
        budgets = held or _claim(store, choice.budgets, Adopts.SAME_TIERS)
    except (ConfigError, ConflictError) as error:
        log.warning("cache_not_used", reason=error.message)
        return None
    source = _source(store, budgets, needs, data, info)
    log.info("cache", store=store.store, budgets={name: place.budget_bytes for name, place in source.places.items()})
    return source if source.places else None


def cache_redis_url(config: SystemConfig, pipeline: Mapping[str, Any]) -> str | None:
    """Return the URL of Redis for a worker if the pipeline's cache may use Redis. The URL may hold a password. Raises ConfigError."""
    settings = cache_settings(config, pipeline)
    return None if settings.size is None or settings.store == "memory" else config.resolved_redis_url()


def _address(config: SystemConfig, store: StoreName) -> str:
    return str(shared_folder(config.state_dir)) if store == "memory" else config.resolved_redis_url() or ""


def _source(
    store: CacheSource, budgets: Mapping[TierName, int], needs: CacheNeeds, data: DataConfig, info: DatasetInfo
) -> CacheSource:
    """Return the usable tiers of a dataset. The tier of augmented samples needs a sampler, which serves each of these samples to a training only
    once.
    """
    section = data.model_dump(mode="json")
    names = [name for name in usable(budgets, needs) if name != "augmented" or store.managed == name]
    digests = {name: _digest_of(section, name, store.sampler if store.managed == name else "static") for name in names}
    places: dict[TierName, TierPlace] = {
        name: TierPlace(name, namespace(info.identity, info.num_deleted, digests[name], name), budgets[name]) for name in names
    }
    return replace(store, places=places)


def _digest_of(section: Mapping[str, Any], tier: TierName, sampler: SamplerName) -> str:
    """Digest of the code that makes the values of a tier, and of the sampler that decides which values stay."""
    code = {name: section[name] for name in (*_DECODING, *(_AUGMENTING if tier == "augmented" else ()))}
    # The sampler belongs to the digest, because it decides which values the tier contains.
    return json_digest([code, code_version(code), *([] if sampler == "static" else [sampler])])


def _claim(source: CacheSource, budgets: Mapping[TierName, int], adopts: Adopts) -> Mapping[TierName, int]:
    """Call `claim_budgets` for the store of `source`. If the store cannot be used now, a later call claims it."""

    def open_tier(name: TierName, budget: int) -> None:
        # A budget belongs to all namespaces of a tier, so any namespace can claim it.
        tier = source.tier(TierPlace(name, bytes(NAMESPACE_BYTES), budget))
        try:
            tier.open()
        except UnavailableError as error:
            get_logger("cache").warning("cache_away", tier=name, reason=error.message)
        finally:
            tier.close()

    if source.store == "redis":
        check_redis_room(source.address, sum(budgets.values()))
    return claim_budgets(budgets, lambda: _stored(source).tiers, open_tier, adopts)


def _stored(source: CacheSource) -> StoreUsage:
    """Return the content of the store of `source`."""
    return memory_usage(Path(source.address)) if source.store == "memory" else redis_usage(source.address)


def cache_needs(
    config: SystemConfig, data: DataConfig, order: SampleOrder, profile: CacheProfile | None, *, is_remote: bool
) -> CacheNeeds:
    """Collect the needs of a pipeline on this machine. Args: is_remote: whether payloads come over a network; only used without a profile."""
    return CacheNeeds(
        keeps_decoded=data.keeps_decoded,
        is_remote=is_remote,
        shared_memory_bytes=shared_memory_bytes(),
        has_redis=config.resolved_redis_url() is not None,
        keeps_augmented=data.keeps_augmented,
        order=order,
        profile=profile,
    )


def _needs(config: SystemConfig, data: DataConfig, info: DatasetInfo, order: SampleOrder) -> CacheNeeds:
    is_remote = is_bucket(info.config.base_path) or not config.endpoint("storage").is_local
    return cache_needs(config, data, order, _profile(config, data, info), is_remote=is_remote)


def _profile(config: SystemConfig, data: DataConfig, info: DatasetInfo) -> CacheProfile | None:
    """See `profile_of`. Returns None if there is no usable profile."""
    try:
        return profile_of(config.state_dir, data.model_dump(mode="json"), info.identity)
    except ModynError as error:
        get_logger("training").warning("cache_profile_not_used", reason=error.message)
        return None


def _planned_again(
    config: SystemConfig, needs: CacheNeeds, profile: CacheProfile, info: DatasetInfo
) -> tuple[CacheNeeds, dict[str, Any]]:
    """Return the needs with the profile for planning. In this profile, measurements of trainings replace values that differ by much. Also return a
    text for the log, with the planned and the measured value of each change.
    """
    try:
        measured = read_rates(rates_path(profile_path(config.state_dir, info.name, profile.data_digest)))
    except ModynError as error:
        get_logger("training").warning("cache_rates_not_used", reason=error.message)
        measured = None
    found, changed = planned_again(profile, measured, info.num_samples)
    values = {change.name: {"planned": change.planned, "measured": change.measured} for change in changed}
    return replace(needs, profile=found), ({"changed": values} if values else {})


def shared_memory_bytes() -> int:
    """Size of this machine's shared memory in bytes; 0: the machine has none."""
    try:
        stat = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return stat.f_frsize * stat.f_blocks


def machine_memory_bytes() -> int:
    """Size of this machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_machine(config: SystemConfig, settings: CacheConfig) -> None:
    """Check that this machine can hold a cache with these settings. Args: settings: `size` must be set. Raises ConfigError."""
    assert settings.size is not None
    memory, redis_url = machine_memory_bytes(), config.resolved_redis_url()
    # A Redis at a Unix socket uses the memory of this machine too.
    if settings.size > memory and (settings.store != "redis" or (redis_url or "").startswith("unix:")):
        raise ConfigError(
            f"the cache is to have {settings.size:,} bytes, and this machine has {memory:,} bytes of memory: give `size` less, or write "
            "`store: redis` where a Redis of another machine is to hold it"
        )
    if settings.store == "memory" and settings.size > shared_memory_bytes():
        raise ConfigError(
            f"the cache is to have {settings.size:,} bytes, and {SHARED_MEMORY} can hold {shared_memory_bytes():,}: give `size` less, write "
            "`store: redis`, or give the machine or container more shared memory"
        )
    if settings.store == "redis" and redis_url is None:
        raise ConfigError(
            "the cache is to be in Redis, and none runs: set redis_url in the system file, or write `store: memory`"
        )
    if settings.compression == "lz4" and find_spec("lz4") is None:
        raise ConfigError(
            "compression lz4 needs the package lz4, which is not installed: pip install 'modyn[lz4]', or write zstd"
        )
