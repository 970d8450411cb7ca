"""The tiers of a training follow from its settings, its pipeline and measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.cache.plan.measuring import StoreRates
from modyn.cache.plan.tier_choice import CacheNeeds, SampleOrder, choose_sampler, choose_tiers, plan_tiers, usable
from modyn.config.cache import CacheConfig
from modyn.errors import NotFoundError
from tests.support import cache_profiles

GB = 10**9
NEEDS = CacheNeeds(keeps_decoded=True, is_remote=False, shared_memory_bytes=4 * GB, has_redis=True)
PROFILE = replace(
    cache_profiles.PROFILE,
    num_samples=20_000,
    storage_bytes_per_s=500e6,
    decode_and_augment_samples_per_s=300.0,
    augment_samples_per_s=3000.0,
)
"""Decoding limits."""


def config(size: int = GB, **settings: Any) -> CacheConfig:
    return CacheConfig.model_validate({"size": size, **settings})


@pytest.mark.parametrize(
    ("settings", "shared", "has_redis", "store"),
    [
        ({}, 4 * GB, True, "memory"),
        ({}, 2 * GB - 1, True, "redis"),
        ({}, 2 * GB - 1, False, None),
        ({"store": "redis"}, 4 * GB, True, "redis"),
        ({"store": "memory"}, 4 * GB, False, "memory"),
    ],
    ids=["memory where it fits", "redis where not", "neither", "redis asked", "memory asked"],
)
def test_the_store(settings: dict[str, Any], shared: int, has_redis: bool, store: str | None) -> None:
    choice = choose_tiers(config(**settings), replace(NEEDS, shared_memory_bytes=shared, has_redis=has_redis))
    assert choice.store == store
    assert bool(choice.budgets) is (store is not None)


def test_a_split_of_the_user_is_taken_as_it_is() -> None:
    assert choose_tiers(config(split="58-42-0"), NEEDS).budgets == {"encoded": 58 * GB // 100, "decoded": 42 * GB // 100}
    assert choose_tiers(config(split="58-42-0"), replace(NEEDS, profile=PROFILE)).budgets["encoded"] == 58 * GB // 100
    encoded_only = replace(NEEDS, keeps_decoded=False)
    cannot = choose_tiers(config(split="58-42-0"), encoded_only)
    assert usable(cannot.budgets, encoded_only) == ("encoded",)
    assert cannot.budgets == {"encoded": 58 * GB // 100, "decoded": 42 * GB // 100}
    assert choose_tiers(config(split="0-100-0"), replace(NEEDS, keeps_decoded=False)).store is None


@pytest.mark.parametrize(
    ("keeps_decoded", "is_remote", "tiers"),
    [(True, False, ["decoded"]), (True, True, ["decoded"]), (False, True, ["encoded"]), (False, False, [])],
    ids=["local code", "remote code", "remote layout", "local layout"],
)
def test_without_a_profile_the_form_that_saves_most_gets_all(keeps_decoded: bool, is_remote: bool, tiers: list[str]) -> None:
    choice = choose_tiers(config(), replace(NEEDS, keeps_decoded=keeps_decoded, is_remote=is_remote))
    assert list(choice.budgets.values()) == [GB] * len(tiers)
    assert list(choice.budgets) == tiers
    assert choice.reason


def test_a_profile_decides() -> None:
    """Decoding limits, and decoded samples spare it; an accelerator that is slower than all else leaves nothing to gain."""
    limited = replace(NEEDS, profile=PROFILE)
    assert choose_tiers(config(), limited).budgets == {"decoded": GB}
    slow = replace(NEEDS, profile=replace(PROFILE, accelerator_samples_per_s=100.0))
    choice = choose_tiers(config(), slow)
    assert choice.store is None
    assert choice.reason.startswith("No cache pays")


@pytest.mark.parametrize(("batch_size", "tiers"), [(1, {"decoded", "augmented"}), (64, {"augmented"})])
def test_no_part_is_smaller_than_a_batch(batch_size: int, tiers: set[str]) -> None:
    """A smaller part would serve almost nothing. Two trainings in step leave little space for decoded samples."""
    sizes = replace(PROFILE, num_samples=1000, decoded_bytes=1e6, augmented_bytes=1e6)
    needs = replace(SHARING, profile=sizes, order=SampleOrder(may_reorder=True, batch_size=batch_size))
    chosen = choose_tiers(config(size=60_000_000, jobs=2), needs).budgets
    assert set(chosen) == tiers
    assert sum(chosen.values()) == 60_000_000


FAST, SLOW, UNUSABLE = StoreRates(2e9, 4e9), StoreRates(5e7, 5e7), StoreRates(1e6, 1e6)


@pytest.mark.parametrize(
    ("memory", "redis", "shared", "has_redis", "store", "reason"),
    [
        (FAST, FAST, 4 * GB, True, "memory", "redis would reach 428."),
        (FAST, SLOW, 4 * GB, True, "memory", "redis would reach 310."),
        (SLOW, FAST, 4 * GB, True, "redis", "memory would reach 310."),
        (UNUSABLE, FAST, 4 * GB, True, "redis", "is gained."),
        (UNUSABLE, FAST, 4 * GB, False, None, "is gained."),
        (FAST, SLOW, 2 * GB - 1, True, "redis", "is gained."),
        (SLOW, None, 4 * GB, True, "memory", "is gained."),
        (None, FAST, 4 * GB, True, "memory", "measures what would be best."),
    ],
    ids=["equal", "memory", "redis", "only redis", "no redis", "no room", "one measured", "first not measured"],
)
def test_the_model_chooses_the_store(
    memory: StoreRates | None, redis: StoreRates | None, shared: int, has_redis: bool, store: str | None, reason: str
) -> None:
    """The model chooses the best of the stores that have space and were measured."""
    stores = {name: rates for name, rates in (("memory", memory), ("redis", redis)) if rates}
    needs = replace(NEEDS, shared_memory_bytes=shared, has_redis=has_redis, profile=replace(PROFILE, stores=stores))
    choice = choose_tiers(config(), needs)
    assert choice.store == store
    assert choice.reason.endswith(reason), choice.reason
    for name in {"memory", "redis"} - {store}:
        # A named store is used for any prediction of the model.
        assert choose_tiers(config(store=name), needs).store in (name, None)


RATES = st.builds(StoreRates, st.just(1e9), st.sampled_from([1e6, 5e7, 1e9, 1.02e9, 1.1e9, 4e9]))


@given(
    stores=st.fixed_dictionaries({"memory": RATES, "redis": RATES}),
    shared=st.sampled_from([0, 2 * GB - 1, 4 * GB]),
    has_redis=st.booleans(),
    keeps=st.tuples(st.booleans(), st.booleans()),
    is_seeded=st.booleans(),
    jobs=st.integers(1, 4),
    store=st.sampled_from(["auto", "memory", "redis"]),
    storage_bytes_per_s=st.sampled_from([1e6, 5e7, 5e9]),
    batch_size=st.sampled_from([1, 1000]),
)
def test_what_is_planned_is_what_a_training_uses(
    stores: dict[str, StoreRates], shared: int, has_redis: bool, keeps: tuple[bool, bool], is_seeded: bool, jobs: int, store: str,
    storage_bytes_per_s: float, batch_size: int,
) -> None:  # fmt: skip
    profile = replace(PROFILE, stores=stores, storage_bytes_per_s=storage_bytes_per_s)
    needs = CacheNeeds(
        keeps[0], False, shared, has_redis, keeps_augmented=keeps[1],
        order=SampleOrder(True, is_seeded, batch_size, num_workers=2), profile=profile,
    )  # fmt: skip
    chosen = config(jobs=jobs, store=store)
    plan, choice = plan_tiers(chosen, needs, profile), choose_tiers(chosen, needs)
    assert (choice.store, choice.reason) == (plan.cache, plan.reason)
    percents = () if plan.split is None else (plan.split.encoded, plan.split.decoded, plan.split.augmented)
    assert list(choice.budgets.values()) == [GB * percent // 100 for percent in percents if percent]
    could = {name for name, is_able in (("memory", shared >= 2 * GB), ("redis", has_redis)) if is_able}
    assert set(plan.predictions) == (could if store == "auto" else {store})


def test_a_plan_needs_the_store_that_would_be_taken_without_one() -> None:
    """A training takes it and divides by rules of thumb; a plan cannot say what that brings."""
    needs = replace(NEEDS, profile=(profile := replace(PROFILE, stores={"redis": FAST})))
    assert choose_tiers(config(), needs).store == "memory"
    with pytest.raises(NotFoundError, match="no store 'memory' was measured; there are redis"):
        plan_tiers(config(), needs, profile)


def test_a_profile_decides_about_encoded_samples_alone() -> None:
    """If decoded samples may not be kept, encoded samples pay off if storage is slow, but not if decoding is slow."""
    slow_storage = replace(PROFILE, storage_bytes_per_s=1e6)
    for profile, tiers in ((PROFILE, []), (slow_storage, ["encoded"])):
        choice = choose_tiers(config(), replace(NEEDS, keeps_decoded=False, profile=profile))
        assert list(choice.budgets) == tiers


SHARING = replace(NEEDS, keeps_augmented=True, order=SampleOrder(may_reorder=True))


@pytest.mark.parametrize(
    ("settings", "needs", "sampler"),
    [
        ({}, SHARING, "static"),
        ({"split": "0-50-50"}, SHARING, "coordinated"),
        ({"jobs": 4}, SHARING, "coordinated"),
        ({"jobs": 4}, replace(SHARING, order=SampleOrder(may_reorder=True, is_seeded=True)), "static"),
        ({"jobs": 4}, replace(SHARING, order=SampleOrder()), "static"),
        ({"jobs": 4}, replace(SHARING, keeps_augmented=False), "static"),
        ({"split": "0-50-50", "sampler": "static"}, SHARING, "static"),
        (
            {"split": "0-50-50", "sampler": "coordinated"},
            replace(SHARING, order=SampleOrder(may_reorder=True, is_seeded=True)),
            "coordinated",
        ),
        ({"sampler": "coordinated"}, SHARING, "coordinated"),
        ({"sampler": "opportunistic"}, SHARING, "opportunistic"),
        ({"sampler": "opportunistic"}, replace(SHARING, keeps_augmented=False), "static"),
    ],
)
def test_the_sampler(settings: dict[str, Any], needs: CacheNeeds, sampler: str) -> None:
    chosen = config(**settings)
    choice = choose_tiers(chosen, needs)
    assert choose_sampler(chosen, choice.budgets, needs) == sampler
    if sampler == "coordinated" and "split" not in settings:
        assert choice.budgets == {"decoded": GB * 7 // 10, "augmented": GB * 3 // 10}


def test_a_profile_divides_for_several_trainings() -> None:
    """Samples that four trainings prepare for each other need little space. The rest is best used for decoded samples, which all trainings use."""
    limited = replace(SHARING, profile=PROFILE)
    budgets = choose_tiers(config(jobs=4), limited).budgets
    assert set(budgets) == {"decoded", "augmented"}
    assert budgets["augmented"] > 0


@pytest.mark.parametrize(
    ("split", "found"),
    [("50-40-0", "add up to 100"), ("half", "write auto"), ("-1-101-0", "write auto")],
)
def test_a_split_that_is_none_is_refused(split: str, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        config(split=split)
