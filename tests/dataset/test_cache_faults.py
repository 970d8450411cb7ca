"""For any fault of Redis while samples are read, the batches and their order stay the same, and no error is raised."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from redis import Redis

from modyn.cache.keys import TierName
from modyn.cache.tiers.breaker import BreakerState
from modyn.cache.tiers.redis_address import TIMEOUT_S
from modyn.cache.tiers.redis_deadline import Deadline
from modyn.cache.tiers.tier import TierPlace
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.config import DataConfig
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.testing.waiting import PATIENCE_S, eventually
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
NUM_BATCHES = 40
"""Batches of each epoch."""


@pytest.fixture
def redis() -> Iterator[BreakableRedis]:
    with running_redis() as server:
        yield server


def source(url: str, *tiers: TierName) -> CacheSource:
    return CacheSource("redis", url, {name: TierPlace(name, b"twelve bytes", BUDGET) for name in tiers})


def is_asked(cache: CacheSource) -> bool:
    """Return whether Redis is asked now. After a slow answer or an outage, it is not asked for a while."""
    breaker = cache.breaker
    return breaker.state is not BreakerState.OPEN and Deadline(breaker, TIMEOUT_S).has_time


class Reading(NamedTuple):
    """Contents of the batches of all epochs."""

    content: list[list[object]]
    num_cached: list[int]
    """Samples of each batch that came from the cache."""


def read(
    cache: CacheSource | None,
    short_cut: bool,
    at: int = -1,
    happens: Callable[[], object] = lambda: None,
    *,
    only_if_served: bool = False,
    epochs: int = 3,
) -> Reading:
    """Epochs of 40 batches; before batch number `at` something happens, or only if samples came from the cache until then."""
    keys = FakeTriggerSet(np.arange(200), 60, answer_size=16, short_cut=short_cut, cache=cache)
    dataset = TriggerSetDataset(keys.info, DATA, keys, LoadOptions(5, drop_last=False, shuffle=True, seed=1, epochs=epochs))
    found = Reading([], [])
    for number, batch in enumerate(dataset.serve()):
        if number == at and (any(found.num_cached) or not only_if_served):
            happens()
        found.content.append([batch.keys.tolist(), batch.data.tolist(), batch.labels.tolist()])  # type: ignore[union-attr]
        found.num_cached.append(sum(batch.cached))
    assert len(found.content) == NUM_BATCHES * epochs
    return found


def for_a_moment(server: BreakableRedis) -> None:
    """Longer than an answer is waited for."""
    server.suspend()
    time.sleep(0.2)
    server.go_on()


def again(server: BreakableRedis) -> None:
    server.kill()
    server.start()


class Fault(NamedTuple):
    """A fault of Redis, and the action that ends the fault."""

    begin: Callable[[BreakableRedis], object]
    end: Callable[[BreakableRedis], object] = lambda server: None
    stops_hits: bool = False
    """From then on nothing comes from the cache."""


def _set(*settings: object) -> Callable[[BreakableRedis], object]:
    return lambda server: server.ask("CONFIG", "SET", *settings)


def _password(server: BreakableRedis) -> None:
    """Also for those that are connected."""
    server.ask("CONFIG", "SET", "requirepass", "secret")
    server.ask("CLIENT", "KILL", "TYPE", "normal", password="secret")


def _no_password(server: BreakableRedis) -> None:
    server.ask("CONFIG", "SET", "requirepass", "", password="secret")


def _no_memory(server: BreakableRedis) -> None:
    """Empty, so that there is something to keep; after nothing is kept any more."""
    server.ask("CONFIG", "SET", "maxmemory", "1mb")
    server.ask("FLUSHALL")


def _full_of_others(server: BreakableRedis) -> None:
    """The same, with a value of others that takes all memory."""
    server.ask("SET", "other", "x" * 10_000_000)
    server.ask("CONFIG", "SET", "maxmemory", "10mb")
    server.ask("DEL", *server.ask("KEYS", "modyn:*"))


FAULTS: dict[str, Fault] = {
    "killed": Fault(BreakableRedis.kill, BreakableRedis.start, stops_hits=True),
    "killed and started": Fault(again),
    "stopped": Fault(BreakableRedis.suspend, BreakableRedis.go_on, stops_hits=True),
    "stopped for a moment": Fault(for_a_moment),
    "flushed": Fault(lambda server: server.ask("FLUSHALL")),
    "out of memory": Fault(_no_memory, _set("maxmemory", 0), stops_hits=True),
    "evicting": Fault(
        _set("maxmemory", "1200kb", "maxmemory-policy", "allkeys-random"), _set("maxmemory", 0, "maxmemory-policy", "noeviction")
    ),
    "asks for a password": Fault(_password, _no_password, stops_hits=True),
    "full of others' values": Fault(_full_of_others, _set("maxmemory", 0), stops_hits=True),
}


WAYS = {False: "flight", True: "local"}
FLIGHT_IN_SLOW = pytest.mark.parametrize("short_cut", [pytest.param(False, marks=pytest.mark.slow), True], ids=WAYS.values())
LOCAL_IN_SLOW = pytest.mark.parametrize("short_cut", [False, pytest.param(True, marks=pytest.mark.slow)], ids=WAYS.values())


def each_fault(*in_gate: str) -> pytest.MarkDecorator:
    """Parametrize a test with all faults. In the gate are those of `in_gate`, with one way each: the same code asks the cache in both ways."""
    return pytest.mark.parametrize(
        ("fault", "short_cut"),
        [
            pytest.param(
                fault, way, id=f"{fault}-{name}", marks=[] if fault in in_gate and (number + way) % 2 else pytest.mark.slow
            )
            for number, fault in enumerate(FAULTS)
            for way, name in WAYS.items()
        ],
    )


@each_fault("killed", "stopped", "out of memory", "asks for a password")
def test_batches_are_the_same_for_any_fault_of_redis(redis: BreakableRedis, fault: str, short_cut: bool) -> None:
    """It serves samples before, and again after."""
    expected = read(None, short_cut).content
    cache = source(redis.url, "decoded", "encoded")

    def serves() -> bool:
        found = read(cache, short_cut)
        assert found.content == expected
        return any(found.num_cached[:40])  # what was kept before

    def begins_while_it_serves() -> bool:
        found = read(cache, short_cut, 20, lambda: FAULTS[fault].begin(redis), only_if_served=True)
        assert found.content == expected
        began = any(found.num_cached[:20])
        assert not (began and FAULTS[fault].stops_hits and any(found.num_cached[80:]))
        return began

    # On a machine that is busy an answer may come too late, and Redis is left alone for a while.
    eventually(lambda: is_asked(cache) and begins_while_it_serves())
    FAULTS[fault].end(redis)
    eventually(lambda: is_asked(cache) and serves())


@pytest.mark.parametrize(
    ("short_cut", "serves_part"),
    [pytest.param(False, False, marks=pytest.mark.slow), (True, True)],
    ids=["flight-whole", "local-in part"],
)
def test_batches_are_the_same_when_a_node_of_a_cluster_dies(short_cut: bool, serves_part: bool) -> None:
    """The other nodes continue without its slots, or refuse everything. The number of samples from the cache depends on the machine."""
    expected = read(None, short_cut).content
    with running_nodes(3, "secret", serves_part) as nodes:
        cache = source(nodes[0].url, "decoded", "encoded")
        assert read(cache, short_cut).content == expected
        assert read(cache, short_cut, 20, nodes[1].kill).content == expected
        assert read(cache, short_cut, 20, nodes[1].start).content == expected
        # The one that is asked first, too.
        assert read(cache, short_cut, 20, nodes[0].kill).content == expected


def sharing_jobs(url: str, short_cut: bool = True) -> list[Job]:
    """Two trainings with more epochs than the test reads."""
    places: dict[TierName, TierPlace] = {
        name: TierPlace(name, name.encode().ljust(12), BUDGET) for name in ("augmented", "decoded")
    }
    cache = CacheSource("redis", url, places, sampler="coordinated")
    return [Job(cache, seed, short_cut=short_cut, epochs=10**6) for seed in range(2)]


def share(jobs: list[Job]) -> bool:
    """Read a batch in each training. Returns whether a training was served a sample that another training prepared."""
    before = sum(job.num_augmented for job in jobs)
    for job in jobs:
        job.read(1)
    return sum(job.num_augmented for job in jobs) > before


def share_again(jobs: list[Job], timeout_s: float = PATIENCE_S) -> None:
    """Wait until a training is served a sample that another training prepared; a batch is read only when it may be."""
    cache = jobs[0].cache
    assert cache is not None
    eventually(lambda: is_asked(cache) and share(jobs), timeout_s=timeout_s)


def end(jobs: list[Job]) -> None:
    """Assert that each training served every sample once per epoch, and that no training was served a value twice."""
    for job in jobs:
        job.check_until_now()
        job.loader.close()


@pytest.mark.parametrize("number", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_trainings_that_share_samples_continue_when_a_node_of_a_cluster_dies(number: int) -> None:
    """What they share is on one node: whether that one dies depends on the name. How soon a Cluster answers again depends on the machine."""
    with running_nodes(3, "secret") as nodes:
        jobs = sharing_jobs(nodes[0].url)
        # Each batch asks three nodes, and after each slow answer up to 16 s pass.
        share_again(jobs, timeout_s=150.0)
        for happens in (nodes[number].kill, nodes[number].start):
            happens()
            for _ in range(20):
                share(jobs)
        end(jobs)


@each_fault("killed", "stopped", "evicting")
def test_trainings_that_share_samples_continue_for_any_fault_of_redis(redis: BreakableRedis, fault: str, short_cut: bool) -> None:
    """Each serves every sample once an epoch, and none is served twice; they share before, and again after."""
    jobs = sharing_jobs(redis.url, short_cut)
    share_again(jobs)
    FAULTS[fault].begin(redis)
    shared = [share(jobs) for _ in range(20)]
    if FAULTS[fault].stops_hits:
        assert not any(shared[10:])
    FAULTS[fault].end(redis)
    share_again(jobs)
    end(jobs)


@pytest.mark.parametrize("fault", ["killed", "stopped", "asks for a password"])
def test_a_training_begins_while_redis_is_away(redis: BreakableRedis, fault: str) -> None:
    FAULTS[fault].begin(redis)
    assert read(source(redis.url, "decoded"), True).content == read(None, True).content
    redis.go_on()


@pytest.fixture
def slow(redis: BreakableRedis) -> Iterator[DrippingProxy]:
    """What answers for a Redis. While it drips each answer would take seconds: the first one is given up, and Redis is left alone for a while."""
    path = redis.folder.parent / "slow"
    with DrippingProxy(path, redis.url) as proxy:
        yield proxy
    path.unlink()


@pytest.mark.slow
@FLIGHT_IN_SLOW
def test_batches_are_the_same_while_redis_is_slow(slow: DrippingProxy, short_cut: bool) -> None:
    """It serves samples before, and again after."""
    expected, cache = read(None, short_cut).content, source(slow.url, "decoded")

    def serves() -> bool:
        found = read(cache, short_cut)
        assert found.content == expected
        return any(found.num_cached[:40])  # what was kept before

    eventually(lambda: is_asked(cache) and serves())
    assert read(cache, short_cut, 50, lambda: setattr(slow, "drips", True)).content == expected
    assert not any(read(cache, short_cut).num_cached)
    slow.drips = False
    eventually(lambda: is_asked(cache) and serves())


@LOCAL_IN_SLOW
def test_trainings_that_share_samples_continue_while_redis_is_slow(slow: DrippingProxy, short_cut: bool) -> None:
    jobs = sharing_jobs(slow.url, short_cut)
    share_again(jobs)
    slow.drips = True
    share(jobs)
    assert not any(share(jobs) for _ in range(20))
    slow.drips = False
    share_again(jobs)
    end(jobs)


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


class _Deed:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


LARGE = "large"


def _values(deed: Path) -> dict[str, Callable[[bytes], bytes]]:
    """Values that others may write in place of a cached value."""
    layout = b'["numpy","|O",[1],[]]'
    forged = b"MDC" + bytes([3, 0, 0]) + len(layout).to_bytes(2, "little") + (8).to_bytes(8, "little") + layout
    return {
        "nothing": lambda _: b"",
        "a pickle": lambda _: pickle.dumps(_Deed(deed)),
        "part": lambda value: value[: len(value) // 2],
        "more": lambda value: value * 2,
        "changed": lambda value: value[:-1] + bytes([value[-1] ^ 1]),
        LARGE: lambda _: bytes(3 << 20),
        "forged": lambda _: bytes(8) + forged,
        "a number": lambda _: b"17",
    }


def _of_others(client: Any, key: bytes, what: str, change: Callable[[bytes], bytes]) -> None:
    """Change all that one key holds, in its own type; of many values every eighth, where all would take a gigabyte."""
    if client.type(key) == b"hash":
        for name, value in islice(client.hgetall(key).items(), 0, None, 8 if what == LARGE else 1):
            client.hset(key, name, change(value))
    else:
        client.set(key, change(client.get(key)))


def read_once(cache: CacheSource | None, short_cut: bool) -> list[list[object]]:
    """One epoch."""
    return read(cache, short_cut, epochs=1).content


@LOCAL_IN_SLOW
def test_batches_are_the_same_for_anything_that_others_write_into_redis(
    redis: BreakableRedis, short_cut: bool, tmp_path: Path
) -> None:
    """Pickles, wrong lengths, large ones, and into what counts them; nothing is unpickled."""
    expected, deed = read_once(None, short_cut), tmp_path / "deed"
    with Redis.from_url(redis.url) as client:
        for number, (what, change) in enumerate(_values(deed).items()):
            places: dict[TierName, TierPlace] = {
                name: TierPlace(name, bytes([number]) * 12, BUDGET) for name in ("decoded", "encoded")
            }
            cache = CacheSource("redis", redis.url, places)
            assert read_once(cache, short_cut) == expected
            for key in client.keys("modyn:cache:*"):
                _of_others(client, key, what, change)
            assert read_once(cache, short_cut) == expected, what
            client.flushall()
    assert not deed.exists()


@FLIGHT_IN_SLOW
def test_batches_are_the_same_where_others_exchange_values_and_types(redis: BreakableRedis, short_cut: bool) -> None:
    """Others write values of other samples, and keys of other types."""
    expected, cache = read_once(None, short_cut), source(redis.url, "decoded")

    def kept() -> list[bytes]:
        """On a machine that is busy, an answer may come too late, and Redis is left alone for a while."""
        assert read_once(cache, short_cut) == expected
        return list(client.keys("modyn:cache:*:twelve bytes"))

    with Redis.from_url(redis.url) as client:
        (key,) = eventually(lambda: kept() if is_asked(cache) else [])
        values = client.hgetall(key)
        names = [name for name in values if name != b"used"]
        # Each under the key of another sample.
        client.hset(key, mapping={name: values[other] for name, other in zip(names, names[1:] + names[:1], strict=True)})
        assert read_once(cache, short_cut) == expected
        for key in client.keys("modyn:*"):
            client.delete(key)
            client.set(key, "of another type")
        assert read_once(cache, short_cut) == expected


SLOW_VALUES = ("nothing", "part", "more", "a number")


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.slow if what in SLOW_VALUES else ()) for what in _values(Path())]
)
def test_trainings_that_share_samples_continue_for_anything_that_others_write_into_redis(
    redis: BreakableRedis, what: str, tmp_path: Path
) -> None:
    jobs, change = sharing_jobs(redis.url), _values(tmp_path / "deed")[what]
    share_again(jobs)
    with Redis.from_url(redis.url) as client:
        for key in client.keys("modyn:*"):
            _of_others(client, key, what, change)
        for _ in range(10):
            share(jobs)
        client.flushall()
    share_again(jobs)
    end(jobs)
    assert not (tmp_path / "deed").exists()
