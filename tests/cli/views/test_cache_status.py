"""`modyn cache status` and `modyn cache clear` on real stores, without services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from modyn.cache.served_counts import ServedCounts
from modyn.cache.sharing.clearing import SHARING
from modyn.cache.tiers.memory_tier import MemoryTier
from modyn.cache.tiers.redis_tier import RedisTier
from modyn.cache.tiers.stores import StoreUsage
from modyn.cache.tiers.tier import CacheTier, StoredTier, TierPlace
from modyn.cli.main import app
from modyn.cli.views.cache_status import CacheStatus, ServedTraining, fitting, tables, watch
from modyn.errors import UnavailableError
from modyn.state_folders import release_shared_memory, shared_folder
from tests.support.running_redis import BreakableRedis, running_redis

PLACE = TierPlace("decoded", b"twelve bytes", 102_400)
COUNTS = ServedTraining("photos-0001", 3, ServedCounts(20, 10, 70, 0, fill_read=5, fill_decoded=10, evicted=9), None)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state folder of an installation that does not run. Its shared memory is freed afterwards."""
    folder = tmp_path / "state"
    monkeypatch.setenv("MODYN_STATE_DIR", str(folder))
    monkeypatch.delenv("MODYN_CONFIG", raising=False)
    yield folder
    release_shared_memory(folder)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BreakableRedis]:
    """The Redis of this installation's system file."""
    with running_redis() as server:
        monkeypatch.setenv("MODYN_REDIS_URL", server.url)
        yield server


def cache(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["cache", *arguments])


def keep(tier: CacheTier) -> int:
    """Store ten samples after two other samples were evicted. Returns the number of bytes that the ten samples occupy."""
    tier.open()
    assert tier.put(np.arange(12), [b"x" * 100] * 12).all()
    tier.drop(np.arange(10, 12))
    tier.close()
    return 10 * tier.charge(100)


def test_both_stores_are_shown_and_cleared(state: Path, server: BreakableRedis) -> None:
    in_memory = keep(MemoryTier(PLACE, shared_folder(state)))
    in_redis = keep(RedisTier(server.url, replace(PLACE, name="encoded"), timeout_s=20.0))
    assert (in_memory, in_redis) == (51_200, 2_280)
    shown = cache("status")
    assert shown.exit_code == 0, shown.exception
    assert [line.split("\t") for line in shown.stdout.splitlines()] == [
        [""],
        ["# Stores"],
        ["store", "tier", "budget", "used", "full", "samples", "namespaces", "evicted", "of bytes"],
        ["memory", "decoded", "100.0 KiB", "50.0 KiB", "50%", "10", "1", "2", "10.0 KiB"],
        ["redis", "encoded", "100.0 KiB", "2.2 KiB", "2%", "10", "1", "2", "456 B"],
    ]
    assert "trainings are not shown, because no services are running: start them with `modyn up`" in shown.stderr

    assert cache("clear", "--tier", "encoded").stderr.splitlines() == ["shared memory: forgot 0 B", "Redis: forgot 2.2 KiB"]
    found = json.loads(cache("status", "--json").stdout)
    assert found["trainings"] == []
    assert [(store["store"], store["is_reachable"], store["tiers"]) for store in found["stores"]] == [
        (
            "memory",
            True,
            [
                {
                    "name": "decoded",
                    "budget_bytes": 102_400,
                    "used_bytes": 51_200,
                    "num_samples": 10,
                    "num_namespaces": 1,
                    "num_evicted": 2,
                    "evicted_bytes": 10_240,
                }
            ],
        ),
        ("redis", True, []),
    ]
    (shared_folder(state) / SHARING / "a state").mkdir(parents=True)
    server.ask("SET", "modyn:sharing:{a state}:state", "")
    assert cache("clear").stderr.splitlines() == ["shared memory: forgot 50.0 KiB", "Redis: forgot 0 B"]
    assert server.ask("KEYS", "modyn:sharing:*") == []
    assert not shared_folder(state).exists()
    assert not state.exists(), "neither command makes a state folder"


def test_a_redis_that_is_away_is_said_and_no_password_shown(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODYN_REDIS_URL", "redis://:secret@127.0.0.1:1/0")
    shown = cache("status")
    assert shown.exit_code == 0
    assert "the Redis at 127.0.0.1:1 does not answer: its content is not shown" in shown.stderr
    cleared = cache("clear")
    assert isinstance(cleared.exception, UnavailableError)
    assert "127.0.0.1:1 does not answer" in cleared.exception.message
    assert "secret" not in shown.output + cleared.output + cleared.exception.message


def test_another_name_than_that_of_a_tier_is_refused(state: Path) -> None:
    result = cache("clear", "--tier", "raw")
    assert result.exit_code == 2
    assert "allowed are encoded, decoded, augmented" in result.stderr


@pytest.mark.parametrize(
    ("saved_s", "shown", "is_running", "state"), [(None, "–", True, "runs"), (12.34, "12.3", False, "has ended")]
)
def test_trainings_are_a_table(saved_s: float | None, shown: str, is_running: bool, state: str) -> None:
    title, columns, (row,) = tables(CacheStatus([], [replace(COUNTS, saved_s=saved_s, is_running=is_running)], []))[1]
    assert title == "Trainings served by a cache"
    assert dict(zip(columns, row, strict=True)) == {
        "run": "photos-0001", "trigger": "3", "training": state, "samples": 100, "storage": 20, "encoded": 10, "decoded": 70, "augmented": 0,
        "from the cache": "80%", "decoded a sample": "0.40", "evicted": 9, "not asked": 0, "saved s": shown,
    }  # fmt: skip


def test_a_tier_without_a_budget_has_no_share() -> None:
    usage = StoreUsage("memory", "/dev/shm/x", (StoredTier("decoded", 0, 0, 0, 0),))
    assert tables(CacheStatus([usage], [], []))[0][2] == [["memory", "decoded", "0 B", "0 B", "–", 0, 0, 0, "0 B"]]


def test_watching_looks_again_until_it_is_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    looks: list[CacheStatus] = []

    def read() -> CacheStatus:
        looks.append(CacheStatus([], [replace(COUNTS, trigger_id=len(looks))], []))
        return looks[-1]

    def pause() -> None:
        if len(looks) == 3:
            raise KeyboardInterrupt

    watch(read, json=True, pause=pause)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["trainings"][0]["trigger"] for line in lines] == [0, 1, 2]


@pytest.mark.parametrize(("num_lines", "num_trainings"), [(200, 30), (24, 11), (5, 1)])
def test_on_a_small_terminal_the_newest_trainings_are_shown(num_lines: int, num_trainings: int) -> None:
    usage = StoreUsage("memory", "/dev/shm/x", (StoredTier("decoded", 10, 0, 0, 0),))
    whole = CacheStatus([usage], [replace(COUNTS, trigger_id=i) for i in range(30)], ["a note"])
    assert fitting(whole, num_lines).trainings == whole.trainings[30 - num_trainings :]


def test_on_a_terminal_the_tables_are_drawn_in_place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def pause() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    watch(lambda: CacheStatus([], [COUNTS], ["a note"]), json=False, pause=pause)
    text = capsys.readouterr().out
    assert "photos-0001" in text
    assert "a note" in text
