"""Damage to files in shared memory loses samples, and has no other effect."""

from __future__ import annotations

import fcntl
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from modyn.cache.tiers.memory_tier import ACCOUNT, EVICTIONS, LOCK, MemoryTier
from modyn.cache.tiers.tier import IDLE_S, IN_USE_S, TierPlace
from modyn.errors import ConfigError, ConflictError, UnavailableError
from modyn.state_folders import SHARED_MEMORY

NAMESPACE, OTHER = b"twelve bytes", b"other"
BUDGET = 100_000
KEYS = np.arange(3)
BUFFERS = [b"a" * 10, b"b" * 5000, b""]


def open_tier(folder: Path, namespace: bytes = NAMESPACE, budget: int = BUDGET) -> MemoryTier:
    tier = MemoryTier(TierPlace("decoded", namespace, budget), folder)
    tier.open()
    return tier


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def samples_of(folder: Path, namespace: bytes = NAMESPACE) -> Path:
    return folder / "decoded" / namespace.hex()


def test_files_are_counted_in_pages(folder: Path) -> None:
    tier = open_tier(folder)
    assert [tier.charge(size) for size in (0, 1, 4096, 4097)] == [1024, 5120, 5120, 9216]
    assert tier.put(KEYS, BUFFERS).all()
    assert tier.usage().used_bytes == 5120 + 9216 + 1024


def test_shared_memory_of_the_machine() -> None:
    folder = SHARED_MEMORY / f"modyn-test-{os.getpid()}"
    tier = open_tier(folder)
    assert tier.put(KEYS, BUFFERS).all()
    assert [bytes(buffer or b"") for buffer in tier.get(KEYS)] == BUFFERS
    tier.clear()
    assert not folder.exists()


def test_what_is_read_is_memory_of_its_own(folder: Path) -> None:
    tier = open_tier(folder)
    tier.put(KEYS, BUFFERS)
    (buffer,) = tier.get(KEYS[:1])
    assert isinstance(buffer, memoryview)
    buffer[:] = b"z" * 10
    tier.clear()
    assert bytes(buffer) == b"z" * 10


def test_a_process_that_died_while_it_wrote_is_noticed(folder: Path) -> None:
    tier = open_tier(folder)
    tier.put(KEYS, BUFFERS)
    account = samples_of(folder) / ACCOUNT
    for left in (b"", account.read_bytes()[:-1] + b"\0", None):
        (samples_of(folder) / "7").write_bytes(b"whole, but not counted")
        account.write_bytes(left) if left is not None else account.unlink()
        assert open_tier(folder, OTHER).put(KEYS[:1], BUFFERS[:1]).all()
        assert tier.usage().used_bytes == 5120 + 9216 + 1024 + 5120 + 5120
        assert tier.usage().num_samples == 4


def test_a_process_that_is_stopped_while_it_holds_the_lock_stops_no_other(folder: Path) -> None:
    tier = open_tier(folder)
    tier.put(KEYS[:2], BUFFERS[:2])
    with (folder / "decoded" / LOCK).open("rb") as lock, capture_logs() as logs:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(3):
            assert not tier.put(KEYS[2:], BUFFERS[2:]).any()
            tier.drop(KEYS)
            open_tier(folder)
        assert [bytes(buffer or b"no") for buffer in tier.get(KEYS)] == [*BUFFERS[:2], b"no"]
        assert tier.usage().num_samples == 2
    assert [line["event"] for line in logs] == ["cache_does_not_keep"]
    assert tier.put(KEYS[2:], BUFFERS[2:]).all()


def test_a_lock_of_a_folder_that_was_cleared_is_not_taken(folder: Path) -> None:
    tier = open_tier(folder)
    place = folder / "decoded"
    with (place / LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = threading.Thread(target=lambda: tier.put(KEYS, BUFFERS))
        done.start()
        gone = place.rename(folder / "gone")
        (gone / LOCK).unlink()
    done.join()  # It waits for the lock for as long as a lock is waited for, or less.
    assert not (gone / NAMESPACE.hex()).exists()
    assert tier.put(KEYS, BUFFERS).all()


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Limit the size of this process's files: writing beyond it fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_memory(folder: Path) -> None:
    tier = open_tier(folder, budget=1_000_000_000)
    tier.put(KEYS, BUFFERS)
    large = b"c" * 3_000_000
    with capture_logs() as logs:
        for _ in range(3):
            with files_of_at_most(2_000_000):
                kept = tier.put(np.array([5, 6, 1]), [b"kept", large, large])
            assert kept.tolist() == [True, False, False]
    assert [line["event"] for line in logs] == ["cache_does_not_keep"]
    assert [bytes(buffer or b"no") for buffer in tier.get(np.array([5, 6, 1]))] == [b"kept", b"no", BUFFERS[1]]
    assert tier.usage().used_bytes == 5120 + 9216 + 1024 + 5120
    assert sorted(path.name for path in samples_of(folder).iterdir()) == ["0", "1", "2", "5", ACCOUNT]
    assert tier.put(np.array([6]), [large]).all()


def test_a_namespace_that_nothing_uses_gives_way_to_another(folder: Path) -> None:
    old, new = open_tier(folder, OTHER), open_tier(folder)
    filling = b"f" * (BUDGET - 3 * 5120)
    assert old.put(KEYS[:1], [filling]).all()
    assert not new.put(KEYS[:1], [filling]).any()
    account = samples_of(folder, OTHER) / ACCOUNT
    long_ago = account.stat().st_mtime - IDLE_S - 60
    os.utime(account, (long_ago, long_ago))
    assert old.get(KEYS[:1])[0] is not None
    assert not new.put(KEYS[:1], [filling]).any()
    os.utime(account, (long_ago, long_ago))
    assert new.put(KEYS[:2], [b"fits", filling]).all()
    stored = new.stored()
    assert stored is not None
    assert (stored.num_evicted, stored.evicted_bytes) == (1, new.charge(len(filling)))
    assert old.get(KEYS[:1]) == [None]
    assert new.usage().used_bytes == new.charge(4) + new.charge(len(filling))
    assert not samples_of(folder, OTHER).exists()


def test_a_budget_holds_for_as_long_as_the_tier_is_used(folder: Path) -> None:
    open_tier(folder).put(KEYS, BUFFERS)
    lock, account = folder / "decoded" / LOCK, samples_of(folder) / ACCOUNT
    long_ago = account.stat().st_mtime - IDLE_S - 60
    for path in (lock, account):
        with pytest.raises(ConflictError):
            open_tier(folder, budget=BUDGET + 1)
        os.utime(path, (long_ago, long_ago))
    tier = open_tier(folder, budget=BUDGET + 1)
    assert tier.put(KEYS, BUFFERS).all()
    with pytest.raises(ConflictError, match=r"has a budget of 100,001 bytes, and this one wants 100,000"):
        open_tier(folder)


def test_who_only_keeps_samples_does_not_change_a_budget(folder: Path) -> None:
    """The owner was away while another owner took the tier and ended."""
    first = open_tier(folder)
    first.put(KEYS, BUFFERS)
    lock, account = folder / "decoded" / LOCK, samples_of(folder) / ACCOUNT
    long_ago = account.stat().st_mtime - IDLE_S - 60
    for path in (lock, account):
        os.utime(path, (long_ago, long_ago))
    open_tier(folder, budget=BUDGET + 1)
    os.utime(lock, (long_ago, long_ago))
    assert not first.put(KEYS, BUFFERS).any()
    stored = first.stored()
    assert stored is not None
    assert stored.budget_bytes == BUDGET + 1


def test_what_a_killed_process_has_left_of_clearing_is_cleared_with_the_rest(folder: Path) -> None:
    tier = open_tier(folder)
    (folder / "decoded.gone-0123" / "samples").mkdir(parents=True)
    tier.clear()
    assert not folder.exists()


def test_a_budget_that_memory_cannot_hold_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="the tier 'decoded' has a budget of 1,152,921,504,606,846,976 bytes, but .* can hold"):
        open_tier(folder, budget=1 << 60)
    assert open_tier(folder).put(KEYS, BUFFERS).all()


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir(parents=True)
    folder.chmod(mode)
    with pytest.raises(UnavailableError, match="another user may write to it, or has made it"):
        open_tier(folder)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=r"cannot use .*/file/decoded for the cache: File exists"):
        open_tier(tmp_path / "file")


def test_a_folder_that_goes_away_is_made_again(folder: Path, tmp_path: Path) -> None:
    tier = open_tier(folder)
    assert tier.put(KEYS, BUFFERS).all()
    folder.rename(tmp_path / "gone")
    assert tier.get(KEYS) == [None] * 3
    assert tier.put(KEYS, BUFFERS).all()
    tier.clear()
    folder.touch()
    assert not tier.put(KEYS, BUFFERS).any()
    assert tier.get(KEYS) == [None] * 3
    tier.drop(KEYS)
    tier.clear()
    assert tier.usage().used_bytes == 0


def test_what_a_tier_loses_when_it_is_divided_again_is_counted_as_evicted(folder: Path) -> None:
    tier = open_tier(folder)
    assert tier.put(KEYS, BUFFERS).all()
    used = tier.usage().used_bytes
    for path in (folder / "decoded" / LOCK, samples_of(folder) / ACCOUNT):
        long_ago = path.stat().st_mtime - IN_USE_S - 60
        os.utime(path, (long_ago, long_ago))
    other = open_tier(folder, budget=2 * BUDGET)
    stored = other.stored()
    assert stored is not None
    assert (stored.budget_bytes, stored.num_samples, stored.num_evicted, stored.evicted_bytes) == (2 * BUDGET, 0, 3, used)


@pytest.mark.parametrize("content", [b"", b"short", None], ids=["empty", "cut off", "missing"])
def test_a_damaged_count_of_evictions_restarts_and_stops_nothing(folder: Path, content: bytes | None) -> None:
    tier = open_tier(folder)
    assert tier.put(KEYS, BUFFERS).all()
    tier.drop(KEYS[:1])
    path = folder / "decoded" / EVICTIONS
    path.unlink() if content is None else path.write_bytes(content)
    tier.drop(KEYS[1:2])
    stored = tier.stored()
    assert stored is not None
    assert (stored.num_samples, stored.num_evicted, stored.evicted_bytes) == (1, 1, tier.charge(5000))
