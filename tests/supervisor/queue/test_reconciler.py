"""Orphaned runs are interrupted, interrupted runs are resumed after growing pauses; runs of another supervisor are left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import text

from modyn.config.system import SupervisorConfig, SystemConfig
from modyn.db.engine import Database, open_database
from modyn.errors import UnavailableError
from modyn.records import RunId
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.journal.records import NewRun, Run, RunMode, RunOptions
from modyn.supervisor.journal.states import RunState
from modyn.supervisor.queue.queue import RunQueue
from modyn.supervisor.queue.reconciler import Reconciler
from modyn.supervisor.services.run_clients import stopped_with_supervisor
from modyn.testing.services import InMemoryServices, pipeline_yaml, wait_until_terminal
from modyn.testing.waiting import eventually
from tests.support.runs import live_run


class LosesAnswers(Journal):
    """Once, a run is queued again and the answer to that write gets lost."""

    lost = False

    def submit_again(self, run_id: str, only: RunState | None = None) -> Run:
        run = super().submit_again(run_id, only)
        if not self.lost:
            self.lost = True
            raise UnavailableError("the connection to PostgreSQL broke")
        return run


@pytest.fixture
def runs(system_config: SystemConfig, services: InMemoryServices, database: Database) -> Iterator[RunQueue]:
    with closing(RunQueue(LosesAnswers(database), EventHub(), services.clients, system_config.supervisor)) as runs:
        yield runs


def run_of_killed_supervisor(runs: RunQueue, mode: RunMode = RunMode.EXPERIMENT) -> str:
    """A run that is streaming by the journal, as a killed supervisor leaves it."""
    new = NewRun(RunOptions(mode), "Test", pipeline_yaml(), "p.yaml", {}, selection_seed=1)
    run_id = runs.journal.create(new).run_id
    runs.journal.claim(run_id).enter(RunState.STREAMING)
    return run_id


def state(runs: RunQueue, run_id: str) -> RunState:
    return runs.journal.run(run_id).state


def to_resume() -> float:
    return REGISTRY.get_sample_value("modyn_supervisor_runs_to_resume") or 0.0


def test_a_run_that_nothing_drives_is_interrupted_at_the_third_pass(runs: RunQueue) -> None:
    run_id, live = run_of_killed_supervisor(runs), run_of_killed_supervisor(runs, RunMode.PRODUCTION)
    for _ in range(2):
        runs.reconciler.reconcile()
        assert (state(runs, run_id), state(runs, live)) == (RunState.STREAMING, RunState.STREAMING), "it may just be ending"
    runs.reconciler.reconcile()
    assert (state(runs, run_id), state(runs, live)) == (RunState.INTERRUPTED, RunState.INTERRUPTED)
    went_away = f"the supervisor that executed run {run_id} went away"
    assert runs.journal.run(run_id).error == f"{went_away}; `modyn resume {run_id}` continues it"
    assert runs.journal.run(live).error.endswith(f"{live} went away; the run continues by itself")
    assert to_resume() == 1, "only the production run resumes by itself"
    runs.reconciler.reconcile()
    assert to_resume() == 1


def test_a_run_that_another_supervisor_executes_is_left_alone(runs: RunQueue, system_config: SystemConfig) -> None:
    run_id = run_of_killed_supervisor(runs)
    with ExitStack() as stack:
        other = stack.enter_context(closing(open_database(system_config, "supervisor", "modyn.supervisor.migrations")))
        assert stack.enter_context(other.advisory_lock(f"run/{run_id}"))
        for _ in range(3):
            runs.reconciler.reconcile()
        assert state(runs, run_id) is RunState.STREAMING
    for _ in range(3):
        runs.reconciler.reconcile()
    assert state(runs, run_id) is RunState.INTERRUPTED


def test_a_run_whose_supervisor_lost_its_lock_connection_is_left_alone(
    runs: RunQueue, services: InMemoryServices, system_config: SystemConfig
) -> None:
    """PostgreSQL was restarted. The supervisor takes the lock again at its next pass, before others count the run as orphaned."""
    run_id = live_run(runs).run_id
    with ExitStack() as stack:
        database = stack.enter_context(closing(open_database(system_config, "supervisor", "modyn.supervisor.migrations")))
        others = stack.enter_context(closing(RunQueue(Journal(database), EventHub(), services.clients, system_config.supervisor)))
        others.reconciler.reconcile()
        with database.session() as session:
            cut = "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' AND database ="
            assert list(session.scalars(text(f"{cut} (SELECT oid FROM pg_database WHERE datname = current_database())"))) == [
                True
            ]
        others.reconciler.reconcile()
        assert state(runs, run_id) is RunState.WAITING_FOR_DATA
        runs.reconciler.reconcile()
        for _ in range(3):
            others.reconciler.reconcile()
    assert state(runs, run_id) is RunState.WAITING_FOR_DATA


def test_runs_that_execute_here_are_left_alone(runs: RunQueue) -> None:
    run_id = live_run(runs).run_id
    for _ in range(3):
        runs.reconciler.reconcile()
    assert state(runs, run_id) is RunState.WAITING_FOR_DATA


def test_a_submitted_run_that_no_queue_holds_is_queued_again(runs: RunQueue) -> None:
    run_id = runs.submit(pipeline_yaml(), "p.yaml", RunOptions(RunMode.PRODUCTION)).run_id
    runs.stop(run_id)
    wait_until_terminal(runs, run_id)
    with pytest.raises(UnavailableError):
        runs.resume(run_id)
    assert state(runs, run_id) is RunState.SUBMITTED
    of_another_queue = runs.journal.create(
        NewRun(RunOptions(RunMode.EXPERIMENT), "Test", "", "p.yaml", {}, selection_seed=1)
    ).run_id
    for _ in range(3):
        runs.reconciler.reconcile()
    eventually(lambda: state(runs, run_id) is RunState.WAITING_FOR_DATA)
    assert state(runs, of_another_queue) is RunState.SUBMITTED


@pytest.mark.parametrize("resume_on_start", [False, True])
@pytest.mark.parametrize("error", ["storage cannot be reached", stopped_with_supervisor(SupervisorConfig())])
def test_runs_that_were_interrupted_unseen_are_resumed(
    services: InMemoryServices, database: Database, error: str, resume_on_start: bool
) -> None:
    """Production runs are resumed after any interruption, other runs if the system file says so."""
    config = SupervisorConfig(resume_on_start=resume_on_start)
    with closing(RunQueue(Journal(database), EventHub(), services.clients, config)) as runs:
        for mode in RunMode:
            runs.journal.become(run_of_killed_supervisor(runs, mode), RunState.INTERRUPTED, error=error)
        runs.reconciler.reconcile()
        assert to_resume() == (2 if resume_on_start else 1)


def test_a_production_run_that_waited_for_its_turn_continues(
    runs: RunQueue, services: InMemoryServices, system_config: SystemConfig
) -> None:
    """Its supervisor was killed: no other holds it in a queue, and its user has the answer that it was accepted."""
    with ExitStack() as stack:
        database = stack.enter_context(closing(open_database(system_config, "supervisor", "modyn.supervisor.migrations")))
        config = SupervisorConfig(max_runs=1)
        killed = stack.enter_context(closing(RunQueue(Journal(database), EventHub(), services.clients, config)))
        live, waiting = (killed.submit(pipeline_yaml(), "p.yaml", RunOptions(RunMode.PRODUCTION)).run_id for _ in range(2))
        eventually(lambda: state(runs, live) is RunState.WAITING_FOR_DATA)
        runs.recover()
        assert (state(runs, live), state(runs, waiting)) == (RunState.WAITING_FOR_DATA, RunState.INTERRUPTED)
        runs.reconciler.reconcile()
        assert to_resume() == 1


def test_a_submission_that_is_repeated_makes_no_second_run(runs: RunQueue) -> None:
    """Neither while its run waits or executes, nor when the supervisor went away before it was queued."""
    submit = (pipeline_yaml(), "p.yaml", RunOptions(RunMode.PRODUCTION), "my own id")
    first = runs.submit(*submit)
    assert runs.submit(*submit).run_id == first.run_id
    eventually(lambda: state(runs, first.run_id) is RunState.WAITING_FOR_DATA)
    assert runs.submit(*submit).run_id == first.run_id
    assert state(runs, first.run_id) is RunState.WAITING_FOR_DATA
    assert isinstance(runs.journal, LosesAnswers)
    runs.journal.lost = True
    half = NewRun(RunOptions(RunMode.PRODUCTION), "Test", pipeline_yaml(), "p.yaml", {}, 1, submission_id="another one")
    run_id = runs.journal.create(half).run_id
    runs.recover()
    assert state(runs, run_id) is RunState.INTERRUPTED
    assert runs.submit(*submit[:3], "another one").run_id == run_id
    eventually(lambda: state(runs, run_id) is not RunState.INTERRUPTED)
    assert len(runs.journal.runs()) == 2


def test_a_run_that_never_began_waits_for_the_user(runs: RunQueue) -> None:
    """Its submission may have failed for the user, who has submitted again."""
    run_id = runs.journal.create(NewRun(RunOptions(RunMode.PRODUCTION), "Test", "", "p.yaml", {}, selection_seed=1)).run_id
    runs.recover()
    runs.reconciler.reconcile()
    assert (state(runs, run_id), to_resume()) == (RunState.INTERRUPTED, 0)
    assert "before the run was accepted; `modyn resume` starts it, `modyn rm` removes it" in runs.journal.run(run_id).error


def reconciler_of(runs: RunQueue, resume: Callable[[RunId], object], **options: Any) -> Reconciler:
    """A reconciler of production runs that resumes runs by `resume`."""
    nothing: Any = frozenset
    callbacks = {"held": nothing, "accepted": nothing, "enqueue": nothing, "resume": resume}
    return Reconciler(runs.journal, runs._attempts, SupervisorConfig(), **callbacks, **options)


@pytest.mark.parametrize("error", [UnavailableError("PostgreSQL cannot be reached"), RuntimeError("can't start new thread")])
def test_pauses_double_until_a_run_was_executed_for_long(runs: RunQueue, error: Exception) -> None:
    """A resumption that fails, with an error of any kind, is tried again after the next pause."""
    now, resumed, errors = [0.0], list[float](), [error]

    def resume(_: str) -> None:
        resumed.append(now[0])
        if errors:
            raise errors.pop()

    run = runs.journal.become(run_of_killed_supervisor(runs, RunMode.PRODUCTION), RunState.INTERRUPTED, error="storage is away")
    pauses = reconciler_of(runs, resume, longest_pause_s=40.0, clock=lambda: now[0])

    def wait_until_resumed() -> float:
        began, number = now[0], len(resumed)
        while len(resumed) == number:
            now[0] += 5
            pauses.resume_due()
        return now[0] - began

    pauses.resume_later(run)
    pauses.resume_later(run)
    assert [wait_until_resumed(), wait_until_resumed()] == [10, 20], "the first one has failed"
    for executed_s, pause_s in ((0, 40), (40, 40), (45, 10)):
        now[0] += executed_s
        pauses.resume_later(run)
        assert (to_resume(), wait_until_resumed()) == (1, pause_s)
    pauses.resume_later(run)
    pauses.close()
    pauses.resume_later(run)
    now[0] += 1000
    number = len(resumed)
    pauses.resume_due()
    assert (to_resume(), len(resumed)) == (0, number), "a closed one resumes nothing"


def test_an_interrupted_run_is_resumed_by_the_thread(runs: RunQueue) -> None:
    assert isinstance(runs.journal, LosesAnswers)
    runs.journal.lost = True
    run = runs.journal.become(run_of_killed_supervisor(runs, RunMode.PRODUCTION), RunState.INTERRUPTED, error="storage is away")
    with closing(reconciler_of(runs, runs._resume_interrupted, first_pause_s=0.01)) as resuming:
        resuming.start()
        resuming.resume_later(run)
        eventually(lambda: state(runs, run.run_id) is RunState.WAITING_FOR_DATA)
