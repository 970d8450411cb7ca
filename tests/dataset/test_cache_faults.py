"""Whatever happens to Redis while samples are read: the same batches in the same order, and no error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from modyn.cache.keys import TierName
from modyn.cache.stores import redis_usage
from modyn.cache.tier import TierPlace
from modyn.dataset.batch import Batch
from modyn.dataset.cache_source import CacheSource
from modyn.dataset.config import DataConfig
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.testing.waiting import eventually
from tests.support.dripping_proxy import DrippingProxy
from tests.support.fake_dataset import FakeTriggerSet
from tests.support.running_redis import BreakableRedis, running_nodes, running_redis
from tests.support.sampled_jobs import Job

DATA = DataConfig(
    dataset_id="fake",
    bytes_parser_function="def bytes_parser_function(data):\n    return torch.frombuffer(bytearray(data), dtype=torch.int64)",
    random_transformations=("lambda x: x + torch.rand(1)",),
)
BUDGET = 1 << 22
NUM_BATCHES = 120
"""Over all epochs."""


@pytest.fixture
def redis() -> Iterator[BreakableRedis]:
    with running_redis() as server:
        yield server


def source(url: str, *tiers: TierName) -> CacheSource:
    return CacheSource("redis", url, {name: TierPlace(name, b"twelve bytes", BUDGET) for name in tiers})


def read(
    cache: CacheSource | None, short_cut: bool, at: int = -1, happens: Callable[[], object] = lambda: None
) -> list[list[object]]:
    """Three epochs of 40 batches; before batch number `at` something happens."""
    keys = FakeTriggerSet(np.arange(200), 60, answer_size=16, short_cut=short_cut, cache=cache)
    dataset = TriggerSetDataset(keys.info, DATA, keys, LoadOptions(5, drop_last=False, shuffle=True, seed=1, epochs=3))
    found: list[list[object]] = []
    for number, batch in enumerate(dataset.serve()):
        if number == at:
            happens()
        found.append(content(batch))
    assert len(found) == NUM_BATCHES
    return found


def content(batch: Batch) -> list[object]:
    return [batch.keys.tolist(), batch.data.tolist(), batch.labels.tolist()]  # type: ignore[union-attr]


def for_a_moment(server: BreakableRedis) -> None:
    """Longer than an answer is waited for."""
    server.suspend()
    time.sleep(0.2)
    server.go_on()


def again(server: BreakableRedis) -> None:
    server.kill()
    server.start()


FAULTS: dict[str, Callable[[BreakableRedis], object]] = {
    "killed": BreakableRedis.kill,
    "killed and started": again,
    "stopped": BreakableRedis.suspend,
    "stopped for a moment": for_a_moment,
    "flushed": lambda server: server.ask("FLUSHALL"),
    "out of memory": lambda server: server.ask("CONFIG", "SET", "maxmemory", "1mb"),
    "evicting": lambda server: server.ask("CONFIG", "SET", "maxmemory", "1200kb", "maxmemory-policy", "allkeys-random"),
    "asks for a password": lambda server: server.ask("CONFIG", "SET", "requirepass", "secret"),
    "full of others' samples": lambda server: server.ask("SET", "other", "x" * 100_000),
}


@pytest.mark.parametrize("short_cut", [False, True], ids=["flight", "local"])
@pytest.mark.parametrize("fault", FAULTS)
def test_batches_are_the_same_whatever_happens_to_redis(redis: BreakableRedis, fault: str, short_cut: bool) -> None:
    expected = read(None, short_cut)
    cache = source(redis.url, "decoded", "encoded")

    def filled() -> bool:
        assert read(cache, short_cut) == expected
        usage = redis_usage(redis.url)
        return any(tier.num_samples == 200 for tier in usage.tiers)

    # On a machine that is busy an answer may come too late, and Redis is left alone for a while.
    eventually(filled)
    assert read(cache, short_cut, 20, lambda: FAULTS[fault](redis)) == expected
    redis.go_on()


@pytest.mark.parametrize("serves_part", [False, True], ids=["whole", "in part"])
@pytest.mark.parametrize("short_cut", [False, True], ids=["flight", "local"])
def test_batches_are_the_same_when_a_node_of_a_cluster_dies(short_cut: bool, serves_part: bool) -> None:
    """The other nodes go on without its slots, or refuse everything. How many samples come from the cache depends on the machine."""
    expected = read(None, short_cut)
    with running_nodes(3, "secret", serves_part) as nodes:
        cache = source(nodes[0].url, "decoded", "encoded")
        assert read(cache, short_cut) == expected
        assert read(cache, short_cut, 20, nodes[1].kill) == expected
        assert read(cache, short_cut, 20, nodes[1].start) == expected
        # The one that is asked first, too.
        assert read(cache, short_cut, 20, nodes[0].kill) == expected


def test_trainings_that_share_samples_go_on_when_a_node_of_a_cluster_dies() -> None:
    places: dict[TierName, TierPlace] = {
        name: TierPlace(name, name.encode().ljust(12), BUDGET) for name in ("augmented", "decoded")
    }
    with running_nodes(3, "secret") as nodes:
        source = CacheSource("redis", nodes[0].url, places, sampler="coordinated")
        jobs = [Job(source, seed, short_cut=True) for seed in range(2)]
        for number in range(27):
            if number == 10:
                nodes[2].kill()
            for job in jobs:
                job.read(1)
        for job in jobs:
            job.read()
            job.check()


@pytest.mark.parametrize("fault", FAULTS)
def test_trainings_that_share_samples_go_on_whatever_happens_to_redis(redis: BreakableRedis, fault: str) -> None:
    """Each serves every sample once an epoch, and none is served twice; where Redis holds what it is given, they share again."""
    places: dict[TierName, TierPlace] = {
        name: TierPlace(name, name.encode().ljust(12), BUDGET) for name in ("augmented", "decoded")
    }
    jobs = [Job(CacheSource("redis", redis.url, places, sampler="coordinated"), seed, short_cut=True) for seed in range(2)]
    for number in range(27):
        if number == 10:
            FAULTS[fault](redis)
        for job in jobs:
            job.read(1)
    redis.go_on()
    for job in jobs:
        job.read()
        job.check()


@pytest.mark.parametrize("fault", ["killed", "stopped", "asks for a password"])
def test_a_training_begins_while_redis_is_away(redis: BreakableRedis, fault: str) -> None:
    FAULTS[fault](redis)
    assert read(source(redis.url, "decoded"), True) == read(None, True)
    redis.go_on()


def test_batches_are_the_same_while_redis_is_slow(redis: BreakableRedis) -> None:
    """Each answer would take seconds: the first one is given up, and Redis is left alone for a while."""
    with DrippingProxy(redis.folder.parent / "slow", redis.url) as proxy:

        def slow_down() -> None:
            proxy.drips = True

        assert read(source(proxy.url, "decoded"), True, 50, slow_down) == read(None, True)
    (redis.folder.parent / "slow").unlink()


def test_it_is_used_again_when_it_is_back(redis: BreakableRedis) -> None:
    keys = FakeTriggerSet(np.arange(200), 60, short_cut=True, cache=source(redis.url, "decoded"))
    dataset = TriggerSetDataset(keys.info, DATA, keys, LoadOptions(5, shuffle=True, seed=1, epochs=100))
    killed = False
    for batch in dataset.serve():
        if batch.cached.decoded and not killed:
            again(redis)
            killed = True
        elif killed and batch.cached.decoded and batch.epoch > 5:
            return
        time.sleep(0.001)
    pytest.fail("nothing came from the cache after Redis was back")
