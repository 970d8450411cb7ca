"""A Redis with any fault costs one time-out per try, and no operation on the tier fails."""

from __future__ import annotations

import inspect
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from hypothesis import example, given
from hypothesis import strategies as st
from redis.connection import AbstractConnection, DefaultParser, PythonRespSerializer
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from modyn.cache.keys import sample_keys
from modyn.cache.tiers.breaker import FORGIVEN_PART, BreakerState, CircuitBreaker
from modyn.cache.tiers.call_costs import MOST_FACTOR, MOST_PATIENCE, CallCosts
from modyn.cache.tiers.redis_address import CONNECT_TIMEOUT_S, TIMEOUT_S
from modyn.cache.tiers.redis_deadline import ANSWER_PART, SLOW_PART
from modyn.cache.tiers.redis_tier import CALL_SAMPLES, NUM_SHARDS, RedisTier
from modyn.cache.tiers.redis_tier_scripts import OVERHEAD_BYTES
from modyn.cache.tiers.tier import IDLE_S, IN_USE_S, TierPlace
from modyn.errors import ConfigError, ConflictError
from modyn.testing.waiting import eventually
from tests.cache.tiers.test_breaker import Clock
from tests.support.dripping_proxy import DrippingProxy
from tests.support.running_redis import BreakableRedis, running_cluster, running_nodes, running_redis
from tests.support.tls_proxy import tls_proxy

PLACE = TierPlace("decoded", b"twelve bytes", 10_000_000)
KEYS = np.arange(20)
BUFFERS = [bytes([i]) * 1000 for i in range(20)]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[BreakableRedis]:
    with running_redis() as server:
        yield server


@pytest.fixture
def server(shared_server: BreakableRedis) -> BreakableRedis:
    """A Redis without samples."""
    shared_server.ask("FLUSHALL")
    shared_server.ask("CONFIG", "SET", "maxmemory", "256mb")
    return shared_server


SHORT_S = 0.3
"""Time-out of tests that wait for it. Other tests use a time-out that even a busy machine does not exceed."""


class Tier:
    """A tier whose breaker uses a clock that the test sets."""

    def __init__(self, url: str, place: TierPlace = PLACE, timeout_s: float = 20.0) -> None:
        self.clock = Clock()
        # What is slow does not depend on what else the machine does.
        self.breaker = CircuitBreaker(self.clock, costs=CallCosts(load=lambda: 0.0))
        self.tier = RedisTier(url, place, self.breaker, timeout_s)
        self.tier.open()

    def keep(self) -> None:
        """On a machine that is busy, the first tries may be too slow."""

        def is_kept() -> bool:
            self.wait()
            return bool(self.tier.put(KEYS, BUFFERS).all()) and self.tier.get(KEYS) == BUFFERS

        eventually(is_kept)

    def assert_away(self) -> None:
        """Assert that every operation returns, and that Redis received only one request."""
        before = self.breaker.num_failures
        for _ in range(50):
            assert self.tier.get(KEYS) == [None] * 20
            assert not self.tier.put(KEYS, BUFFERS).any()
            self.tier.drop(KEYS)
            self.tier.clear()
            self.tier.open()
            usage = self.tier.usage()
            assert (usage.is_reachable, usage.used_bytes, usage.num_samples) == (False, 0, 0)
        assert self.breaker.num_failures == before + 1
        assert self.breaker.state is BreakerState.OPEN

    def wait(self) -> None:
        """Wait until the pause of the breaker is over."""
        self.clock.now += 16

    def come_back(self) -> None:
        """On a machine that is busy, the first tries may still be too slow."""

        def works() -> bool:
            self.wait()
            return self.tier.usage().is_reachable

        eventually(works)
        assert self.breaker.state is BreakerState.CLOSED


@pytest.fixture
def tier(server: BreakableRedis) -> Iterator[Tier]:
    tier = Tier(server.url)
    yield tier
    tier.tier.close()


def test_killed(server: BreakableRedis, tier: Tier) -> None:
    tier.keep()
    server.kill()
    tier.assert_away()
    tier.wait()
    tier.assert_away()
    server.start()
    tier.come_back()
    assert tier.tier.usage().used_bytes == 0
    tier.keep()


def test_stopped(server: BreakableRedis) -> None:
    tier = Tier(server.url, timeout_s=SHORT_S)
    tier.keep()
    server.suspend()
    tier.assert_away()
    for _ in range(3):
        tier.wait()
        tier.assert_away()
    server.go_on()
    tier.come_back()

    def is_there() -> bool:
        tier.wait()
        return tier.tier.get(KEYS) == BUFFERS

    eventually(is_there)
    tier.tier.close()


def test_stopped_before_the_first_call(server: BreakableRedis) -> None:
    server.suspend()
    tier = Tier(server.url, timeout_s=SHORT_S)
    assert tier.breaker.num_failures == 1
    tier.wait()
    tier.assert_away()
    server.go_on()
    tier.come_back()
    tier.keep()
    tier.tier.close()


def test_flushed(server: BreakableRedis, tier: Tier) -> None:
    tier.keep()
    assert tier.tier.usage().used_bytes == 20 * tier.tier.charge(1000)
    server.ask("FLUSHALL")
    assert tier.tier.get(KEYS) == [None] * 20
    assert tier.tier.usage().used_bytes == 0
    tier.keep()
    assert tier.breaker.num_failures == 0


def test_out_of_memory(server: BreakableRedis, tier: Tier) -> None:
    tier.keep()
    server.ask("CONFIG", "SET", "maxmemory", "1mb")
    with capture_logs() as logs:
        for _ in range(3):
            assert not tier.tier.put(KEYS + 100, BUFFERS).any()
    assert [(line["event"], line["tier"]) for line in logs] == [("cache_does_not_keep", "decoded")]
    assert tier.tier.get(KEYS) == BUFFERS
    tier.tier.drop(KEYS[:5])
    assert tier.tier.usage().used_bytes == 15 * tier.tier.charge(1000)
    assert tier.breaker.num_failures == 0
    server.ask("CONFIG", "SET", "maxmemory", "256mb")
    assert not tier.tier.put(KEYS + 100, BUFFERS).any(), "none are sent in vain for a while"
    tier.wait()
    assert tier.tier.put(KEYS + 100, BUFFERS).all()


def test_a_redis_that_may_not_hold_the_budget_is_refused_and_learns_no_budget(server: BreakableRedis) -> None:
    server.ask("CONFIG", "SET", "maxmemory", "5mb")
    with pytest.raises(ConfigError) as raised:
        Tier(server.url)
    for part in ("the tier 'decoded'", "10,000,000", server.url.removeprefix("unix://"), "5,242,880", "give the cache less"):
        assert part in raised.value.message
    Tier(server.url, TierPlace("decoded", b"twelve bytes", 5_000_000)).tier.close()


@pytest.mark.parametrize(("policy", "expected"), [("noeviction", []), ("allkeys-lru", ["cache_may_be_evicted"])])
def test_a_redis_that_evicts_is_warned_of_once(server: BreakableRedis, policy: str, expected: list[str]) -> None:
    server.ask("CONFIG", "SET", "maxmemory-policy", policy)
    try:
        with capture_logs() as lines:
            tier = Tier(server.url)
            tier.tier.open()
    finally:
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        tier.tier.close()
    assert [line["event"] for line in lines] == expected
    assert all(line["maxmemory_policy"] == policy for line in lines)


def test_a_cluster_that_may_not_hold_the_budget_is_refused_without_its_password() -> None:
    with running_cluster("secret") as node:
        Tier(node.url).tier.close()
        node.ask("CONFIG", "SET", "maxmemory", "5mb")
        with pytest.raises(ConfigError, match="may hold 5,242,880") as raised:
            Tier(node.url)
    assert "127.0.0.1:" in raised.value.message
    assert "secret" not in raised.value.message


def test_evicted_by_redis(server: BreakableRedis, tier: Tier) -> None:
    """What Redis drops by itself is used by nothing."""

    def evicted() -> int:
        stored = tier.tier.stored()
        assert stored is not None
        return stored.num_evicted

    tier.keep()
    tier.tier.drop(KEYS[:3])
    assert evicted() == 3
    assert server.ask("DEL", b"modyn:cache:{decoded.0}:" + PLACE.namespace) == 1
    assert evicted() == 20, "also before a script notices it"
    assert tier.tier.usage().used_bytes == 0
    assert evicted() == 20
    tier.keep()
    assert server.ask("DEL", b"modyn:cache:{decoded.0}") == 1
    tier.keep()
    assert tier.tier.usage().used_bytes == 20 * tier.tier.charge(1000)


def test_what_fits_no_more_when_it_is_written_is_dropped(server: BreakableRedis, tier: Tier) -> None:
    """Another process has stored samples since this process asked how many fit."""
    tier.keep()
    connection = tier.tier._connected()
    shard, names = connection.shards[0], sample_keys(np.arange(100, 112))
    large = [bytes(1 << 20)] * 12
    assert connection.write(shard, PLACE.namespace, names, large) == [1] * 9 + [0] * 3
    assert tier.tier.usage().num_samples == 29
    assert tier.tier.usage().used_bytes == 20 * tier.tier.charge(1000) + 9 * tier.tier.charge(1 << 20)
    # Again in their places, and one of them twice: it is counted once.
    assert connection.write(shard, PLACE.namespace, [*names[:2], names[0]], [b"small", bytes(10), b""]) == [1, 1, 1]
    assert tier.tier.usage().used_bytes == 20 * tier.tier.charge(1000) + 7 * tier.tier.charge(1 << 20) + 2 * OVERHEAD_BYTES + 10


def test_an_owner_with_another_budget_leaves_nothing(server: BreakableRedis, tier: Tier) -> None:
    tier.keep()
    connection = tier.tier._connected()
    with pytest.raises(ResponseError, match="^BUDGET 10000000"):
        connection.write(replace(connection.shards[0], budget=1), PLACE.namespace, sample_keys(np.arange(50, 53)), [b"new"] * 3)
    assert tier.tier.usage().num_samples == 20
    assert tier.tier.usage().used_bytes == 20 * tier.tier.charge(1000)


@pytest.mark.parametrize("call", [lambda tier: tier.get(KEYS), lambda tier: tier.put(KEYS, BUFFERS), lambda tier: tier.usage()])
def test_slow(server: BreakableRedis, tmp_path: Path, call: Callable[[RedisTier], object]) -> None:
    """Each byte arrives in time, but the whole answer does not."""
    direct = Tier(server.url)
    direct.keep()
    with DrippingProxy(server.folder.parent / "slow", server.url) as proxy:
        tier = Tier(proxy.url, timeout_s=SHORT_S)
        tier.keep()
        before = tier.breaker.num_failures
        proxy.drips = True
        call(tier.tier)
        assert tier.breaker.num_failures == before + 1
        assert tier.tier.get(KEYS) == [None] * 20
        tier.tier.close()
    (server.folder.parent / "slow").unlink()
    direct.tier.close()


STEP = st.tuples(st.sampled_from(["get", "put", "holds", "usage"]), st.floats(0, MOST_PATIENCE), st.floats(0, 30))
"""A call, how long each of its answers takes of the time-out, and how many time-outs pass before."""


@example([("get", 8.0, 0.0), ("get", 8.0, 1.0)])
@given(st.lists(STEP, max_size=40))
def test_slow_answers_take_a_bounded_time_together(server: BreakableRedis, steps: list[tuple[str, float, float]]) -> None:
    """Each answer comes in time. Slow calls take together at most twice the time for one answer, and in the long run at most a twentieth of all
    time. The clock moves only before answers and between calls."""
    clock, answer_s, timeout_s = Clock(), 0.0, 100.0

    def pass_time(piece: bytes) -> None:
        # What a transaction queues is answered at once; its own answer is the last.
        if set(piece.split(b"\r\n")) - {b"+OK", b"+QUEUED", b""}:
            clock.now += answer_s

    with (
        tempfile.TemporaryDirectory(prefix="modyn-") as folder,
        DrippingProxy(Path(folder) / "slow", server.url, pass_time) as proxy,
    ):
        breaker = CircuitBreaker(clock)
        tier = RedisTier(proxy.url, PLACE, breaker, timeout_s)
        tier.open()
        begun, slow_s = clock.now, 0.0
        for name, part, pause in steps:
            answer_s = 0.0
            clock.now += pause * timeout_s
            answer_s, before = part * timeout_s, clock.now
            calls: dict[str, Callable[[], object]] = {
                "get": lambda: tier.get(KEYS),
                "put": lambda: tier.put(KEYS, BUFFERS),
                "holds": lambda: tier.holds(KEYS),
                "usage": tier.usage,
            }
            calls[name]()
            took_s = clock.now - before
            slow_s += max(0.0, took_s - MOST_FACTOR * (SLOW_PART + 2 * ANSWER_PART + 0.01) * timeout_s)
            assert slow_s <= 2 * MOST_PATIENCE * timeout_s + FORGIVEN_PART * (clock.now - begun) + 1e-6
        tier.close()


def test_a_redis_that_never_answers_is_asked_once_a_pause_by_any_read() -> None:
    """By both tiers of a training, which has a time-out for a connection and one for an answer; by a clock that stands still."""
    with tempfile.TemporaryDirectory(prefix="modyn-") as folder, socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{folder}/silent")
        silent.listen(100)
        clock = Clock()
        breaker = CircuitBreaker(clock)
        tiers = [RedisTier(f"unix://{folder}/silent", replace(PLACE, name=name), breaker) for name in ("encoded", "decoded")]
        for num_tries in range(1, 6):
            for _ in range(20):  # batches
                for tier in tiers:
                    tier.open()
                    assert tier.get(KEYS) == [None] * 20
                    assert not tier.holds(KEYS).any()
                    assert not tier.put(KEYS, BUFFERS).any()
            assert breaker.num_failures == num_tries
            clock.now += 16
        silent.settimeout(0)
        connections = []
        with suppress(BlockingIOError):
            while True:
                connections.append(silent.accept()[0])
        questions = [connection.recv(1 << 16) for connection in connections]
        for connection in connections:
            connection.close()
    assert len(questions) == 5
    # Each is the first one of a connection: what was asked over one that timed out is not asked again.
    assert all(question.count(b"\r\nINFO\r\n") == 1 for question in questions)
    assert CONNECT_TIMEOUT_S + TIMEOUT_S <= 0.25


def test_wrong_password() -> None:
    with running_redis() as server:
        server.ask("CONFIG", "SET", "requirepass", "right")
        with capture_logs() as logs:
            tier = Tier(f"{server.url}?password=wr0ng")
            tier.wait()
            tier.assert_away()
        assert [line["event"] for line in logs] == ["cache_away"]
        assert "password" in str(logs)
        assert "wr0ng" not in str(logs)
        right = Tier(f"{server.url}?password=right")
        right.keep()
        server.ask("CONFIG", "SET", "requirepass", "wr0ng", password="right")
        tier.come_back()
        assert tier.tier.get(KEYS) == BUFFERS
        tier.tier.close()
        right.tier.close()


def test_tls(server: BreakableRedis, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    with tls_proxy(context, Path(server.url.removeprefix("unix://"))) as port:
        tier = Tier(f"rediss://localhost:{port}/0?ssl_ca_certs={tmp_path}/ca.crt")
        tier.keep()
        stranger = Tier(f"rediss://localhost:{port}/0")
        assert stranger.tier.get(KEYS) == [None] * 20
        assert stranger.breaker.num_failures == 1
        tier.tier.close()


def test_a_refusal_of_a_command_is_a_failure(server: BreakableRedis, tier: Tier) -> None:
    server.ask("SET", b"modyn:cache:{decoded.0}:" + PLACE.namespace, b"something else")
    assert tier.tier.get(KEYS) == [None] * 20
    assert tier.breaker.num_failures == 1


def test_nothing_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for url in (f"redis://127.0.0.1:{port}/0", f"unix://{tmp_path}/none", "redis://no.such.host.invalid/0"):
        tier = Tier(url)
        assert tier.breaker.num_failures == 1
        tier.wait()
        tier.assert_away()


def test_the_library_has_the_methods_that_bound_and_pack_calls() -> None:
    """`redis_address.py` overrides them: none may be renamed within the bounds of pyproject.toml."""
    parser: Any = DefaultParser
    assert list(inspect.signature(parser.read_from_socket).parameters) == ["self", "timeout", "raise_on_timeout"]
    assert list(inspect.signature(parser.on_connect).parameters) == ["self", "connection", "kwargs"]
    assert callable(parser.read_response)
    assert list(inspect.signature(PythonRespSerializer).parameters) == ["buffer_cutoff", "encode"]
    assert {"command_packer", "parser_class"} <= inspect.signature(AbstractConnection).parameters.keys()


@pytest.mark.parametrize(
    "url", ["http://host", "redis://:secret@host:port/0", "unix://socket?socket_timeout=secret", "redis://host?nonsense=secret"]
)
def test_a_wrong_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError, match="the URL of Redis is wrong: write redis://") as raised:
        RedisTier(url, PLACE)
    assert "secret" not in raised.value.message


def test_keys_expire_when_nothing_asks_for_them(server: BreakableRedis, tier: Tier) -> None:
    tier.keep()
    names = server.ask("KEYS", "*")
    assert len(names) == 2
    for name in names:
        server.ask("PERSIST", name)
    assert tier.tier.get(KEYS) == BUFFERS
    assert all(0 < server.ask("TTL", name) <= IDLE_S for name in names)


def test_a_budget_holds_for_as_long_as_the_tier_is_used(server: BreakableRedis, tier: Tier) -> None:
    tier.keep()
    other = RedisTier(server.url, replace(PLACE, budget_bytes=PLACE.budget_bytes + 1))
    with pytest.raises(ConflictError):
        other.open()
    server.ask("EXPIRE", b"modyn:cache:{decoded.0}", IDLE_S - IN_USE_S - 1)
    other.open()
    assert other.usage().used_bytes == 0
    stored = other.stored()
    assert stored is not None
    assert (stored.num_evicted, stored.evicted_bytes) == (20, 20 * other.charge(1000)), "with all that the tier held"
    assert other.put(KEYS, BUFFERS).all()
    with pytest.raises(ConflictError):
        tier.tier.open()
    other.close()


def test_scripts_do_not_need_to_be_there(server: BreakableRedis, tier: Tier) -> None:
    tier.keep()
    server.ask("SCRIPT", "FLUSH")
    tier.keep()


def test_a_sample_that_would_not_pass_in_time_is_not_kept(tier: Tier) -> None:
    large = memoryview(np.zeros((64 << 20) + 1, np.uint8).data)
    assert tier.tier.put(KEYS[:2], [large, b"small"]).tolist() == [False, True]
    assert tier.breaker.num_failures == 0


def test_a_cluster_of_three_nodes() -> None:
    """Each part of a tier is whole at one node. The part of a node that dies is lost; the others are there again once it is back."""
    with running_nodes(3, "secret") as nodes:
        tier = Tier(nodes[0].url)
        tier.keep()
        assert all(node.num_keys() > 0 for node in nodes)
        assert sum(node.num_keys() for node in nodes) == 2 * NUM_SHARDS, "a tier and a namespace, of each part"
        usage = tier.tier.usage()
        assert (usage.used_bytes, usage.num_samples) == (20 * tier.tier.charge(1000), 20)
        tier.tier.drop(KEYS[:8])
        stored = tier.tier.stored()
        assert stored is not None
        assert (stored.num_samples, stored.num_evicted, stored.evicted_bytes) == (12, 8, 8 * tier.tier.charge(1000))
        nodes[1].kill()
        found = tier.tier.get(KEYS)
        assert all(buffer in (None, BUFFERS[key]) for key, buffer in enumerate(found))
        assert found.count(None) > 8, "the part of the node that is dead"
        assert tier.breaker.state is BreakerState.OPEN
        assert tier.tier.get(KEYS) == [None] * 20, "nothing is asked until the pause is over"
        tier.wait()
        assert not tier.tier.put(KEYS, BUFFERS).all()
        nodes[1].start()
        eventually(lambda: all(node.knows(3) for node in nodes))
        tier.come_back()
        tier.keep()
        tier.tier.close()


def test_a_cluster() -> None:
    """A Cluster of one node, over TCP with a password: it has all slots."""
    with running_cluster("secret") as server:
        tier = Tier(server.url, timeout_s=1.0)
        other = Tier(server.url, TierPlace("decoded", b"other", PLACE.budget_bytes))
        tier.keep()
        assert other.tier.get(KEYS) == [None] * 20
        many = np.arange(NUM_SHARDS * CALL_SAMPLES + 1)
        assert other.tier.put(many, [b"x"] * len(many)).all()
        assert other.tier.get(many) == [b"x"] * len(many)
        usage = tier.tier.usage()
        assert usage.used_bytes == 20 * tier.tier.charge(1000) + len(many) * tier.tier.charge(1)
        assert usage.num_samples == 20
        assert other.tier.usage().num_samples == len(many)
        other.tier.drop(many[1:])
        assert other.tier.usage().num_samples == 1
        with pytest.raises(ConflictError, match=r"has a budget of 10,000,000 bytes, and this one wants 1,000,000"):
            Tier(server.url, TierPlace("decoded", b"other", 1_000_000))
        server.suspend()
        tier.assert_away()
        server.go_on()

        def is_there() -> bool:
            tier.come_back()
            return tier.tier.get(KEYS) == BUFFERS

        eventually(is_there)
        server.kill()
        tier.wait()
        tier.assert_away()
        server.start()
        tier.come_back()
        tier.keep()
        tier.tier.clear()
        assert tier.tier.usage().used_bytes == 0
        tier.tier.close()
        other.tier.close()
