"""The result of `split: auto`, and when the split is planned again."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given

from modyn.cache.plan.performance_model import CacheStore, DatasetSizes, Split, TrainingNodes, Workload, predict
from modyn.cache.plan.split_plan import LEAST_GAIN, ParameterChange, changes, check_cache_size, compare_splits, plan_cache
from modyn.errors import InvalidArgumentError
from tests.cache.plan.test_performance_model import CACHES, WORKLOADS
from tests.support.cache_profiles import PROFILE

WORKLOAD = Workload(TrainingNodes(2000, 4000, network_bytes_per_s=1e9), DatasetSizes(1_000_000, 1e5, 5, 5), 5e7)
"""Storage limits it to 500 samples/s, 100 GB encoded."""
REDIS = CacheStore(100 * 10**9, 1e9)
MEMORY = CacheStore(50 * 10**9, 2e10, crosses_network=False)


def test_a_cache_that_pays_is_used_and_what_it_brings_is_said() -> None:
    plan = plan_cache(WORKLOAD, {"redis": REDIS})
    assert (plan.cache, plan.split) == ("redis", Split(100, 0, 0))
    assert (plan.samples_per_s, plan.without_cache_samples_per_s) == pytest.approx((2000, 500))
    assert plan.reason == (
        "A cache pays: 100-0-0 of redis would reach 2,000 samples/s, and no cache reaches 500, which storage limits; 300% is gained."
    )


@pytest.mark.parametrize(
    ("workload", "cache", "slowest"),
    [
        (replace(WORKLOAD, nodes=replace(WORKLOAD.nodes, accelerator_samples_per_s=100)), REDIS, "the accelerator"),
        (replace(WORKLOAD, storage_bytes_per_s=1e9, nodes=TrainingNodes(50, 50)), REDIS, "decoding"),
        (WORKLOAD, replace(REDIS, bytes_per_s=1e6), "storage"),
        (WORKLOAD, replace(REDIS, size_bytes=0), "storage"),
    ],
    ids=["slow accelerator", "slow augmentation", "slow cache", "no room"],
)
def test_where_no_cache_pays_none_is_used_and_the_reason_says_what_limits(
    workload: Workload, cache: CacheStore, slowest: str
) -> None:
    plan = plan_cache(workload, {"redis": cache}, num_trainings=1)
    assert (plan.cache, plan.split) == (None, None)
    assert plan.samples_per_s == plan.without_cache_samples_per_s
    assert plan.reason.startswith("No cache pays: ")
    assert f"which {slowest} limits; less than 3% is gained." in plan.reason


@pytest.mark.parametrize(("size_bytes", "pays"), [(990_000_000, False), (1_010_000_000, True)])
def test_a_gain_of_three_percent_pays(size_bytes: int, pays: bool) -> None:
    """One percent of the dataset is served four times as fast."""
    plan = plan_cache(WORKLOAD, {"redis": replace(REDIS, size_bytes=size_bytes)})
    assert (plan.cache is not None) == pays
    assert plan_cache(WORKLOAD, {"redis": replace(REDIS, size_bytes=size_bytes)}, least_gain=0.05).cache is None


def test_without_a_cache_there_is_nothing_to_plan() -> None:
    plan = plan_cache(WORKLOAD, {})
    assert (plan.cache, plan.split, plan.reason) == (None, None, "There is no cache to plan.")
    assert plan.samples_per_s == plan.without_cache_samples_per_s == pytest.approx(500)


def test_the_faster_of_two_caches_is_used_and_of_equal_ones_the_first() -> None:
    assert plan_cache(WORKLOAD, {"redis": replace(REDIS, size_bytes=MEMORY.size_bytes), "memory": MEMORY}, 1).cache == "redis"
    slow_to_decode = replace(WORKLOAD, nodes=replace(WORKLOAD.nodes, decode_and_augment_samples_per_s=600))
    caches = {"redis": replace(REDIS, size_bytes=MEMORY.size_bytes, bytes_per_s=5e8), "memory": MEMORY}
    assert (plan := plan_cache(slow_to_decode, caches, 1)).cache == "memory"
    assert plan.split is not None
    assert plan.split.decoded > 0


@pytest.mark.parametrize(("factor", "chosen"), [(0.5, "one"), (1.0, "one"), (1.02, "one"), (1.04, "other"), (4.0, "other")])
def test_the_first_cache_is_left_only_for_one_that_is_clearly_better(factor: float, chosen: str) -> None:
    """The cache is the bottleneck, so that rates are rates of the cache."""
    small = Workload(TrainingNodes(10_000, 10_000), DatasetSizes(1000, 1e5, 5, 5), 5e7)
    one = CacheStore(10**9, 1e8, crosses_network=False)
    plan = plan_cache(small, {"one": one, "other": replace(one, bytes_per_s=factor * one.bytes_per_s)}, 1)
    assert plan.cache == chosen
    assert list(plan.predictions) == ["one", "other"]
    assert plan.samples_per_s == pytest.approx(plan.predictions[chosen].best_samples_per_s)
    rest = "other" if chosen == "one" else "one"
    assert (f" {rest} would reach " in plan.reason) is (plan.predictions[rest].best_samples_per_s > 515)


@given(WORKLOADS, CACHES, CACHES)
def test_no_cache_is_predicted_to_bring_much_more_than_the_planned_one(
    workload: Workload, one: CacheStore, other: CacheStore
) -> None:
    caches = {"one": one, "other": other}
    plan = plan_cache(workload, caches)
    best = max(predict(workload, cache).best_samples_per_s for cache in caches.values())
    without = predict(workload, one).without_cache_samples_per_s
    assert (plan.cache is not None) == (best / without - 1 >= LEAST_GAIN)
    least = without if plan.cache is None else best / (1 + LEAST_GAIN)
    assert (1 - 3e-5) * least <= plan.samples_per_s <= max(best, without)
    if plan.cache is not None and plan.split is not None:
        assert plan.samples_per_s == predict(workload, caches[plan.cache]).of(plan.split)


@pytest.mark.parametrize(("factor", "again"), [(1.0, False), (1.2, False), (0.8, False), (1.21, True), (0.79, True)])
def test_rates_that_change_by_more_than_a_fifth_are_named(factor: float, again: bool) -> None:
    measured = replace(WORKLOAD, storage_bytes_per_s=WORKLOAD.storage_bytes_per_s * factor)
    expected = [ParameterChange("storage_bytes_per_s", 5e7, 5e7 * factor)] if again else []
    assert changes(WORKLOAD, measured) == expected
    assert changes(REDIS, replace(REDIS, bytes_per_s=1e9 * factor)) == (
        [ParameterChange("bytes_per_s", 1e9, 1e9 * factor)] if again else []
    )


def test_what_appears_disappears_or_grows_is_a_change() -> None:
    nodes = replace(WORKLOAD.nodes, accelerator_samples_per_s=900, network_gradient_bytes_per_sample=1.0)
    measured = replace(
        WORKLOAD, nodes=nodes, dataset=replace(WORKLOAD.dataset, num_samples=2_000_000), storage_crosses_network=False
    )
    found = [
        ParameterChange("accelerator_samples_per_s", math.inf, 900),
        ParameterChange("network_gradient_bytes_per_sample", 0, 1),
        ParameterChange("num_samples", 1_000_000, 2_000_000),
        ParameterChange("storage_crosses_network", 1, 0),
    ]
    assert changes(WORKLOAD, measured) == found
    assert changes(measured, WORKLOAD) == [ParameterChange(name, after, before) for name, before, after in found]
    assert changes(WORKLOAD, WORKLOAD) == []


def test_the_best_each_pure_one_that_of_today_and_none() -> None:
    predictions = predict(PROFILE.workload, PROFILE.cache_store("memory", 2 * 10**9), 1)
    rows = compare_splits(predictions, Split(58, 42, 0))
    assert [(row.name, row.split) for row in rows] == [
        ("best", str(predictions.best)), ("encoded", "100-0-0"), ("decoded", "0-100-0"), ("augmented", "0-0-100"), ("today", "58-42-0"),
        ("no cache", ""),
    ]  # fmt: skip
    assert rows[0].regret == 0
    assert all(row.samples_per_s == pytest.approx((1 - row.regret) * rows[0].samples_per_s) for row in rows)
    assert rows[-1].samples_per_s == 250
    assert [row.name for row in compare_splits(predictions)] == ["best", "encoded", "decoded", "augmented", "no cache"]


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (9 * 2**30, "larger than the memory of this machine, 8,589,934,592 bytes"),
        (99_999, "holds no sample: one has 100,000 bytes"),
    ],
)
def test_a_cache_that_cannot_be_made_or_holds_nothing_is_refused(num_bytes: int, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        check_cache_size(num_bytes, PROFILE.memory_bytes, PROFILE.encoded_bytes)
    check_cache_size(8 * 2**30, PROFILE.memory_bytes, PROFILE.encoded_bytes)
