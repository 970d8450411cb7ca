"""The journal: what is written is there or not, repeated writes change nothing, and a recorded run can be replayed."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import ProgrammingError

from modyn.config.system import SystemConfig
from modyn.db.engine import Database
from modyn.errors import ConflictError, CorruptStateError, InvalidArgumentError, NotFoundError
from modyn.records import DeletedSamples, EvalInterval, JobState, RunId, SampleBatch
from modyn.supervisor.evidence import Evidence
from modyn.supervisor.journal.cursor import Cursor
from modyn.supervisor.journal.journal import Journal, RunJournal
from modyn.supervisor.journal.records import EvaluationTask, NewRun, RunMode, RunOptions, TriggerRecord, slug
from modyn.supervisor.journal.run_events import RunEvent, RunMessage, StateChange, TriggerFired
from modyn.supervisor.journal.states import RunState, TriggerState, check_transition
from modyn.supervisor.journal.tables import CURSORS, METADATA
from modyn.supervisor.triggers import build_trigger
from modyn.supervisor.triggers.base import CheckRecord
from modyn.testing.checks import decide
from modyn.testing.services import InMemoryServices, pipeline_yaml
from modyn.trainer_server.client import TrainingResult
from tests.support.runs import finish, messages_of

NEW = NewRun(RunOptions(RunMode.PRODUCTION), "My Pipeline", "yaml: text", "p.yaml", {"a": 2**60}, selection_seed=3)
CURSOR = Cursor(12, 5, 11, 9, 2, -(2**63), 2**63 - 1, 1)


@pytest.fixture
def run(journal: Journal) -> RunJournal:
    """The journal of a new run."""
    return journal.claim(journal.create(NEW).run_id)


def record(trigger_id: int = 0) -> TriggerRecord:
    return TriggerRecord(trigger_id, 10, 0, 9, 9, TriggerState.FIRED, started_at=1.0)


def play(run_journal: RunJournal, times: int = 1) -> None:
    """A trigger's life, each write `times` times, as if it had not been known whether the first one arrived."""
    selected = dataclasses.replace(
        record(), state=TriggerState.SELECTED, num_keys=10, keys_checksum="abc", seconds={"select": 0.25}
    )
    trained = dataclasses.replace(
        selected,
        state=TriggerState.TRAINED,
        model_id=4,
        weights_sha256="sha",
        training_result=TrainingResult.from_mapping({"loss": 0.5, "num_samples": 7}),
        finished_at=2.0,
        seconds={"select": 0.25, "train": 2.0},
    )
    task = EvaluationTask("h", "test", 0, 0, 4, (EvalInterval(0, 1, 0),))
    writes: list[Callable[[], None]] = [
        lambda: run_journal.enter(RunState.STREAMING),
        lambda: run_journal.begin_selection(record(), 10),
        lambda: run_journal.begin_training(selected),
        lambda: run_journal.record_model(trained),
        lambda: run_journal.begin_evaluation(task),
        lambda: run_journal.advance(CURSOR, {"version": 1}),
        lambda: run_journal.end_evaluation_task(task, 1.5),
        lambda: run_journal.enter(RunState.EVALUATING),
        lambda: run_journal.end(RunState.FINISHED, message="done"),
    ]
    for write in writes:
        for _ in range(times):
            write()


def test_a_run_and_its_first_event_are_both_there_or_neither(database: Database, journal: Journal) -> None:
    with database.session() as session:
        session.execute(text("ALTER TABLE supervisor.events RENAME TO away"))
    with pytest.raises(ProgrammingError, match="supervisor.events"):
        journal.create(NEW)
    with database.session() as session:
        session.execute(text("ALTER TABLE supervisor.away RENAME TO events"))
    assert list(journal.runs()) == []
    run_id = journal.create(NEW).run_id
    journal.claim(run_id).enter(RunState.STREAMING)
    assert [(event.seq, event.detail) for event in journal.events(run_id, 0)[0]] == [
        (1, StateChange(RunState.SUBMITTED)),
        (2, StateChange(RunState.STREAMING)),
    ]


def test_the_tables_are_what_the_migration_makes(database: Database) -> None:
    from sqlalchemy import inspect

    found = inspect(database.engine)
    for table in METADATA.tables.values():
        columns = {column["name"]: str(column["type"]) for column in found.get_columns(table.name, schema="supervisor")}
        declared = {column.name: str(column.type) for column in table.columns}
        assert {name: kind.replace("DOUBLE PRECISION", "FLOAT") for name, kind in columns.items()} == declared
        key = found.get_pk_constraint(table.name, schema="supervisor")["constrained_columns"]
        assert key == [column.name for column in table.primary_key]


def test_what_is_submitted_comes_back(journal: Journal) -> None:
    options = RunOptions(RunMode.PRODUCTION, from_timestamp=-(2**63), to_timestamp=2**63 - 1, max_triggers=0)
    run = journal.create(dataclasses.replace(NEW, options=options))
    assert journal.run(run.run_id) == run == journal.runs()[0]
    assert (run.run_id, run.state, run.pipeline) == ("my-pipeline-0001", RunState.SUBMITTED, {"a": 2**60})
    assert (run.from_timestamp, run.to_timestamp, run.max_triggers) == (-(2**63), 2**63 - 1, 0)
    assert journal.snapshot(run.run_id).cursor == Cursor()
    with pytest.raises(NotFoundError, match="there is no run 'x-0001'"):
        journal.run("x-0001")
    with pytest.raises(NotFoundError, match="there is no run 'x-0001'"):
        journal.events("x-0001", 0)


def test_ids_are_unique_when_many_submit_at_once(journal: Journal) -> None:
    threads = [threading.Thread(target=journal.create, args=(NEW,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.run_id for run in journal.runs()] == [f"my-pipeline-{number:04d}" for number in range(1, 7)]


def test_runs_are_numbered_by_pipeline_and_listed_as_they_came(journal: Journal) -> None:
    names = ["My Pipeline", "Other", "my-pipeline", "Other", "My Pipeline"]
    found = [journal.create(dataclasses.replace(NEW, pipeline_name=name)).run_id for name in names]
    assert found == ["my-pipeline-0001", "other-0001", "my-pipeline-0002", "other-0002", "my-pipeline-0003"]
    assert [run.run_id for run in journal.runs()] == found


@pytest.mark.parametrize(
    ("name", "expected"), [("digits", "digits"), ("../../etc", "etc"), ("ÄÖ", "run"), ("a" * 99, "a" * 40), ("A b_c", "a-b-c")]
)
def test_ids_are_safe_as_file_names(name: str, expected: str) -> None:
    assert slug(name) == expected


def test_a_life_and_its_repetition_leave_the_same(journal: Journal) -> None:
    kept: list[tuple[Any, ...]] = []
    for times in (1, 2):
        run_id = journal.create(NEW).run_id
        play(journal.claim(run_id), times)
        snapshot = journal.snapshot(run_id)
        trigger = dataclasses.replace(snapshot.triggers[0], started_at=0, finished_at=0, seconds={})
        assert snapshot.triggers[0].seconds == {"select": 0.25, "train": 2.0, "evaluate": 1.5, "total": 2.25}
        assert snapshot.run.samples_trained == snapshot.triggers[0].num_trained == 7
        events, complete = journal.events(run_id, 0)
        assert complete
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        seen = [json.dumps([event.kind, event.trigger_id, event.detail.to_mapping().get("state")]) for event in events]
        story = list(dict.fromkeys(seen))
        kept.append((story, trigger, snapshot.cursor, snapshot.policy_state, snapshot.evaluated, snapshot.run.message))
    assert kept[0] == kept[1]
    assert kept[0][2] == CURSOR
    assert kept[0][4] == {(0, "h/test/0")}


def test_an_illegal_step_leaves_no_trace(journal: Journal, run: RunJournal) -> None:
    before = journal.events(run.run_id, 0)
    with pytest.raises(ConflictError, match="is submitted and cannot become selecting"):
        run.begin_selection(record(), 10)
    assert journal.triggers(run.run_id) == ()
    assert journal.events(run.run_id, 0) == before


def test_tags_come_back_and_odd_ones_are_refused(journal: Journal) -> None:
    options = RunOptions(RunMode.PRODUCTION, tags=["paper/figure-3", "seed=7"])
    options.check()
    assert journal.create(dataclasses.replace(NEW, options=options)).tags == ["paper/figure-3", "seed=7"]
    for tags in (["two words"], [""], ["x" * 65], [f"t{n}" for n in range(21)]):
        with pytest.raises(InvalidArgumentError, match=r"is not a tag|21 tags"):
            dataclasses.replace(options, tags=tags).check()


def test_checks_are_read_page_by_page(journal: Journal, run: RunJournal) -> None:
    for position in range(201):
        run.record_check(CheckRecord(position, position % 2 == 0, (Evidence("distance", position / 7),), 0.5))
    found = journal.checks(run.run_id)
    assert [check.position for check in found] == list(range(201))
    assert found[-1] == CheckRecord(200, True, (Evidence("distance", 200 / 7),), 0.5)


def test_a_check_is_shown_to_watchers_once(journal: Journal, run: RunJournal) -> None:
    check = CheckRecord(10, True, (Evidence("mmd", 0.5),), 0.25, {"long": [1]}, timestamp=99)
    for _ in range(2):
        run.record_check(check)
    assert journal.checks(run.run_id) == (check,)
    told = [event.detail for event in kept_events(journal, run.run_id) if isinstance(event.detail, CheckRecord)]
    assert told == [dataclasses.replace(check, memory={})]


def test_checks_of_both_policies_stand_at_one_position(journal: Journal, run: RunJournal) -> None:
    made = [
        CheckRecord(position, False, (Evidence("mmd", 0.5),), online=online)
        for position in range(101)
        for online in (False, True)
    ]
    for check in made:
        run.record_check(check)
    assert journal.checks(run.run_id) == tuple(made), "page by page"
    # The cursor says of `trigger` alone what was decided; the state of the policy of steps says the same of itself.
    run.advance(dataclasses.replace(CURSOR, position=99, last_check=97), {})
    found = [(check.position, check.online) for check in journal.snapshot(run.run_id).checks]
    assert found == [(98, False), (99, False), (99, True), (100, False), (100, True)]


def test_events_of_checks_are_removed_as_others(database: Database) -> None:
    journal = Journal(database, events_kept=10)
    run_id = journal.create(NEW).run_id
    run_journal = journal.claim(run_id)
    for position in range(30):
        run_journal.record_check(CheckRecord(position, False, (Evidence("mmd", 0.5),)))
    run_journal.advance(CURSOR, {})
    assert [event.detail for event in kept_events(journal, run_id)] == list(journal.checks(run_id)[20:])
    assert len(journal.checks(run_id)) == 30


def test_events_come_in_pages(journal: Journal, run: RunJournal) -> None:
    for number in range(4):
        run.message(f"message {number}")
    run.end(RunState.FAILED, error="no", error_reason="DATA")
    first, complete = journal.events(run.run_id, 1, limit=3)
    assert ([event.seq for event in first], complete) == ([2, 3, 4], False)
    rest, complete = journal.events(run.run_id, 4, limit=3)
    assert ([event.seq for event in rest], complete) == ([5, 6], True)
    assert rest[-1].detail == StateChange(RunState.FAILED, error="no", error_reason="DATA")


def kept_events(journal: Journal, run_id: str) -> list[RunEvent]:
    return journal.events(run_id, 0, limit=10_000)[0]


def test_an_idle_run_writes_no_more_events_for_ever(journal: Journal, run: RunJournal) -> None:
    for _ in range(20):
        run.enter(RunState.STREAMING)
        run.enter(RunState.WAITING_FOR_DATA)
    assert [event.detail for event in kept_events(journal, run.run_id)] == [
        StateChange(RunState.SUBMITTED),
        StateChange(RunState.WAITING_FOR_DATA),
    ]
    run.message("something")
    run.enter(RunState.STREAMING)
    kept = [event.detail for event in kept_events(journal, run.run_id)][2:]
    assert kept == [RunMessage("something"), StateChange(RunState.STREAMING)], "only the last event is replaced"


def test_the_oldest_events_are_removed(database: Database) -> None:
    journal = Journal(database, events_kept=10)
    run_id = journal.create(NEW).run_id
    run_journal = journal.claim(run_id)
    for number in range(30):
        run_journal.message(f"message {number}")
    run_journal.advance(CURSOR, {})
    assert messages_of(kept_events(journal, run_id)) == [f"message {n}" for n in range(20, 30)]
    assert journal.first_event(run_id) == 22
    assert journal.first_event(run_id, newest=3) == 29
    for number in range(5):
        run_journal.message(f"message {number}")
    request = journal.request_evaluation(run_id, [], None)
    journal.end_evaluation(request, [])
    assert len(kept_events(journal, run_id)) <= 11, "also where no batch is processed"


def test_committed_is_called_after_the_commit(database: Database) -> None:
    seen: list[int] = []
    journal = Journal(database, lambda run_id: seen.append(len(Journal(database).events(run_id, 0)[0])))
    run_id = journal.create(NEW).run_id
    journal.become(run_id, RunState.STOPPED)
    assert seen == [1, 2]


def test_a_cursor_of_another_release_is_refused(journal: Journal, database: Database) -> None:
    run_id = journal.create(NEW).run_id
    journal.claim(run_id).advance(CURSOR, {})
    with database.session() as session:
        session.execute(update(CURSORS).values(version=99))
    with pytest.raises(CorruptStateError, match="has version 99, this release reads 1"):
        journal.snapshot(run_id)


def test_a_finished_run_is_not_resumed(journal: Journal) -> None:
    run_id = journal.create(NEW).run_id
    journal.become(run_id, RunState.STOPPED)
    assert journal.submit_again(run_id).state is RunState.SUBMITTED
    journal.become(run_id, RunState.EVALUATING)
    journal.become(run_id, RunState.FINISHED)
    with pytest.raises(ConflictError, match="is finished and cannot become submitted"):
        journal.submit_again(run_id)


def test_requested_evaluations_are_numbered_and_end_once(journal: Journal) -> None:
    run_id = journal.create(NEW).run_id
    first, second = journal.request_evaluation(run_id, ["a"], None), journal.request_evaluation(run_id, [], {"handlers": []})
    assert [request.number for request in journal.open_evaluations()] == [1, 2]
    assert journal.evaluation(run_id, 2) == second
    journal.end_evaluation(first, ["no such sample", "nor that"], "DATA")
    ended = journal.evaluation(run_id, 1)
    assert (ended.state, ended.error_reason) == (JobState.FAILED, "DATA")
    assert ended.error == "no such sample (1 more failed, see the run's events)"
    assert [request.number for request in journal.open_evaluations()] == [2]
    events, complete = journal.events(run_id, 0, evaluation=1)
    assert complete
    assert events[-1].detail == RunMessage(f"requested evaluations 1 failed: {ended.error}")
    assert not journal.events(run_id, 0, evaluation=2)[1]
    with pytest.raises(NotFoundError, match="has no requested evaluations 3"):
        journal.evaluation(run_id, 3)


def test_runs_that_may_rest_on_deleted_samples_are_told(journal: Journal) -> None:
    def made(last_key: int = 100, has_model: bool = True, **values: Any) -> RunId:
        run = journal.claim(journal.create(dataclasses.replace(NEW, **values)).run_id)
        if has_model:
            play(run)
        run.advance(dataclasses.replace(CURSOR, last_key=last_key), {"version": 1})
        return run.run_id

    used = [made(dataset_identity="one"), made(dataset_identity="one", end_key=8, last_key=0)]
    used.append(made(dataset_identity="other", evaluation_identities={"d": "one"}))
    before = [made(6, dataset_identity="one"), made(dataset_identity="one", end_key=7)]
    others = [
        made(dataset_identity="two"),
        made(dataset_identity="one", has_model=False),
        made(evaluation_identities={"e": "one"}),
    ]
    assert journal.tell_of_deletion(DeletedSamples("d", "one", "a.csv", 1234, first_key=7)) == used
    assert journal.tell_of_deletion(DeletedSamples("d", "one", "a.csv", 0, first_key=None)) == []
    for run_id in used:
        message = messages_of(kept_events(journal, run_id)[-1:])[0]
        assert "1,234 samples of dataset 'd' were deleted, since a.csv was taken again" in message
    for run_id in [*before, *others]:
        assert not [message for message in messages_of(kept_events(journal, run_id)) if "deleted" in message]


def test_a_recorded_journal_replays_to_the_same_decisions(
    system_config: SystemConfig, tmp_path: Path, database: Database
) -> None:
    """From what was journalled alone: every transition is in the table, and policy and stream give the recorded triggers."""
    services = InMemoryServices(tmp_path)
    services.storage.add_dataset("train")
    times = np.sort(np.random.default_rng(5).integers(0, 100, 60))
    services.storage.add_samples("train", timestamps=times)
    yaml = pipeline_yaml(trigger={"id": "TimeTrigger", "every": "15s"})
    with services.supervise(system_config) as runs:
        run_id = RunId(finish(runs, yaml).run_id)
    journal = Journal(database)

    state: RunState | None = None
    fired: dict[int, TriggerFired] = {}
    for event in journal.events(run_id, 0)[0]:
        if isinstance(event.detail, StateChange):
            following = event.detail.state
            if state is not None:
                check_transition(run_id, state, following)
            state = following
        elif isinstance(event.detail, TriggerFired) and event.trigger_id is not None:
            fired[event.trigger_id] = event.detail
    assert state is RunState.FINISHED

    batch = SampleBatch(np.arange(60), times, np.zeros(60, np.int64))
    policy = build_trigger(journal.run(run_id).pipeline["trigger"])
    positions = [check.position for check in decide(policy, [batch]) if check.fires]
    assert [fired[number].position for number in sorted(fired)] == positions == [t.position for t in journal.triggers(run_id)]
    snapshot = journal.snapshot(run_id)
    assert snapshot.policy_state == policy.state()
    assert snapshot.cursor.position == 60


def test_an_outage_while_a_run_stops_leaves_it_stopped(journal: Journal, run: RunJournal) -> None:
    run.enter(RunState.STREAMING)
    journal.become(run.run_id, RunState.STOPPING)
    for _ in range(2):
        run.end(RunState.INTERRUPTED, error="storage cannot be reached", error_reason="UNAVAILABLE")
    ended = journal.run(run.run_id)
    assert (ended.state, ended.error, ended.error_reason) == (RunState.STOPPED, "", "")
    with pytest.raises(ConflictError, match="is stopped and not interrupted any more"):
        journal.submit_again(run.run_id, only=RunState.INTERRUPTED)
    assert journal.run(run.run_id).state is RunState.STOPPED


def test_a_failed_evaluation_counts_while_it_is_made_again(journal: Journal, run: RunJournal) -> None:
    """Those of requests have statuses of their own, and are no evaluations of the run that could be made again under their names."""
    own = EvaluationTask("h", "test", 0, 0, 4, (EvalInterval(0, 1, 0),))
    play(run)
    again = dataclasses.replace(own, handler="again")
    requested = dataclasses.replace(own, handler="asked", when="request 1")
    later = RunJournal(journal, run.run_id, attempt=None)
    later.begin_evaluation(requested)
    assert (journal.run(run.run_id).failed_evaluations, journal.snapshot(run.run_id).failed) == (0, frozenset())
    later.end_evaluation_task(requested, 1.0, "no such sample")
    later.begin_evaluation(again)
    later.end_evaluation_task(again, 1.0, "no such sample")
    for _ in range(2):
        assert (journal.run(run.run_id).failed_evaluations, journal.snapshot(run.run_id).failed) == (
            2,
            frozenset({(0, "again/test/0")}),
        )
        later.begin_evaluation(again)  # The supervisor is killed here.
    later.end_evaluation_task(again, 1.0)
    assert (journal.run(run.run_id).failed_evaluations, journal.snapshot(run.run_id).failed) == (1, frozenset())


def test_what_a_request_fails_at_is_not_missing_where_it_is_there(journal: Journal) -> None:
    """Made by the run itself, or by a request once the run had ended. Two evaluations of the run are of different intervals."""
    run_id = journal.create(NEW).run_id
    play(journal.claim(run_id))
    own = EvaluationTask("h", "test", 0, 0, 4, (EvalInterval(0, 1, 0),))
    later = RunJournal(journal, run_id, attempt=None)

    def make(handler: str, when: int | str, error: str | None = None) -> int:
        task = dataclasses.replace(own, handler=handler, when=when)
        later.begin_evaluation(task)
        later.end_evaluation_task(task, 1.0, error)
        return journal.run(run_id).failed_evaluations

    assert make("h", "request 1", "another dataset has its name") == 0
    assert make("manual", "request 2", "no room") == 1
    assert make("manual", "request 3") == 0
    assert make("manual", "request 4", "another dataset has its name") == 0
    assert make("late", 0, "no room") == 1
    assert make("late", "end") == 1, "of the intervals that came later"
    assert make("late", "request 5") == 0
