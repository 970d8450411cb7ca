"""What a run writes of its online triggers: behind the run, in its order, and not behind an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import pytest

from modyn.config.system import SystemConfig
from modyn.db.engine import open_database
from modyn.errors import ConflictError, UnavailableError
from modyn.records import RunId
from modyn.supervisor.deferred_journal import DeferredJournal
from modyn.supervisor.journal import Journal, RunJournal
from modyn.supervisor.records import EventKind, NewRun, RunMode, RunOptions, TriggerRecord
from modyn.supervisor.states import RunState, TriggerState

FIRED = TriggerRecord(0, 10, 0, 9, 9, TriggerState.FIRED, started_at=1.0, online=True)
SELECTED = replace(FIRED, state=TriggerState.SELECTED, num_keys=10, keys_checksum="abc", seconds={"select": 0.25})
TRAINED = replace(SELECTED, state=TriggerState.TRAINED, model_id=4, finished_at=2.0, seconds={"select": 0.25, "train": 2.0})


class Recorded:
    """In place of a RunJournal whose writes are retried: notes what it is given, by transaction. Waits while `held` is not set."""

    def __init__(self) -> None:
        self.transactions: list[list[str]] = []
        self.held = threading.Event()
        self.held.set()
        self.error: Exception | None = None

    def together(self, writes: Sequence[Callable[[RunJournal], None]]) -> None:
        self.held.wait(60)
        if self.error is not None:
            raise self.error
        self.transactions.append([])
        for write in writes:
            write(cast("RunJournal", self))

    def __getattr__(self, name: str) -> Callable[..., None]:
        def write(*values: object) -> None:
            trigger = values[0]
            if not isinstance(trigger, TriggerRecord):
                self.transactions.append([name])
            elif trigger.online:
                self.transactions[-1].append(f"{name} {trigger.trigger_id}")
            else:
                self.transactions.append([f"{name} {trigger.trigger_id}"])

        return write


@contextmanager
def deferred(recorded: Recorded) -> Iterator[RunJournal]:
    journal, close = DeferredJournal.of(cast("RunJournal", recorded), online=True)
    try:
        yield journal
    finally:
        recorded.held.set()
        close()


def test_a_run_goes_on_while_its_triggers_are_written_but_trains_nothing_that_is_unknown() -> None:
    recorded = Recorded()
    recorded.held.clear()
    with deferred(recorded) as journal:
        journal.trained(TRAINED)
        journal.selecting(replace(FIRED, trigger_id=1), 10)
        assert recorded.transactions == []
        threading.Timer(0.05, recorded.held.set).start()
        journal.training(replace(SELECTED, trigger_id=1))
        assert [name for names in recorded.transactions for name in names][:2] == ["trained 0", "selecting 1"]
    assert [name for names in recorded.transactions for name in names] == ["trained 0", "selecting 1", "training 1"]


def test_all_else_is_written_behind_what_waits() -> None:
    recorded = Recorded()
    with deferred(recorded) as journal:
        journal.trained(TRAINED)
        journal.enter(RunState.STREAMING)
        journal.selecting(replace(FIRED, trigger_id=1, online=False), 10)
        assert recorded.transactions == [["trained 0"], ["enter"], ["selecting 1"]]


def test_nothing_is_written_behind_an_error_which_the_next_write_raises() -> None:
    recorded = Recorded()
    recorded.held.clear()
    recorded.error = UnavailableError("the database is away")
    with deferred(recorded) as journal:
        journal.trained(TRAINED)
        journal.selecting(replace(FIRED, trigger_id=1), 10)
        recorded.held.set()
        for _ in range(2):
            with pytest.raises(UnavailableError, match="is away"):
                journal.training(replace(SELECTED, trigger_id=1))
        with pytest.raises(UnavailableError, match="is away"):
            journal.enter(RunState.EVALUATING)
    assert recorded.transactions == []


def test_writes_of_one_transaction_are_there_together_or_not_at_all(system_config: SystemConfig) -> None:
    database = open_database(system_config, "supervisor", "modyn.supervisor.migrations")
    journal = Journal(database)
    options = RunOptions(RunMode.PRODUCTION)
    run = journal.claim(RunId(journal.create(NewRun(options, "p", "yaml: text", "p.yaml", {}, selection_seed=3)).run_id))
    run.enter(RunState.STREAMING)
    run.selecting(FIRED, 10)
    run.training(SELECTED)
    following = replace(FIRED, trigger_id=1)
    with pytest.raises(ConflictError):
        run.together([lambda one: one.trained(TRAINED), lambda one: one.training(SELECTED)])
    assert [trigger.state for trigger in journal.triggers(run.run_id)] == [TriggerState.SELECTED]
    run.together([lambda one: one.trained(TRAINED), lambda one: one.selecting(following, 10)])
    assert [trigger.state for trigger in journal.triggers(run.run_id)] == [TriggerState.TRAINED, TriggerState.FIRED]
    assert journal.run(run.run_id).state is RunState.SELECTING
    states = [event.detail["state"] for event in journal.events(run.run_id, 0)[0] if event.kind is EventKind.RUN_STATE]
    assert states[-3:] == ["training", "streaming", "selecting"]
    database.close()
