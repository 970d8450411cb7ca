"""How fast real stores are, with values of samples; trainings' own budgets and samples are as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from modyn.cache.sample_codec import SampleCodec
from modyn.cache.tiers.memory_tier import MemoryTier
from modyn.cache.tiers.redis_tier import RedisTier
from modyn.cache.tiers.stores import memory_usage
from modyn.cache.tiers.tier import CacheTier, TierPlace
from modyn.config.system import SystemConfig
from modyn.records import keys_array
from modyn.trainer_server.cache_plan.store_rates import FormSizes, ReadingWorkers, known_stores, most_stored_bytes, store_rates
from tests.support.running_redis import BreakableRedis, running_redis
from tests.support.step_clock import StepClock

VALUES = [torch.full((100,), float(i)) for i in range(20)]
OWN = TierPlace("decoded", b"own", 10**6)
THREADS = ReadingWorkers(2, are_processes=False)


@pytest.fixture(scope="module")
def server() -> Iterator[BreakableRedis]:
    with running_redis() as server:
        yield server


def with_a_sample(tier: CacheTier) -> CacheTier:
    tier.open()
    assert tier.put(keys_array([7]), [b"kept"]).all()
    return tier


@pytest.mark.parametrize(
    "workers",
    [THREADS, pytest.param(ReadingWorkers(2, are_processes=True), marks=pytest.mark.slow)],
    ids=["threads", "processes"],
)
def test_stores_are_measured_and_nothing_of_others_changes(
    tmp_path: Path, server: BreakableRedis, workers: ReadingWorkers
) -> None:
    folder = tmp_path / "shared"
    owned: list[CacheTier] = [with_a_sample(MemoryTier(OWN, folder)), with_a_sample(RedisTier(server.url, OWN))]
    names = server.ask("KEYS", "*")
    rates, notes = store_rates({"memory": str(folder), "redis": server.url}, VALUES, 8, workers, 0.5, StepClock())
    assert rates.keys() == {"memory", "redis"}
    assert notes == []
    assert all(rate > 0 for found in rates.values() for rate in (found.read_bytes_per_s, found.write_bytes_per_s))
    for tier in owned:
        assert [bytes(buffer) for buffer in tier.get(keys_array([7])) if buffer is not None] == [b"kept"]
        assert (found := tier.stored()) is not None
        assert found.budget_bytes == OWN.budget_bytes
        tier.close()
    assert sorted(server.ask("KEYS", "*")) == sorted(names)
    assert [path.name for path in folder.iterdir()] == [OWN.name]
    assert len(memory_usage(folder).tiers) == 1


def test_a_store_that_is_away_or_refuses_is_left_out_with_the_reason(tmp_path: Path, server: BreakableRedis) -> None:
    stores = {"memory": str(tmp_path / "shared"), "redis": f"unix://{tmp_path}/none"}
    rates, (note,) = store_rates(stores, VALUES, 8, THREADS, 0.1, StepClock())  # type: ignore[arg-type]
    assert rates.keys() == {"memory"}
    assert note == "The store 'redis' was left out: it does not answer."
    server.ask("CONFIG", "SET", "maxmemory", 1000)
    try:
        rates, (note,) = store_rates({"redis": server.url}, VALUES, 8, THREADS, 0.1, StepClock())
    finally:
        server.ask("CONFIG", "SET", "maxmemory", 0)
    assert rates == {}
    assert "may hold 1,000" in note
    assert server.ask("KEYS", "*profiled*") == []
    (tmp_path / "file").touch()
    rates, (note,) = store_rates({"memory": str(tmp_path / "file")}, VALUES, 8, THREADS, 0.1, StepClock())
    assert rates == {}
    assert "for the cache" in note


def test_what_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def clock() -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store_rates({"memory": str(tmp_path / "shared")}, VALUES, 8, THREADS, 0.1, clock)
    assert not (tmp_path / "shared").exists()


def test_the_stores_are_those_of_trainings(tmp_path: Path) -> None:
    assert known_stores(SystemConfig(state_dir=tmp_path)).keys() == {"memory"}
    found = known_stores(SystemConfig(state_dir=tmp_path, redis_url="redis://host/0"))
    assert found["redis"] == "redis://host/0"
    assert most_stored_bytes() >= 1 << 20


def test_sizes_are_those_of_the_codec() -> None:
    sizes = FormSizes()
    sizes.add([(1.0, torch.zeros(3)), torch.zeros(40)])
    codec = SampleCodec()
    assert sizes.mean_bytes == (len(codec.encode((1.0, torch.zeros(3)))) + len(codec.encode(torch.zeros(40)))) / 2
    sizes.add(["text"])
    sizes.add([torch.zeros(1)])
    assert "str" in (sizes.refusal or "")
    assert sizes.mean_bytes is None
