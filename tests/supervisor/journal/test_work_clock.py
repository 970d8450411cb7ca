"""Seconds of work: what counts, and what does not."""

from __future__ import annotations

from modyn.records import JobState
from modyn.supervisor.journal.work_clock import WorkClock, stage_seconds
from modyn.trainer_server.client import TrainingResult


def test_only_running_counts() -> None:
    times = iter([0.0, 100.0, 103.0, 104.0, 200.0, 205.0, 300.0])
    clock = WorkClock(lambda: next(times))
    states = [JobState.QUEUED, JobState.RUNNING, JobState.RUNNING, JobState.QUEUED, JobState.RUNNING, JobState.FINISHED]
    for state in states:
        clock.report(state)
    assert clock.seconds == 3 + 1 + 5


def test_a_job_that_never_ran_has_worked_nothing() -> None:
    clock = WorkClock()
    for state in (JobState.QUEUED, JobState.FINISHED):
        clock.report(state)
    assert clock.seconds == 0


def test_the_total_holds_storing_once_and_no_evaluation() -> None:
    result = TrainingResult(seconds={"forward": 1.0, "store": 0.5})
    assert stage_seconds({"select": 1.0, "train": 4.0, "evaluate": 9.0}, result)["total"] == 5.0
    assert stage_seconds({"select": 1.0}, TrainingResult()) == {"select": 1.0}
    assert stage_seconds({}, result) == {"store": 0.5}
