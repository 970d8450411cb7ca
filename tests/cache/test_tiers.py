"""Properties of all tiers, compared with a dictionary, and while other processes are killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.cache.tiers.tier import CacheTier, PartedBuffer, TierPlace
from modyn.errors import ConfigError, ConflictError
from modyn.records import Int64Array
from modyn.testing.waiting import eventually
from tests.support.cache_writer import content, open_tier
from tests.support.running_redis import running_redis

BUDGET = 60_000
Opener = Callable[..., CacheTier]


@pytest.fixture(scope="module", params=["redis", "memory"])
def where(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The type of a tier, and its URL or folder."""
    if request.param == "memory":
        yield "memory", str(tmp_path_factory.mktemp("memory") / "cache")
        return
    with running_redis() as server:
        yield "redis", server.url


@pytest.fixture
def opener(where: tuple[str, str]) -> Iterator[Opener]:
    """Opens tiers. Closes and clears them after the test."""
    with ExitStack() as stack:

        def make(budget: int = BUDGET, namespace: bytes = b"twelve bytes") -> CacheTier:
            tier = open_tier(*where, budget, namespace)
            stack.callback(tier.close)
            return tier

        tier = make(0)
        tier.clear()
        yield make
        tier.clear()


class Oracle:
    """The expected behaviour of a tier."""

    def __init__(self, tier: CacheTier) -> None:
        self.tier = tier
        self.kept: dict[tuple[int, int], bytes] = {}
        """By namespace and key."""

    def used(self) -> int:
        return sum(self.tier.charge(len(buffer)) for buffer in self.kept.values())

    def put(self, namespace: int, key: int, buffer: bytes) -> bool:
        before = self.kept.get((namespace, key))
        others = self.used() - (0 if before is None else self.tier.charge(len(before)))
        if others + self.tier.charge(len(buffer)) > BUDGET:
            return False
        self.kept[namespace, key] = buffer
        return True


KEYS = st.sampled_from([0, 1, 2, 3, 2**40, -1])
STEPS = st.one_of(
    st.tuples(st.just("put"), st.lists(st.tuples(KEYS, st.integers(0, 20_000)), max_size=6)),
    st.tuples(st.just("get"), st.lists(st.tuples(KEYS, st.just(0)), max_size=6)),
    st.tuples(st.just("drop"), st.lists(st.tuples(KEYS, st.just(0)), max_size=3)),
)


@given(st.lists(st.tuples(st.integers(0, 2), STEPS), max_size=12))
def test_a_tier_is_a_dictionary_with_a_budget(opener: Opener, steps: list[tuple[int, tuple[str, list[tuple[int, int]]]]]) -> None:
    """The test uses two objects of one namespace, like two processes, and one object of another namespace."""
    namespaces = [0, 0, 1]
    tiers = [opener(namespace=f"namespace {namespace} ".encode()) for namespace in namespaces]
    tiers[0].clear()
    oracle = Oracle(tiers[0])
    counts = [[0, 0, 0] for _ in tiers]
    for number, (who, (what, samples)) in enumerate(steps):
        tier, namespace = tiers[who], namespaces[who]
        keys = np.array([key for key, _ in samples], np.int64)
        if what == "put":
            buffers = [bytes([number]) * size for _, size in samples]
            expected = [oracle.put(namespace, int(key), buffer) for key, buffer in zip(keys, buffers, strict=True)]
            assert tier.put(keys, [memoryview(buffer) for buffer in buffers]).tolist() == expected
            counts[who][2] += expected.count(False)
        elif what == "get":
            found = tier.get(keys)
            expected_buffers = [oracle.kept.get((namespace, int(key))) for key in keys]
            assert [None if buffer is None else bytes(buffer) for buffer in found] == expected_buffers
            assert tier.holds(keys).tolist() == [buffer is not None for buffer in expected_buffers]
            counts[who][0] += len(found) - found.count(None)
            counts[who][1] += found.count(None)
        else:
            tier.drop(keys)
            for key in keys:
                oracle.kept.pop((namespace, int(key)), None)
        usage = tier.usage()
        assert usage.is_reachable
        assert usage.used_bytes == oracle.used() <= BUDGET
        assert usage.num_samples == sum(of == namespace for of, _ in oracle.kept)
        assert [usage.hits, usage.misses, usage.not_kept] == counts[who]


def test_many_samples_at_once(opener: Opener) -> None:
    """The batch has more samples than fit into one call."""
    tier = opener(100_000_000)
    keys = np.arange(2000)
    buffers = [content(key) for key in keys.tolist()]
    assert tier.put(keys, buffers).all()
    assert [bytes(buffer or b"no") for buffer in tier.get(keys[::-1])] == [buffer or b"no" for buffer in buffers[::-1]]
    large = [bytes([i]) * 3_000_000 for i in range(6)]
    assert tier.put(keys[:6], large).all()
    assert tier.get(keys[:7])[:6] == large
    assert tier.get(keys[6:7]) == [content(6)]


def test_another_owner_with_another_budget_is_refused_by_name_of_both(opener: Opener) -> None:
    first = opener()
    first.put(np.array([1]), [b"kept"])
    with pytest.raises(ConflictError, match="the tier 'decoded' in .* has a budget of 60,000 bytes, and this one wants 70,000"):
        opener(70_000)
    assert first.get(np.array([1])) == [b"kept"]
    first.clear()
    other = opener(70_000)
    assert other.get(np.array([1])) == [None]
    assert other.usage().used_bytes == 0
    # The first one has not noticed: it keeps nothing, and does not end what it serves.
    assert not first.put(np.array([1]), [b"kept"]).any()
    assert other.put(np.array([1]), [b"kept"]).all()


def test_nothing_is_left_by_clear(opener: Opener, where: tuple[str, str]) -> None:
    tiers = [opener(), opener(namespace=b"another")]
    for tier in tiers:
        assert tier.put(np.array([1, 2]), [b"a", b"b"]).all()
    tiers[0].clear()
    assert [tier.get(np.array([1, 2])) for tier in tiers] == [[None, None]] * 2
    assert tiers[1].usage().used_bytes == 0
    if where[0] == "memory":
        assert not Path(where[1]).exists()
    assert tiers[1].put(np.array([1]), [b"again"]).all()
    assert tiers[1].get(np.array([1])) == [b"again"]


def test_a_tier_without_a_budget_keeps_nothing(opener: Opener) -> None:
    tier = opener(0)
    assert not tier.put(np.array([1]), [b""]).any()
    assert tier.get(np.array([1])) == [None]


@contextmanager
def writer(where: tuple[str, str], budget: int, *arguments: int) -> Iterator[subprocess.Popen[str]]:
    """Another process that stores samples until it is killed."""
    command = [sys.executable, "-m", "tests.support.cache_writer", *where, str(budget), *map(str, arguments)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def assert_exact(tier: CacheTier, keys: Int64Array, budget: int) -> None:
    """Assert that the used bytes match the stored samples, every sample is complete, and the budget is not exceeded."""
    tier.put(np.array([-1]), [b"after a process was killed, the next one to keep a sample counts again"])
    tier.drop(np.array([-1]))
    found = dict(zip(keys.tolist(), tier.get(keys), strict=True))
    there = {key: buffer for key, buffer in found.items() if buffer is not None}
    assert all(bytes(buffer) == content(key) for key, buffer in there.items())
    usage = tier.usage()
    assert usage.num_samples == len(there) > 0
    assert usage.used_bytes == sum(tier.charge(len(buffer)) for buffer in there.values()) <= budget


def test_processes_share_a_budget_exactly(opener: Opener, where: tuple[str, str]) -> None:
    tier, budget = opener(1_000_000), 1_000_000
    with ExitStack() as stack:
        writers = [stack.enter_context(writer(where, budget, 1000 * i, 400)) for i in range(3)]
        assert [process.wait() for process in writers] == [0, 0, 0]
    assert_exact(tier, np.arange(3000), budget)


def has_come_to(tier: CacheTier, keys: Int64Array, budget: int) -> bool:
    """Return whether a process has stored one of these samples, or has nearly filled the tier."""
    return tier.get(keys) != [None] * len(keys) or tier.usage().used_bytes > 0.9 * budget


def test_a_process_that_is_killed_leaves_whole_samples_and_a_right_count(opener: Opener, where: tuple[str, str]) -> None:
    budget = 3_000_000
    tier = opener(budget)
    for attempt in range(2):
        with writer(where, budget, 10_000 * attempt) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "keeping\n"
            # Somewhere within its work: the samples of some round are there.
            wanted = 10_000 * attempt + 8 * (5 + 7 * attempt) + np.arange(8)
            eventually(partial(has_come_to, tier, wanted, budget))
        assert_exact(tier, np.arange(0, 100_000), budget)
        tier.drop(np.arange(0, 100_000))


def test_a_place_is_checked() -> None:
    with pytest.raises(ConfigError, match="'a/b' is not a name of a tier"):
        TierPlace("a/b", b"", 1)
    with pytest.raises(ConfigError, match="has a budget of -1 bytes; give at least 0"):
        TierPlace("encoded", b"", -1)


PARTS = st.one_of(
    st.lists(st.binary(max_size=20), max_size=5),
    st.lists(st.integers(0, 9000).map(bytes), max_size=4),
    st.integers(0, 2000).map(lambda num: [b"part"] * num),
)


@given(st.data())
def test_a_buffer_in_parts_is_kept_as_one(where: tuple[str, str], data: st.DataObject) -> None:
    buffers = [data.draw(PARTS) for _ in range(2)]
    tier = open_tier(*where, 1 << 20, b"twelve parts")
    try:
        wholes = [b"".join(parts) for parts in buffers]
        parted = [PartedBuffer(len(whole), partial(list, parts)) for whole, parts in zip(wholes, buffers, strict=True)]
        assert tier.put(np.arange(2), parted).all()
        assert [None if buffer is None else bytes(buffer) for buffer in tier.get(np.arange(2))] == wholes
    finally:
        tier.clear()
        tier.close()


def test_what_has_no_room_is_not_made(opener: Opener) -> None:
    tier = opener()
    kept = tier.put(
        np.arange(2), [PartedBuffer(BUDGET, lambda: pytest.fail("it is made")), PartedBuffer(3, lambda: [b"a", b"bc"])]
    )
    assert kept.tolist() == [False, True]
