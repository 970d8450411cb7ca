"""Calls, streams and jobs are repeated for a limited time, and a cancelled token ends every wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from modyn.errors import (
    CancelledError,
    DeadlineError,
    ModynError,
    NotFoundError,
    TrainingError,
    UnavailableError,
    WorkerDiedError,
)
from modyn.records import JobState
from modyn.rpc.retry import CancellationToken, ResumingStream, Retrier, RetryPolicy
from modyn.testing.waiting import PATIENCE_S

GONE = UnavailableError("x cannot be reached")
QUICK = RetryPolicy(PATIENCE_S, first_pause_s=0.001, longest_pause_s=0.002, max_attempts_without_progress=3)


@dataclass(frozen=True)
class Status:
    state: JobState
    samples_seen: int = 0

    def to_error(self) -> ModynError:
        return TrainingError("worker 3 was killed")


def unreachable() -> None:
    raise GONE


def not_called() -> None:
    raise AssertionError("not called")


def test_a_call_is_given_up_once_the_limit_has_passed() -> None:
    reported: list[str] = []
    with pytest.raises(UnavailableError, match=r"^gave up after 0 s: x cannot be reached; start it$"):
        Retrier(RetryPolicy(0.1, advice="start it"), report=reported.append).call(unreachable)
    assert reported == ["x cannot be reached (trying again for 0 s)"]
    with pytest.raises(UnavailableError) as raised:
        Retrier(RetryPolicy(0.0)).call(unreachable)
    assert raised.value is GONE


def test_deadlines_are_repeated_only_where_the_policy_says_so() -> None:
    answers: list[ModynError] = [DeadlineError("slow"), GONE]

    def call() -> str:
        if answers:
            raise answers.pop(0)
        return "answer"

    assert Retrier(QUICK).call(call) == "answer"
    answers[:] = [GONE, DeadlineError("slow")]
    with pytest.raises(DeadlineError):
        Retrier(RetryPolicy(PATIENCE_S, first_pause_s=0.001, on_deadline=False)).call(call)


def test_the_first_cause_of_a_cancellation_ends_calls_and_waits() -> None:
    token, seen = CancellationToken(), list[ModynError]()
    token.on_cancel(seen.append)
    token.cancel(CancelledError("first"))
    token.cancel(CancelledError("second"))
    token.on_cancel(seen.append)
    assert [error.message for error in seen] == ["first", "first"]
    with pytest.raises(CancelledError, match="first"):
        Retrier(QUICK, token).call(lambda: None)
    with pytest.raises(CancelledError, match="first"):
        token.wait(PATIENCE_S)


def test_a_stream_resumes_after_the_last_item() -> None:
    opened: list[int] = []

    def open_at(position: int) -> Iterator[int]:
        opened.append(position)
        for item in range(position, 6):
            yield item
            if item == position + 1:
                raise GONE

    stream: ResumingStream[int, int] = ResumingStream(open_at, 0, lambda item: item + 1, Retrier(QUICK))
    assert list(stream) == [0, 1, 2, 3, 4, 5]
    assert opened == [0, 2, 4, 6]
    stream.cancel()
    assert list(stream) == []


def test_an_outage_of_a_quiet_stream_ends_where_the_stream_lives() -> None:
    """Two restarts of a service with days between them and no item are two outages: the second has the whole limit."""
    limit_s, now, endings = 0.2, [0.0], [(0.0, GONE), (1e5, GONE), (0.0, GONE)]

    def open_at(position: int) -> Iterator[int]:
        if endings:
            open_s, error = endings.pop(0)
            now[0] += open_s
            time.sleep(limit_s * (open_s > 0))
            raise error
        yield position

    policy = RetryPolicy(limit_s, first_pause_s=0.001)
    assert next(ResumingStream(open_at, 7, lambda item: item + 1, Retrier(policy), clock=lambda: now[0])) == 7
    endings[:] = [(0.0, GONE), (1.0, GONE), (0.0, GONE)]
    with pytest.raises(UnavailableError):
        next(ResumingStream(open_at, 7, lambda item: item + 1, Retrier(policy), clock=lambda: now[0]))


def test_a_job_is_started_again_after_outages_restarts_and_stops_of_others() -> None:
    running, seen = Status(JobState.RUNNING, 1), list[Status]()
    endings: list[ModynError | Status] = [GONE, NotFoundError("no such job"), Status(JobState.STOPPED, 2), running]

    def watch() -> Iterator[Status]:
        yield running
        if not endings:
            yield Status(JobState.FINISHED, 9)
        elif isinstance(ending := endings.pop(0), ModynError):
            raise ending
        else:
            yield ending

    policy = RetryPolicy(PATIENCE_S, first_pause_s=0.001, longest_pause_s=0.002)
    assert Retrier(policy).follow(lambda: Status(JobState.QUEUED), watch, seen.append, not_called) == Status(JobState.FINISHED, 9)
    assert seen.count(running) == 6
    assert endings == []


def test_a_job_that_fails_or_never_gets_further_is_given_up() -> None:
    def watch(state: JobState) -> Iterator[Status]:
        yield Status(state, 5)

    def start() -> Status:
        return Status(JobState.QUEUED)

    with pytest.raises(TrainingError, match="worker 3 was killed"):
        Retrier(QUICK).follow(start, lambda: watch(JobState.FAILED), lambda _: None, not_called)
    with pytest.raises(
        UnavailableError, match="gave up after 3 attempts without progress: the job was stopped by another caller"
    ):
        Retrier(QUICK).follow(start, lambda: watch(JobState.STOPPED), lambda _: None, not_called)


def test_a_job_that_fails_for_a_while_gets_longer_pauses_and_is_told_once() -> None:
    """As on a full disk: the service answers, and the job fails without progress."""
    reported: list[str] = []
    room_at = time.monotonic() + 0.3

    def watch() -> Iterator[Status]:
        yield Status(JobState.RUNNING)
        yield Status(JobState.STOPPED if time.monotonic() < room_at else JobState.FINISHED)

    policy = RetryPolicy(PATIENCE_S, first_pause_s=0.01, longest_pause_s=0.1, max_attempts_without_progress=10)
    end = Retrier(policy, report=reported.append).follow(lambda: Status(JobState.QUEUED), watch, lambda _: None, not_called)
    assert end == Status(JobState.FINISHED)
    assert len(reported) == 1


@pytest.mark.parametrize("deaths", [0, 2, 3])
def test_a_job_whose_worker_was_killed_is_started_again_a_bounded_number_of_times(deaths: int) -> None:
    """This holds even if each attempt got further than the one before, since some work kills every worker."""

    class Killed(Status):
        def to_error(self) -> ModynError:
            return WorkerDiedError("the process ended by SIGKILL (log: x)")

    reported, starts = list[str](), list[str]()

    def start() -> Status:
        starts.append("start")
        return Status(JobState.QUEUED)

    def watch() -> Iterator[Status]:
        yield Killed(JobState.FAILED, len(starts)) if len(starts) <= deaths else Status(JobState.FINISHED, 9)

    retrier = Retrier(QUICK, report=reported.append)
    if deaths < QUICK.max_worker_deaths:
        assert retrier.follow(start, watch, lambda _: None, not_called).state is JobState.FINISHED
    else:
        with pytest.raises(WorkerDiedError, match=r"SIGKILL \(log: x\); it was the last of 3 workers, .* more memory"):
            retrier.follow(start, watch, lambda _: None, not_called)
    assert len(starts) == min(deaths + 1, QUICK.max_worker_deaths)
    told = "the process ended by SIGKILL (log: x) (another worker makes it again, attempt {} of 3)"
    assert reported == [told.format(attempt) for attempt in range(2, len(starts) + 1)]


@pytest.mark.parametrize("deaths", [0, 2, 3])
def test_a_call_whose_worker_was_killed_is_made_again_a_bounded_number_of_times(deaths: int) -> None:
    calls, reported = list[int](), list[str]()

    def call() -> str:
        calls.append(len(calls))
        if len(calls) <= deaths:
            raise WorkerDiedError("the process ended by SIGKILL (log: x)")
        return "answer"

    retrier = Retrier(QUICK, report=reported.append)
    if deaths < QUICK.max_worker_deaths:
        assert retrier.call_worker(call) == "answer"
    else:
        with pytest.raises(WorkerDiedError, match="the last of 3 workers"):
            retrier.call_worker(call)
    assert len(calls) == min(deaths + 1, QUICK.max_worker_deaths)
    assert len(reported) == len(calls) - 1


def test_a_cancelled_job_is_not_made_again_by_another_worker() -> None:
    token, starts = CancellationToken(), list[str]()

    def start() -> Status:
        starts.append("start")
        return Status(JobState.QUEUED)

    def watch() -> Iterator[Status]:
        yield Status(JobState.RUNNING)
        token.cancel(CancelledError("on request"))
        raise WorkerDiedError("the process ended by SIGKILL")

    with pytest.raises(CancelledError, match="on request"):
        Retrier(QUICK, token).follow(start, watch, lambda _: None, lambda: None)
    assert starts == ["start"]


@pytest.mark.parametrize(("cause", "stops"), [(CancelledError("on request"), 2), (UnavailableError("the supervisor ends"), 0)])
def test_a_job_is_stopped_when_its_run_is_cancelled_on_request(cause: ModynError, stops: int) -> None:
    """Twice, since at the first time the service may not have known the job yet."""
    token, stopped = CancellationToken(), list[str]()

    def watch() -> Iterator[Status]:
        yield Status(JobState.RUNNING)
        token.cancel(cause)
        yield Status(JobState.RUNNING)

    def stop() -> None:
        stopped.append("stop")
        raise NotFoundError("no such job")

    with pytest.raises(type(cause), match=cause.message):
        Retrier(QUICK, token).follow(lambda: Status(JobState.QUEUED), watch, lambda _: None, stop)
    assert len(stopped) == stops
