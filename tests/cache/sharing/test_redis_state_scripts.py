"""The scripts in Redis give the same answers and changes as the rule on arrays, for any request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.cache.sharing.memory_state import MemoryState
from modyn.cache.sharing.redis_state import RedisState
from modyn.cache.sharing.state import BatchRequest, KeySetId, Membership, SharedState, SharePlace, ValueEntries
from tests.cache.tiers.test_breaker import Clock
from tests.support.running_redis import BreakableRedis, running_redis

NUM_SAMPLES = 30
EVENTS = ["ask"] * 12 + ["join", "leave", "pass"]


@pytest.fixture(scope="module")
def server() -> Iterator[BreakableRedis]:
    with running_redis() as server:
        yield server


def request(member: Membership, seed: int, known: int, first: int) -> BatchRequest:
    """Draw a request with valid numbers, whose combination is usually meaningless."""
    random = np.random.default_rng(seed)

    def numbers(most: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        lowest = max(0, first - 3)
        return random.permutation(np.arange(lowest, known))[: random.integers(most + 1)]

    wanted, size = numbers(12), int(random.integers(0, 9))
    candidates = random.permutation(NUM_SAMPLES)[: 2 * size]
    believed = np.full(len(candidates), -1)
    some = numbers(len(candidates))
    believed[: len(some)] = some
    reading = int(random.integers(-1, 20))
    return BatchRequest(
        known, reading, int(random.integers(2**32)), size, int(random.integers(size + 1)), numbers(6), numbers(4), numbers(2), wanted,
        random.integers(0, 2**32, len(wanted), np.uint32), candidates, believed, random.random(len(candidates)) < 0.8,
    )  # fmt: skip


def plain(part: object) -> object:
    if isinstance(part, np.ndarray):
        return part.tolist()
    return [plain(one) for one in part] if isinstance(part, tuple | list) else part


def play(state: SharedState, clock: Clock, events: list[tuple[str, int, int]]) -> list[object]:
    """Return the answers of the state, without randomly drawn numbers."""
    members: dict[int, Membership] = {}
    known, first = 0, 0
    answers: list[object] = []
    for event, job, seed in events:
        if event == "pass":
            clock.now += 40
        elif event == "leave" and job in members:
            state.leave(members.pop(job))
        elif event == "join" or job not in members:
            before = members.get(job)
            members[job] = state.join(KeySetId(bytes([job]) * 16, 7), NUM_SAMPLES, job == 1, before)
            answers.append(members[job]._replace(incarnation=0, token=0))
        else:
            asked = request(members[job], seed, known if seed % 3 else max(first, known - seed % 7), first)
            reply = state.exchange(members[job], asked)
            answers.append(plain(reply))
            if reply is None:
                del members[job]
            else:
                known, first = reply.end, reply.first
        if job in members:
            answers.append(plain(state.members(members[job])))
            found = state.entries(members[job], first, known)
            assert found is not None
            gone = found.stages == 0
            answers.append(plain(ValueEntries(found.keys, found.stages, np.where(gone, np.uint32(0), found.served))))
    return answers


@settings(max_examples=2 * settings().max_examples)
@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3), st.integers(0, 2**32)), min_size=10, max_size=40),
)
def test_both_states_answer_the_same(
    server: BreakableRedis, tmp_path: Path, capacity: int, events: list[tuple[str, int, int]]
) -> None:
    place = SharePlace(b"equal", capacity)
    answers = []
    for kind in (MemoryState, RedisState):
        clock = Clock()
        state: SharedState = (
            MemoryState(place, tmp_path, clock) if kind is MemoryState else RedisState(place, server.url, 20.0, clock)
        )
        state.reset()
        answers.append(play(state, clock, events))
        state.close()
    assert answers[0] == answers[1]
