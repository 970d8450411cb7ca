"""The table of jobs under trainings and evaluations: one start at a time, watchers that miss no end, a bounded number of ended jobs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from modyn.errors import ModynError, NotFoundError
from modyn.records import JobState
from modyn.testing.waiting import PATIENCE_S, eventually
from modyn.workers import JobTable


@dataclass(frozen=True)
class Status:
    state: JobState = JobState.QUEUED
    samples_seen: int = 0

    def to_error(self) -> ModynError:
        return ModynError("failed")


ENDED = Status(JobState.FINISHED)


def nothing(key: str) -> Status:
    raise NotFoundError(f"there is no job {key}")


def table_of(num_ended: int = 10) -> JobTable[str, Status]:
    return JobTable(nothing, num_ended)


def test_what_has_not_ended_is_listed() -> None:
    table = table_of()
    waits, runs = (table.set(key, Status(state)) for key, state in (("a", JobState.QUEUED), ("b", JobState.RUNNING)))
    table.set("c", ENDED)
    assert table.unfinished() == [waits, runs]
    table.set("a", ENDED)
    assert table.unfinished() == [runs]


def test_many_starts_at_once_begin_one_job() -> None:
    table, begun = table_of(), list[str]()

    def begin() -> Status:
        begun.append("a")
        return table.set("a", Status())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: table.start("a", lambda: None, begin), range(8)))
    assert begun == ["a"]
    table.settle("a", lambda status: replace(status, state=JobState.FAILED))
    assert table.start("a", lambda: ENDED, begin) == ENDED  # an end that is stored elsewhere counts more than a failed attempt
    assert table.start("a", lambda: None, begin) == Status()
    assert begun == ["a", "a"]


def test_a_watcher_sees_each_change_once_and_the_end_last() -> None:
    table, seen = table_of(), list[Status]()
    table.set("a", Status())
    watcher = threading.Thread(target=lambda: seen.extend(table.watch("a")))
    watcher.start()
    eventually(lambda: len(seen) == 1)
    table.update("a", lambda status: status)
    table.update("b", lambda status: ENDED)  # unknown: nothing happens
    table.update("a", lambda status: replace(status, state=JobState.RUNNING, samples_seen=5))
    eventually(lambda: len(seen) == 2)
    table.settle("a", lambda status: replace(status, state=JobState.FINISHED))
    watcher.join(PATIENCE_S)
    assert seen == [Status(), Status(JobState.RUNNING, 5), Status(JobState.FINISHED, 5)]
    table.update("a", lambda status: Status())
    assert list(table.watch("a")) == [seen[-1]]  # an end is final


def test_a_watcher_that_is_not_active_any_more_leaves() -> None:
    table, active = table_of(), threading.Event()
    active.set()
    table.set("a", Status())
    watcher = table.watch("a", active.is_set)
    assert next(watcher) == Status()
    active.clear()
    table.wake()
    assert list(watcher) == []


def test_what_is_not_in_the_table_is_looked_up_elsewhere() -> None:
    with pytest.raises(NotFoundError, match="no job a"):
        table_of().stop("a")
    with pytest.raises(NotFoundError, match="no job a"):
        next(table_of().watch("a"))
    stored = JobTable[str, Status](lambda key: ENDED, 0)
    stored.set("a", Status())
    stored.set("a", replace(ENDED, samples_seen=7))
    assert len(stored) == 0
    assert list(stored.watch("a")) == [ENDED]


def test_the_oldest_ended_jobs_leave_and_live_ones_stay() -> None:
    table = table_of(num_ended=2)
    table.set("live", Status())
    for key in "abcd":
        table.set(key, ENDED)
    assert [key for key in ("live", *"abcd") if table.get(key)] == ["live", "c", "d"]
