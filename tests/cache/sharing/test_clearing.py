"""The shared state may be cleared at any time: each training continues exactly, and they share again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modyn.cache.sharing.clearing import REDIS_KEYS, SHARING, clear_memory_states, clear_redis_states
from modyn.cache.sharing.memory_state import MemoryState
from modyn.cache.sharing.redis_state import RedisState
from modyn.cache.sharing.shared_job import SharedJob
from modyn.cache.sharing.state import SharedState, SharePlace
from modyn.errors import UnavailableError
from tests.support.running_redis import running_cluster, running_redis
from tests.support.shared_jobs import Training, Values


@dataclass(frozen=True)
class Store:
    """One of each kind."""

    state: Callable[[SharePlace], SharedState]
    clear: Callable[[], None]
    left: Callable[[], list[Any]]


@pytest.fixture(scope="module", params=["memory", "redis", "cluster"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if request.param == "memory":
        folder = tmp_path_factory.mktemp("memory") / "cache"
        yield Store(
            lambda place: MemoryState(place, folder / SHARING), partial(clear_memory_states, folder), lambda: [*folder.glob("*")]
        )
        return
    password = None if request.param == "redis" else "secret"
    with running_redis() if password is None else running_cluster(password) as server:
        yield Store(
            lambda place: RedisState(place, server.url, 20.0),
            partial(clear_redis_states, server.url),
            lambda: server.ask("KEYS", REDIS_KEYS, password=password),
        )


def test_trainings_continue_after_what_they_share_was_cleared_and_share_again(store: Store) -> None:
    """`Training` checks that each epoch serves every sample once."""
    store.clear()
    keys, tier = np.arange(400), Values()
    namespaces = b"namespace 1 ", b"namespace 2 "
    others = [store.state(SharePlace(namespace, 10)) for namespace in namespaces]
    for state in others:
        SharedJob(state, keys, 0, augmented=True).next_batch(5)
    jobs = [
        Training(SharedJob(store.state(SharePlace(b"twelve bytes", 200)), keys, seed, augmented=True), keys, tier, 10, 2)
        for seed in (1, 2)
    ]
    for number in range(80):
        if number == 10:
            assert store.left()
            store.clear()
            assert store.left() == []
            before = sum(job.num_hits for job in jobs)
        for job in jobs:
            job.step()
    assert sum(job.num_hits for job in jobs) > before + 200
    store.clear()
    store.clear()
    assert store.left() == []


def test_what_cannot_be_cleared_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=f"the Redis at {tmp_path}/none does not answer"):
        clear_redis_states(f"unix://{tmp_path}/none")
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="cannot clear .*file/sharing: Not a directory"):
        clear_memory_states(tmp_path / "file")
