"""A run continues while changes of its online triggers are written: in their order, and none after one that failed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from modyn.db.engine import Database
from modyn.errors import ConflictError, UnavailableError
from modyn.rpc.retry import Retrier, RetryPolicy
from modyn.supervisor.journal.journal import Journal, RunJournal
from modyn.supervisor.journal.records import NewRun, RunMode, RunOptions, TriggerRecord
from modyn.supervisor.journal.states import RunState, TriggerState
from modyn.supervisor.journal.write import Write
from modyn.testing.waiting import PATIENCE_S

FIRED = TriggerRecord(0, 10, 0, 9, 9, TriggerState.FIRED, started_at=1.0, online=True)
SELECTED = replace(FIRED, state=TriggerState.SELECTED, num_keys=10, keys_checksum="abc", seconds={"select": 0.25})
TRAINED = replace(SELECTED, state=TriggerState.TRAINED, model_id=4, finished_at=2.0, seconds={"select": 0.25, "train": 2.0})


class HeldJournal(Journal):
    """Notes the run states that each transaction enters. Its transactions wait while `open` is not set, and fail while there is an `error`."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.transactions: list[list[str]] = []
        self.entered, self.open = threading.Event(), threading.Event()
        self.open.set()
        self.error: Exception | None = None

    @contextmanager
    def write(self, run_id: str, attempt: int | None = None) -> Iterator[Write]:
        self.entered.set()
        assert self.open.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        with super().write(run_id, attempt) as write:
            yield write
            events = (event for event in write.events if event["kind"] == "run_state")
            self.transactions.append([event["detail"]["state"] for event in events])


@pytest.fixture
def journal(database: Database) -> HeldJournal:
    return HeldJournal(database)


@pytest.fixture
def run(journal: HeldJournal) -> Iterator[RunJournal]:
    """The journal of a run that takes online steps, whose trigger 0 trains."""
    new = NewRun(RunOptions(RunMode.PRODUCTION), "p", "yaml: text", "p.yaml", {}, selection_seed=3)
    run = journal.claim(journal.create(new).run_id).retried(Retrier(RetryPolicy(0.0)), online=True)
    run.enter(RunState.STREAMING)
    run.begin_selection(FIRED, 10)
    run.begin_training(SELECTED)
    run.enter(RunState.TRAINING)
    journal.transactions.clear()
    journal.entered.clear()
    yield run
    journal.open.set()
    run.close()


def test_a_run_continues_while_its_triggers_are_written_but_trains_none_that_is_unknown(
    journal: HeldJournal, run: RunJournal
) -> None:
    journal.open.clear()
    run.record_model(TRAINED)
    run.begin_selection(replace(FIRED, trigger_id=1), 10)
    assert journal.transactions == []
    threading.Timer(0.05, journal.open.set).start()
    run.begin_training(replace(SELECTED, trigger_id=1))
    written = [state for states in journal.transactions for state in states]
    assert written[:2] == ["streaming", "selecting"]
    run.close()
    assert [state for states in journal.transactions for state in states] == ["streaming", "selecting", "training"]


def test_all_else_is_written_after_what_waits(journal: HeldJournal, run: RunJournal) -> None:
    run.record_model(TRAINED)
    run.enter(RunState.STREAMING)
    assert journal.transactions == [["streaming"]]
    run.begin_selection(replace(FIRED, trigger_id=1), 10)
    run.enter(RunState.TRAINING)
    assert journal.transactions == [["streaming"], ["selecting"], ["training"]]


def test_nothing_is_written_after_an_error_which_every_later_write_raises(journal: HeldJournal, run: RunJournal) -> None:
    journal.open.clear()
    run.record_model(TRAINED)
    run.begin_selection(replace(FIRED, trigger_id=1), 10)
    journal.error = UnavailableError("the database is away")
    journal.open.set()
    for _ in range(2):
        with pytest.raises(UnavailableError, match="is away"):
            run.begin_training(replace(SELECTED, trigger_id=1))
    journal.error = None
    with pytest.raises(UnavailableError, match="is away"):
        run.enter(RunState.EVALUATING)
    with pytest.raises(UnavailableError, match="is away"):
        run.record_model(TRAINED)
    assert journal.transactions == []


def test_changes_that_wait_together_are_made_together_or_not_at_all(journal: HeldJournal, run: RunJournal) -> None:
    journal.open.clear()
    run.record_model(TRAINED)
    assert journal.entered.wait(PATIENCE_S)
    run.begin_selection(replace(FIRED, trigger_id=1), 10)
    run.end_empty(replace(FIRED, trigger_id=1, state=TriggerState.EMPTY, seconds={"select": 0.25}))
    journal.open.set()
    run.enter(RunState.STREAMING)
    assert journal.transactions == [["streaming"], ["selecting", "streaming"]]
    journal.open.clear()
    journal.entered.clear()
    run.begin_selection(replace(FIRED, trigger_id=2), 10)
    assert journal.entered.wait(PATIENCE_S)
    run.end_empty(replace(FIRED, trigger_id=2, state=TriggerState.EMPTY, seconds={"select": 0.25}))
    run.record_model(replace(TRAINED, trigger_id=2))
    journal.open.set()
    with pytest.raises(ConflictError, match="is empty and cannot become trained"):
        run.enter(RunState.EVALUATING)
    states = [trigger.state for trigger in journal.triggers(run.run_id)]
    assert states == [TriggerState.TRAINED, TriggerState.EMPTY, TriggerState.FIRED]
