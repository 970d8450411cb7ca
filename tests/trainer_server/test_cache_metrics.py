"""Prometheus metrics of a cache: the present content of the stores, and samples served to running trainings."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from modyn.cache.tiers.breaker import CircuitBreaker
from modyn.cache.tiers.memory_tier import MemoryTier
from modyn.cache.tiers.redis_tier import RedisTier
from modyn.cache.tiers.stores import StoreUsage
from modyn.cache.tiers.tier import CacheTier, TierPlace
from modyn.records import JobState, RunId
from modyn.testing.waiting import eventually
from modyn.trainer_server.cache_metrics import CacheCollector, RedisLook
from modyn.trainer_server.client import TrainingStatus
from tests.support.running_redis import running_redis

PLACE = TierPlace("decoded", b"twelve bytes", 102_400)
NAMES = ("budget_bytes", "used_bytes", "samples", "evicted_samples_total", "evicted_bytes_total")


def registered(folder: Path, redis_url: str | None = None, running: Sequence[TrainingStatus] = ()) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(CacheCollector(folder, redis_url, lambda: running))
    return registry


def values(registry: CollectorRegistry, store: str) -> list[float | None]:
    return [registry.get_sample_value(f"modyn_cache_{store}_{name}", {"tier": "decoded"}) for name in NAMES]


def use(tier: CacheTier) -> list[float]:
    """Keep four samples, of which one is evicted. Returns what is to be seen."""
    tier.open()
    assert tier.put(np.arange(4), [b"x"] * 4).all()
    tier.drop(np.arange(1))
    return [102_400, 3 * tier.charge(1), 3, 1, tier.charge(1)]


def test_budgets_bytes_and_evictions_are_those_of_now(tmp_path: Path) -> None:
    registry = registered(tmp_path / "cache")
    assert values(registry, "memory") == [None] * 5
    tier = MemoryTier(PLACE, tmp_path / "cache")
    tier.open()
    assert values(registry, "memory") == [102_400, 0, 0, 0, 0]
    assert values(registry, "memory") == [102_400, 0, 0, 0, 0]
    assert use(tier) == values(registry, "memory")
    assert registry.get_sample_value("modyn_cache_redis_up") is None
    tier.clear()
    assert values(registry, "memory") == [None] * 5


def test_a_redis_is_seen_while_it_answers(tmp_path: Path) -> None:
    with running_redis() as server:
        registry = registered(tmp_path / "cache", server.url)
        tier = RedisTier(server.url, PLACE, timeout_s=20.0)
        expected = use(tier)
        # On a machine that is busy, an answer may come too late for a scrape.
        eventually(lambda: values(registry, "redis") == expected)
        eventually(lambda: registry.get_sample_value("modyn_cache_redis_up") == 1)
        tier.close()
        server.kill()
        assert registry.get_sample_value("modyn_cache_redis_up") == 0
        assert values(registry, "redis") == [None] * 5


def test_a_look_that_hangs_is_not_waited_for_and_no_other_is_begun() -> None:
    release, looks = threading.Event(), list[CircuitBreaker]()
    found = StoreUsage("redis", "somewhere", ())

    def hang(breaker: CircuitBreaker) -> StoreUsage:
        looks.append(breaker)
        assert release.wait(60)
        return found

    look = RedisLook(hang, patience_s=0.01)
    assert [look.usage() for _ in range(3)] == [None] * 3
    assert len(looks) == 1
    release.set()
    eventually(lambda: look.usage() == found)
    assert len({id(breaker) for breaker in looks}) == 1


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_wrong_url_ends_no_scrape(tmp_path: Path) -> None:
    assert registered(tmp_path, "http://no.redis").get_sample_value("modyn_cache_redis_up") == 0


def test_trainings_that_run_are_seen_where_a_cache_takes_part(tmp_path: Path) -> None:
    without = TrainingStatus(
        RunId("a"), 0, JobState.RUNNING, samples_loaded=100, num_cached={"decoded": 0}, cache_work={"read": 0}
    )
    cached = {"encoded": 10, "decoded": 20, "augmented": 30}
    work = {"read": 5, "decoded": 6, "augmented": 7, "evicted": 8}
    with_cache = TrainingStatus(RunId("b"), 3, JobState.RUNNING, samples_loaded=100, num_cached=cached, cache_work=work)
    registry = registered(tmp_path, None, [without, with_cache])
    labels = {"run": "b", "trigger": "3"}
    found = {
        source: registry.get_sample_value("modyn_cache_training_samples", {**labels, "source": source})
        for source in ("storage", "encoded", "decoded", "augmented")
    }
    assert found == {"storage": 40, **cached}
    assert registry.get_sample_value("modyn_cache_training_decoded_samples", labels) == 40 + 10 + 6
    assert b'run="a"' not in generate_latest(registry)
