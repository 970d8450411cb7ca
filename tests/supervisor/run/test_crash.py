"""The supervisor is killed at any moment, and the resumed run ends like an undisturbed one."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.system import SupervisorConfig, SystemConfig
from modyn.db.engine import Database, open_database
from modyn.errors import ConflictError, CorruptStateError, TrainingError
from modyn.records import SampleBatch
from modyn.rpc.retry import CancellationToken
from modyn.supervisor.evidence import Evidence
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.journal.records import NewRun, RunMode, RunOptions
from modyn.supervisor.journal.states import TERMINAL, RunState
from modyn.supervisor.journal.write import Write
from modyn.supervisor.run.executor import RunExecutor
from modyn.supervisor.services.run_clients import RunClients
from modyn.supervisor.triggers import Check, CheckContext, Trigger, TriggerContext, build_trigger
from modyn.supervisor.triggers.time import TimeTrigger
from modyn.testing.checks import decide
from modyn.testing.services import InMemoryServices, pipeline_yaml

CONFIG = SupervisorConfig(stream_batch_size=12)
STRATEGY = {"type": "SlicingEvalStrategy", "eval_every": "10s", "eval_start_from": 0, "eval_end_at": 40}
YAML = pipeline_yaml(
    trigger={"id": "TimeTrigger", "every": "10s"},
    evaluation={
        "datasets": [{"dataset_id": "test", "metrics": [{"name": "Accuracy"}]}],
        "handlers": [
            {"name": "matrix", "execution_time": "after_training", "datasets": ["test"], "strategy": STRATEGY},
            {
                "name": "active",
                "execution_time": "after_pipeline",
                "models": "active",
                "datasets": ["test"],
                "strategy": {"type": "BetweenTwoTriggersEvalStrategy"},
            },
        ],
    },
)


class Crash(BaseException):
    """A kill -9: nothing catches it."""


class Bomb:
    """Goes off at the n-th boundary: before or after a call to another service or a commit. From then on every call fails, in any thread."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.count = 0
        self.gone_off = False

    def tick(self) -> None:
        self.count += 1
        if self.gone_off or self.count == self.at:
            self.gone_off = True
            raise Crash

    def around(self, target: Any) -> Any:
        """`target`, with a boundary before and after each of its calls."""
        bomb = self

        class Wired:
            def __getattr__(self, name: str) -> Any:
                method = getattr(target, name)

                def call(*arguments: Any, **options: Any) -> Any:
                    bomb.tick()
                    result = method(*arguments, **options)
                    bomb.tick()
                    return result

                return method if name == "close" else call

        return Wired()


class WiredJournal(Journal):
    def __init__(self, database: Database, bomb: Bomb) -> None:
        super().__init__(database)
        self._bomb = bomb

    @contextmanager
    def write(self, run_id: str, attempt: int | None = None) -> Iterator[Write]:
        self._bomb.tick()
        with super().write(run_id, attempt) as write:
            yield write
        self._bomb.tick()


def new_run(yaml: str = YAML) -> NewRun:
    return NewRun(RunOptions(RunMode.EXPERIMENT), "Test", yaml, "p.yaml", {}, selection_seed=7, total_samples=35, end_key=35)


def drive(journal: Journal, services: InMemoryServices, run_id: Any, bomb: Bomb, config: SupervisorConfig = CONFIG) -> None:
    """Execute a run as the supervisor does, in this thread."""
    run_journal = journal.claim(run_id)
    clients = services.clients()
    wired = RunClients(**{field.name: bomb.around(getattr(clients, field.name)) for field in dataclasses.fields(RunClients)})
    message = RunExecutor(journal.snapshot(run_id), run_journal, wired, EventHub(), config, CancellationToken()).execute()
    run_journal.end(RunState.FINISHED, message=message)


def revive(journal: Journal, services: InMemoryServices, run_id: Any, config: SupervisorConfig = CONFIG) -> bool:
    """Resume a run unless it has finished; return whether it had not."""
    if journal.run(run_id).state not in TERMINAL:
        journal.become(run_id, RunState.INTERRUPTED)
    if journal.run(run_id).state is RunState.FINISHED:
        return False
    journal.submit_again(run_id)
    drive(journal, services, run_id, Bomb(), config)
    return True


def killed(database: Database, folder: Path, at: int, new: NewRun) -> tuple[InMemoryServices, Any]:
    """Execute a new run over services of its own until it is killed at a boundary, if it comes that far."""
    services, bomb = make_services(folder / str(at)), Bomb(at)
    run_id = Journal(database).create(new).run_id
    with suppress(Crash):
        drive(WiredJournal(database, bomb), services, run_id, bomb)
    return services, run_id


def outcome(journal: Journal, services: InMemoryServices, run_id: Any) -> tuple[Any, ...]:
    triggers = [
        (t.trigger_id, t.position, t.first_timestamp, t.last_timestamp, t.keys_checksum, t.parent_model_id, t.weights_sha256)
        for t in journal.triggers(run_id)
    ]
    results = sorted((r.trigger_id, r.handler, r.interval.anchor, r.metric, r.value) for r in services.evaluator.results(run_id))
    run = journal.run(run_id)
    keys = services.selector.runs[run_id].samples.keys.tolist()
    return triggers, results, run.state, run.num_samples, run.samples_trained, keys


def make_services(folder: Path) -> InMemoryServices:
    folder.mkdir()
    services = InMemoryServices(folder)
    services.storage.add_dataset("train")
    services.storage.add_dataset("test")
    services.storage.add_samples("train", timestamps=range(35))
    return services


@pytest.fixture
def database(system_config: SystemConfig) -> Iterator[Database]:
    database = open_database(system_config, "supervisor", "modyn.supervisor.migrations")
    with database.session() as session:
        # This test commits some ten thousand times and never loses power.
        session.connection().exec_driver_sql("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
    database.engine.dispose()
    yield database
    database.close()


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(1, 7))])
def test_killed_at_every_boundary(database: Database, tmp_path: Path, first: int) -> None:
    """The tests cover all boundaries: each test a seventh of them, equally often before and after a call or commit."""
    quiet = Bomb()
    services = make_services(tmp_path / "undisturbed")
    journal = Journal(database)
    run_id = journal.create(new_run()).run_id
    drive(WiredJournal(database, quiet), services, run_id, quiet)
    expected = outcome(journal, services, run_id)
    assert [t[1] for t in expected[0]] == [10, 20, 30]
    assert len(expected[1]) == 3 * 4 + 3
    assert quiet.count > 80

    for at in range(first + 1, quiet.count + 1, 7):
        services, bomb = make_services(tmp_path / str(at)), Bomb(at)
        run_id = journal.create(new_run()).run_id
        with pytest.raises(Crash):
            drive(WiredJournal(database, bomb), services, run_id, bomb)
        revive(journal, services, run_id)
        assert outcome(journal, services, run_id) == expected, f"killed at boundary {at}"
        asked = [request.trigger_id for request in services.trainer_server.requests]
        assert asked == [0, 1, 2], f"killed at boundary {at}: trained {asked}"
        events, complete = journal.events(run_id, 0)
        assert complete
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert [event.trigger_id for event in events if event.kind == "trigger_fired"] == [0, 1, 2]


@pytest.mark.slow
@given(
    policy=st.sampled_from([{"id": "DataAmountTrigger", "num_samples": 10}, {"id": "TimeTrigger", "every": "10s"}]),
    at=st.integers(1, 60),
    late=st.lists(st.integers(-5, 40), max_size=4),
    deleted=st.sets(st.integers(0, 34), max_size=12),
)
def test_what_comes_or_is_deleted_while_a_run_is_down_changes_nothing_that_was_decided(
    database: Database,
    tmp_path_factory: pytest.TempPathFactory,
    policy: dict[str, Any],
    at: int,
    late: list[int],
    deleted: set[int],
) -> None:
    """The stream is what the selector held, then what is left of the dataset as it was at submission; later windows lack what is deleted."""
    services = make_services(tmp_path_factory.mktemp("services") / "x")
    journal = Journal(database)
    run_id = journal.create(new_run(pipeline_yaml(trigger=policy))).run_id
    bomb = Bomb(at)
    with suppress(Crash):
        drive(WiredJournal(database, bomb), services, run_id, bomb)
    run = services.selector.runs.get(run_id)
    held = [] if run is None else run.samples.keys.tolist()
    num_selected = 0 if run is None else len(run.sets)
    services.storage.add_samples("train", timestamps=late)
    services.storage.client().delete_samples("train", np.array(sorted(deleted), np.int64))
    revive(journal, services, run_id)

    stream = np.array(held + [key for key in range(len(held), 35) if key not in deleted], np.int64)
    batch = SampleBatch(stream, stream, np.zeros_like(stream))
    positions = [check.position for check in decide(build_trigger(policy, TriggerContext(7)), [batch]) if check.fires]
    assert services.selector.runs[run_id].samples.keys.tolist() == stream.tolist()
    assert [trigger.position for trigger in journal.triggers(run_id)] == positions
    sets = [trigger_set.keys.tolist() for trigger_set in services.selector.runs[run_id].sets]
    windows = [stream[start:end].tolist() for start, end in pairwise([0, *positions])]
    left = [[key for key in window if key not in deleted] for window in windows[num_selected:]]
    assert sets == windows[:num_selected] + left


def test_an_attempt_that_was_replaced_can_no_longer_write(database: Database) -> None:
    journal = Journal(database)
    run_id = journal.create(new_run()).run_id
    old = journal.claim(run_id)
    old.enter(RunState.STREAMING)
    new = journal.claim(run_id)
    with pytest.raises(ConflictError, match="taken over by another supervisor"):
        old.enter(RunState.EVALUATING)
    new.enter(RunState.EVALUATING)
    assert journal.run(run_id).state is RunState.EVALUATING


@pytest.mark.parametrize("batch_size", [3, 10, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 20, 35))])
def test_a_run_continues_in_batches_of_another_size(database: Database, tmp_path: Path, batch_size: int) -> None:
    """The time trigger decides between two samples, also if a batch ends there now."""
    services = make_services(tmp_path / "x")
    journal = Journal(database)
    run_id = journal.create(new_run()).run_id
    train = services.trainer_server.train

    def fails_at_the_last(request: Any) -> Any:
        if request.trigger_id == 2:
            raise TrainingError("x")
        return train(request)

    services.trainer_server.train = fails_at_the_last
    with pytest.raises(TrainingError):
        drive(journal, services, run_id, Bomb(), SupervisorConfig(stream_batch_size=35))
    services.trainer_server.train = train
    journal.become(run_id, RunState.FAILED)
    journal.submit_again(run_id)
    drive(journal, services, run_id, Bomb(), SupervisorConfig(stream_batch_size=batch_size))
    assert [trigger.position for trigger in journal.triggers(run_id)] == [10, 20, 30]
    assert journal.run(run_id).state is RunState.FINISHED


@pytest.mark.parametrize("every", [9, pytest.param(3, marks=pytest.mark.slow)])
def test_verdicts_are_replayed_not_asked_again(
    database: Database, tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check never gives the same answer twice, like a distance measured on a GPU. A killed run keeps its journalled verdicts."""
    generator, asked = random.Random(3), list[int]()

    def check(self: Trigger, context: CheckContext) -> Check:
        asked.append(context.position)
        drawn = generator.random()
        return Check(drawn < 0.6, [Evidence("drawn", drawn)])

    monkeypatch.setattr(TimeTrigger, "check", check)
    journal = Journal(database)
    for at in range(1, 70, every):
        services, run_id = killed(database, tmp_path, at, new_run())
        journalled = journal.checks(run_id)
        asked.clear()
        revive(journal, services, run_id)
        assert not set(asked) & {record.position for record in journalled}, f"killed at boundary {at}: asked {asked}"
        checks = journal.checks(run_id)
        assert checks[: len(journalled)] == journalled
        assert [record.position for record in checks] == [10, 20, 30]
        assert all(record.fires == (record.numbers["drawn"] < 0.6) and record.seconds >= 0 for record in checks)
        fired = [record.position for record in checks if record.fires]
        assert [trigger.position for trigger in journal.triggers(run_id)] == fired, f"killed at boundary {at}"


@pytest.mark.slow
def test_verdicts_of_both_policies_are_replayed(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with a policy of online steps that decides at its own positions and at all positions of the other policy."""
    generator, asked = random.Random(3), list[tuple[int, bool]]()

    def check(self: Trigger, context: CheckContext) -> Check:
        asked.append((context.position, self.context.online))
        drawn = generator.random()
        return Check(drawn < 0.6, [Evidence("drawn", drawn)])

    monkeypatch.setattr(TimeTrigger, "check", check)
    text = pipeline_yaml(
        trigger={"id": "TimeTrigger", "every": "10s"}, online={"trigger": {"id": "TimeTrigger", "every": "5s"}, "step_samples": 2}
    )
    journal, num_resumed = Journal(database), 0
    for at in range(1, 90, 4):
        services, run_id = killed(database, tmp_path, at, new_run(text))
        journalled = journal.checks(run_id)
        asked.clear()
        num_resumed += revive(journal, services, run_id)
        assert not set(asked) & {(record.position, record.online) for record in journalled}, f"killed at boundary {at}"
        checks, triggers = journal.checks(run_id), journal.triggers(run_id)
        assert all(record in checks for record in journalled)
        assert [c.position for c in checks if not c.online] == [10, 20, 30]
        assert [c.position for c in checks if c.online] == list(range(5, 35, 5))
        retrained = [c.position for c in checks if c.fires and not c.online]
        assert [t.position for t in triggers if not t.online] == retrained
        # Steps do not fire if the retraining at the same position has taken what was pending, or if there is no model.
        assert [t.position for t in triggers if t.online] == [c.position for c in checks if c.fires and c.online]
    assert num_resumed > 10


@pytest.mark.parametrize("every", [17, pytest.param(5, marks=pytest.mark.slow)])
def test_bounded_steps_take_each_sample_once_at_any_kill(database: Database, tmp_path: Path, every: int) -> None:
    online = {"trigger": {"id": "TimeTrigger", "every": "8s"}, "step_samples": 2, "max_samples": 5, "max_share": 0.9}
    text = pipeline_yaml(trigger={"id": "InitialTrigger", "num_samples": 10}, online=online)
    journal = Journal(database)
    new = dataclasses.replace(new_run(text), options=RunOptions(RunMode.EXPERIMENT, final_trigger=True))
    for at in (10_000, *range(25, 150, every)):  # the first one is left alone
        services, run_id = killed(database, tmp_path, at, new)
        revive(journal, services, run_id)
        triggers = journal.triggers(run_id)
        # 6 samples wait at 16, 9 at 24 and 12 at 32; the end takes the rest in steps of at most 5.
        assert [(t.position, t.online) for t in triggers] == [
            (10, False), (16, True), (24, True), (32, True), (35, True), (35, True),
        ], f"killed at boundary {at}"  # fmt: skip
        found = [found.keys.tolist() for found in services.selector.runs[run_id].sets]
        assert [key for keys in found for key in keys] == list(range(35))
        assert [(t.first_timestamp, t.last_timestamp) for t in triggers] == [(keys[0], keys[-1]) for keys in found]
        assert [len(keys) for keys in found] == [10, 5, 5, 5, 5, 5]


@pytest.mark.slow
def test_a_final_trigger_survives_kills(database: Database, tmp_path: Path) -> None:
    journal = Journal(database)
    new = dataclasses.replace(new_run(), options=RunOptions(RunMode.EXPERIMENT, final_trigger=True))
    for at in range(60, 110, 3):
        services, run_id = killed(database, tmp_path, at, new)
        revive(journal, services, run_id)
        assert [trigger.position for trigger in journal.triggers(run_id)] == [10, 20, 30, 35], f"killed at boundary {at}"
        assert [request.trigger_id for request in services.trainer_server.requests] == [0, 1, 2, 3]


def test_a_journalled_check_that_is_not_come_to_again_is_found_out(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = make_services(tmp_path / "x")
    journal = Journal(database)
    run_id = journal.create(new_run()).run_id
    monkeypatch.setattr(TimeTrigger, "check", lambda self, context: Check(context.position > 10, [Evidence("age", 0.5)]))
    services.trainer_server.train = lambda request: (_ for _ in ()).throw(TrainingError("x"))
    with pytest.raises(TrainingError):
        drive(journal, services, run_id, Bomb(), SupervisorConfig(stream_batch_size=35))
    journal.become(run_id, RunState.FAILED)
    journal.submit_again(run_id)
    monkeypatch.setattr(TimeTrigger, "next_check", lambda self, batch, start: None)
    with pytest.raises(CorruptStateError, match="checked after 10 samples, but not when it continues"):
        drive(journal, services, run_id, Bomb())


@pytest.mark.parametrize("change", ["earlier", "later", "never"])
def test_a_policy_that_decides_otherwise_when_it_continues_is_found_out(
    database: Database, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = make_services(tmp_path / "x")
    journal = Journal(database)
    run_id = journal.create(new_run()).run_id
    train, broken = services.trainer_server.train, True

    def fails_once(request: Any) -> Any:
        if broken and request.trigger_id == 1:
            raise CorruptStateError("x")
        return train(request)

    services.trainer_server.train = fails_once
    with pytest.raises(CorruptStateError, match="^x$"):
        drive(journal, services, run_id, Bomb())
    broken = False
    journal.become(run_id, RunState.FAILED)
    journal.submit_again(run_id)
    next_checks: dict[str, Callable[..., int | None]] = {
        "earlier": lambda self, batch, start: 2 if start < 2 else None,
        "later": lambda self, batch, start: len(batch) if start < len(batch) else None,
        "never": lambda self, batch, start: None,
    }
    monkeypatch.setattr(TimeTrigger, "next_check", next_checks[change])
    with pytest.raises(CorruptStateError, match="fired trigger 1 after 20 samples, but not when it continues"):
        drive(journal, services, run_id, Bomb())
