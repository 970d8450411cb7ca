"""Watching a run: nothing kept gets lost, progress may, and it ends when the run is terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from modyn.config.system import SystemConfig
from modyn.db.engine import open_database
from modyn.errors import UnavailableError
from modyn.supervisor.journal.cursor import Cursor
from modyn.supervisor.journal.events import PROGRESS_KEPT, EventHub, RunWatcher, watch
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.journal.records import NewRun, RunMode, RunOptions
from modyn.supervisor.journal.run_events import RunEvent, RunMessage, StateChange, TriggerProgress
from modyn.supervisor.journal.states import RunState
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.clock import Clock


class Watched:
    """A run that is written to, and its hub."""

    def __init__(self, config: SystemConfig) -> None:
        self.clock = Clock()
        self.hub = EventHub(self.clock)
        self.database = open_database(config, "supervisor", "modyn.supervisor.migrations")
        self.journal = Journal(self.database, self.hub.wake_watchers)
        new = NewRun(RunOptions(RunMode.EXPERIMENT), "Test", "", "p.yaml", {}, selection_seed=0)
        self.run_id = self.journal.create(new).run_id
        self.writer = self.journal.claim(self.run_id)

    def watch(self, after_seq: int = 0, opened: Callable[[RunWatcher], None] = lambda _: None) -> Iterator[RunEvent]:
        with self.hub.watching(self.run_id) as watcher:
            opened(watcher)
            yield from watch(self.journal, watcher, self.run_id, after_seq)

    def progress(self, number: int) -> None:
        self.clock.now += 1.0
        self.hub.progress(self.run_id, TriggerProgress(samples_seen=number), 0)


@pytest.fixture
def watched(system_config: SystemConfig) -> Iterator[Watched]:
    watched = Watched(system_config)
    yield watched
    watched.database.close()


def test_a_slow_watcher_loses_progress_but_nothing_that_is_kept(watched: Watched) -> None:
    events = watched.watch()
    seen = [next(events)]
    for number in range(3 * PROGRESS_KEPT):
        watched.progress(number)
    for number in range(50):
        watched.writer.message(str(number))
    watched.writer.end(RunState.FAILED, error="x")
    seen += list(events)
    kept = [event for event in seen if event.seq]
    assert [event.seq for event in kept] == list(range(1, 53))
    progress = [event.detail for event in seen if not event.seq]
    assert len(progress) <= PROGRESS_KEPT


def test_a_watcher_follows_and_ends_with_the_run(watched: Watched) -> None:
    seen: list[RunEvent] = []
    ready = threading.Event()

    def follow() -> None:
        for event in watched.watch(0, lambda _: ready.set()):
            seen.append(event)

    thread = threading.Thread(target=follow)
    thread.start()
    assert ready.wait(PATIENCE_S)
    watched.writer.enter(RunState.STREAMING)
    watched.progress(7)
    eventually(lambda: any(event.seq == 0 for event in seen))
    watched.writer.end(RunState.INTERRUPTED, error="x", error_reason="UNAVAILABLE")
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [event.detail.state for event in seen if isinstance(event.detail, StateChange)] == [
        "submitted",
        "streaming",
        "interrupted",
    ]
    assert [event.detail for event in seen if not event.seq] == [TriggerProgress(samples_seen=7)]


def test_watching_continues_after_an_earlier_rest(watched: Watched) -> None:
    """A resumed run was terminal before; a watcher from the start does not stop there."""
    watched.writer.end(RunState.FAILED, error="x")
    watched.journal.submit_again(watched.run_id)
    watched.writer.end(RunState.STOPPED)
    events = list(watched.watch())
    assert [event.detail.state for event in events if isinstance(event.detail, StateChange)] == [
        "submitted",
        "failed",
        "submitted",
        "stopped",
    ]
    assert [event.seq for event in watched.watch(3)] == [4]


def test_a_watcher_of_the_newest_events_does_not_replay_all(watched: Watched) -> None:
    for number in range(20):
        watched.writer.message(str(number))
    watched.writer.end(RunState.FAILED, error="x")
    with watched.hub.watching(watched.run_id) as watcher:
        assert [event.seq for event in watch(watched.journal, watcher, watched.run_id, 0, newest=3)] == [20, 21, 22]
        assert [event.seq for event in watch(watched.journal, watcher, watched.run_id, 21, newest=3)] == [22]


def test_a_watcher_hears_that_the_first_events_are_gone(watched: Watched) -> None:
    journal = Journal(watched.database, watched.hub.wake_watchers, events_kept=5)
    writer = journal.claim(watched.run_id)
    for number in range(20):
        writer.message(str(number))
    writer.advance(Cursor(), {})
    writer.end(RunState.FAILED, error="x")
    seen = list(watched.watch())
    assert isinstance(seen[0].detail, RunMessage)
    assert "its first events are no longer kept" in seen[0].detail.message
    assert [event.seq for event in seen] == [0, 17, 18, 19, 20, 21, 22]


def test_progress_is_throttled_by_kind_and_trigger(watched: Watched) -> None:
    with watched.hub.watching(watched.run_id) as watcher:
        for _ in range(100):
            watched.hub.progress(watched.run_id, TriggerProgress(), 0)
            watched.hub.progress(watched.run_id, TriggerProgress(), 1)
            watched.clock.now += 0.01
        events = watcher.wait(0)
    assert [sum(event.trigger_id == trigger for event in events) for trigger in (0, 1)] == [5, 5]


def test_closing_ends_the_wait(watched: Watched) -> None:
    opened: list[RunWatcher] = []
    events = watched.watch(0, opened.append)
    next(events)
    threading.Timer(0.05, watched.hub.close).start()
    with pytest.raises(UnavailableError, match="the supervisor is stopping"):
        next(events)
    assert opened[0].closed
    watched.progress(1)
    assert opened[0].wait(0) == []
