"""The content of stores is counted and cleared without knowing its namespaces."""

from __future__ import annotations

import fcntl
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from modyn.cache.keys import NAMESPACE_BYTES, TierName
from modyn.cache.tiers.memory_tier import LOCK, MemoryTier
from modyn.cache.tiers.redis_tier import RedisTier
from modyn.cache.tiers.stores import (
    TIERS,
    Adopts,
    StoreUsage,
    check_redis_access,
    check_redis_room,
    claim_budgets,
    clear_memory,
    clear_redis,
    memory_usage,
    redis_usage,
)
from modyn.cache.tiers.tier import CacheTier, StoredTier, TierPlace
from modyn.errors import ConfigError, ConflictError, UnavailableError
from tests.support.running_redis import BreakableRedis, running_cluster, running_redis

BUDGETS = {"encoded": 160_000, "decoded": 320_000}
BUFFERS = [b"x" * 100] * 30


@dataclass(frozen=True)
class Store:
    """A store of each type."""

    tier: Callable[[TierPlace], CacheTier]
    usage: Callable[[], StoreUsage]
    clear: Callable[..., int]


@pytest.fixture(scope="module", params=["memory", "redis", "cluster"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if request.param == "memory":
        folder = tmp_path_factory.mktemp("memory") / "cache"
        yield Store(lambda place: MemoryTier(place, folder), partial(memory_usage, folder), partial(clear_memory, folder))
        return
    with running_redis() if request.param == "redis" else running_cluster("secret") as server:
        yield Store(
            lambda place: RedisTier(server.url, place, timeout_s=20.0),
            partial(redis_usage, server.url),
            partial(clear_redis, server.url),
        )


def fill(store: Store, name: TierName, namespace: bytes, num: int) -> int:
    """Store samples in a tier. Returns the number of bytes that they occupy."""
    tier = store.tier(TierPlace(name, namespace, BUDGETS[name]))
    tier.open()
    assert tier.put(np.arange(num), BUFFERS[:num]).all()
    tier.close()
    return num * tier.charge(100)


def test_tiers_are_counted_over_all_namespaces_and_cleared(store: Store) -> None:
    assert store.usage().tiers == ()
    assert store.clear() == 0
    used = fill(store, "decoded", b"namespace 1 ", 16) + fill(store, "decoded", b"namespace 2 ", 4)
    encoded = fill(store, "encoded", b"namespace 1 ", 7)
    expected = (StoredTier("encoded", 160_000, encoded, 7, 1), StoredTier("decoded", 320_000, used, 20, 2))
    for _ in range(2):
        assert store.usage().tiers == expected
    assert store.usage().is_reachable
    assert store.usage().used_bytes == used + encoded
    assert store.clear(("decoded",)) == used
    assert store.usage().tiers == expected[:1]
    assert store.clear() == encoded
    assert store.usage().tiers == ()


def test_what_is_evicted_is_counted_until_the_tier_is_cleared(store: Store) -> None:
    """By a sampler, in two namespaces; and with all samples of a tier when it is divided again."""

    def evicted() -> list[tuple[int, int]]:
        return [(tier.num_evicted, tier.evicted_bytes) for tier in store.usage().tiers]

    tiers = [store.tier(TierPlace("decoded", namespace, 320_000)) for namespace in (b"namespace 1 ", b"namespace 2 ")]
    size = tiers[0].charge(100)
    for tier in tiers:
        tier.open()
        assert tier.put(np.arange(16), BUFFERS[:16]).all()
    assert evicted() == [(0, 0)]
    tiers[0].drop(np.array([3, 4, 4, 77]))
    assert evicted() == [(2, 2 * size)]
    assert tiers[0].put(np.array([3, 5]), BUFFERS[:2]).all()  # A sample in the place of its older value is not evicted.
    tiers[1].drop(np.arange(16))
    assert evicted() == [(18, 18 * size)]
    assert store.tier(TierPlace("decoded", b"", 0)).stored() == store.usage().tiers[0]
    for tier in tiers:
        tier.close()
    assert store.clear() == 15 * size
    fill(store, "decoded", b"namespace 1 ", 1)
    assert evicted() == [(0, 0)]
    store.clear()


def test_a_training_continues_after_a_clear_and_keeps_again(store: Store) -> None:
    tier = store.tier(TierPlace("decoded", b"namespace 1 ", 320_000))
    tier.open()
    keys = np.arange(5)
    assert tier.put(keys, BUFFERS[:5]).all()
    store.clear()
    assert tier.get(keys) == [None] * 5
    assert tier.put(keys, BUFFERS[:5]).all()
    assert store.usage().tiers == (StoredTier("decoded", 320_000, 5 * tier.charge(100), 5, 1),)
    tier.close()
    store.clear()


def test_after_a_clear_another_budget_may_be_given(store: Store) -> None:
    fill(store, "encoded", b"namespace 1 ", 1)
    store.clear()
    tier = store.tier(TierPlace("encoded", b"namespace 1 ", 16_000))
    tier.open()
    assert [stored.budget_bytes for stored in store.usage().tiers] == [16_000]
    tier.close()
    store.clear()


def test_looking_makes_nothing(tmp_path: Path) -> None:
    assert memory_usage(tmp_path / "none") == StoreUsage("memory", str(tmp_path / "none"), ())
    assert clear_memory(tmp_path / "none") == 0
    assert list(tmp_path.iterdir()) == []


def test_looking_keeps_nothing_alive(server: BreakableRedis) -> None:
    tier = RedisTier(server.url, TierPlace("decoded", b"namespace 1 ", 320_000), timeout_s=20.0)
    tier.open()
    assert tier.put(np.arange(1), BUFFERS[:1]).all()
    names = server.ask("KEYS", "*")
    assert len(names) == 2
    for name in names:
        server.ask("EXPIRE", name, 50)
    assert redis_usage(server.url).tiers[0].num_samples == 1
    assert all(server.ask("TTL", name) <= 50 for name in names)
    tier.close()


@pytest.fixture
def server() -> Iterator[BreakableRedis]:
    with running_redis() as server:
        yield server


def test_a_redis_that_is_away_is_shown_and_not_cleared(server: BreakableRedis) -> None:
    server.kill()
    usage = redis_usage(server.url)
    assert (usage.tiers, usage.is_reachable) == ((), False)
    with pytest.raises(UnavailableError, match="redis.sock does not answer, so the cache there is not cleared"):
        clear_redis(server.url)


def test_a_tier_that_a_process_holds_is_not_cleared_and_named(tmp_path: Path) -> None:
    tier = MemoryTier(TierPlace("decoded", b"namespace 1 ", 320_000), tmp_path)
    tier.open()
    assert tier.put(np.arange(1), BUFFERS[:1]).all()
    held = os.open(tmp_path / "decoded" / LOCK, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(UnavailableError, match="cannot clear the tier 'decoded' in .*: a process keeps it locked"):
        clear_memory(tmp_path, patience_s=0)
    os.close(held)
    assert clear_memory(tmp_path) == tier.charge(100)
    assert TIERS == ("encoded", "decoded", "augmented")


@pytest.mark.parametrize("is_used", [False, True], ids=["idle", "in use"])
@pytest.mark.parametrize(
    ("held", "wanted", "adopts", "when_idle", "when_used"),
    [
        ({}, {"decoded": 10}, Adopts.SAME_TIERS, {"decoded": 10}, {"decoded": 10}),
        (
            {"encoded": 4, "decoded": 6},
            {"decoded": 10},
            Adopts.SAME_TIERS,
            {"encoded": 4, "decoded": 6},
            {"encoded": 4, "decoded": 6},
        ),
        ({"encoded": 4, "decoded": 6}, {"decoded": 10}, Adopts.IN_USE, {"decoded": 10}, {"encoded": 4, "decoded": 6}),
        ({"decoded": 10}, {"decoded": 5, "augmented": 5}, Adopts.SAME_TIERS, {"decoded": 5, "augmented": 5}, {"decoded": 10}),
        ({"decoded": 10}, {"decoded": 5, "augmented": 5}, Adopts.NONE, {"decoded": 5, "augmented": 5}, None),
        ({"decoded": 10}, {"decoded": 20}, Adopts.SAME_TIERS, {"decoded": 20}, None),
    ],
    ids=["first", "the same tiers", "the same tiers, planned again", "another tier", "another tier, by name", "another size"],
)
def test_trainings_agree_on_a_division(
    held: dict[TierName, int],
    wanted: dict[TierName, int],
    adopts: Adopts,
    when_idle: dict[TierName, int],
    when_used: dict[TierName, int] | None,
    is_used: bool,
) -> None:
    def open_tier(name: TierName, budget: int) -> None:
        if is_used and held and held.get(name, 0) != budget and name in held:
            raise ConflictError("in use")

    stored = [StoredTier(name, budget, 0, 0, 0) for name, budget in held.items()]
    expected = when_used if is_used else when_idle
    if expected is None:
        with pytest.raises(ConflictError):
            claim_budgets(wanted, lambda: stored, open_tier, adopts, patience_s=0)
    else:
        assert claim_budgets(wanted, lambda: stored, open_tier, adopts) == expected


@pytest.mark.parametrize("slow", TIERS)
def test_trainings_that_divide_a_store_at_once_agree(tmp_path: Path, slow: TierName) -> None:
    """This holds for any order of the trainings, and any point that the other training has reached."""
    plans: list[dict[TierName, int]] = [
        {"decoded": 70_000, "augmented": 30_000}, {"decoded": 100_000}, {"encoded": 100_000}, {"encoded": 20_000, "decoded": 80_000}
    ]  # fmt: skip

    def divide(folder: Path, plan: dict[TierName, int], pause_s: float) -> Mapping[TierName, int]:
        def open_tier(name: TierName, budget: int) -> None:
            time.sleep(pause_s * (name == slow))
            MemoryTier(TierPlace(name, bytes(NAMESPACE_BYTES), budget), folder).open()

        return claim_budgets(plan, lambda: memory_usage(folder).tiers, open_tier, Adopts.SAME_TIERS, patience_s=30)

    with ThreadPoolExecutor(2) as pool:
        for number, pair in enumerate(itertools.permutations(plans, 2)):
            folder = tmp_path / str(number)
            one, other = pool.submit(divide, folder, pair[0], 0.01), pool.submit(divide, folder, pair[1], 0.0)
            assert one.result() == other.result()
            assert one.result() in pair


def test_all_tiers_together_must_fit_into_a_redis(tmp_path: Path) -> None:
    with running_redis() as server:
        check_redis_room(server.url, 10**15)
        server.ask("CONFIG", "SET", "maxmemory", 100_000_000)
        check_redis_room(server.url, 100_000_000)
        with pytest.raises(
            ConfigError, match=r"is to have 100,000,001 bytes, and the Redis at .* may hold 100,000,000 \(`maxmemory`\): give"
        ):
            check_redis_room(server.url, 100_000_001)
    check_redis_room(f"unix://{tmp_path}/none", 10**15)


def test_a_redis_that_refuses_the_password_is_an_error_and_one_that_is_away_is_none() -> None:
    with running_redis() as server:
        check_redis_access(server.url)
        server.ask("CONFIG", "SET", "requirepass", "secret")
        check_redis_access(server.url + "?password=secret")
        for url in (server.url, server.url + "?password=wrong"):
            with pytest.raises(ConfigError, match="refuses this installation") as raised:
                check_redis_access(url)
            assert "wrong" not in raised.value.message.replace("wrong password", "")
        server.ask("ACL", "SETUSER", "reader", "on", ">pass", "+info", "~*", password="secret")
        with pytest.raises(ConfigError, match="run scripts"):
            check_redis_access(server.url + "?username=reader&password=pass")
        server.kill()
        check_redis_access(server.url)
