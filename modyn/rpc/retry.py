"""Repeated service calls: policy, backoff, cancellation, calls, resumed streams, and jobs that are followed.

A call that is repeated must be idempotent, because an attempt may have done its work although its answer was lost.

Four modules have their own pauses, because their threads do not wait in a repeated call:
- `storage/flight/endpoints.py`: for each endpoint of Arrow Flight, shared by the threads of a fetch, which use another endpoint meanwhile.
- `supervisor/queue/reconciler.py`: for each interrupted run; one thread resumes all runs.
- `storage/ingest/open_dataset.py`: for each file that cannot be read; the next scan of the file's folder checks whether the pause has passed.
- `local/stack.py`: for each process of the embedded stack, before it is started again.

`supervisor/evaluation/queue.py` calls `Retrier.follow` again while the evaluator cannot be reached.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from modyn.errors import (
    CancelledError,
    DeadlineError,
    ModynError,
    NotFoundError,
    StreamExpiredError,
    UnavailableError,
    WorkerDiedError,
)
from modyn.records import JobState
from modyn.rpc.logs import get_logger

_LOG = get_logger("rpc")

P = ParamSpec("P")
T = TypeVar("T")
Position = TypeVar("Position")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Rules for the repetition of a call that ended with UnavailableError: how long and how often. Each pause is twice as long as the previous
    pause, up to `longest_pause_s`.
    """

    limit_s: float
    """Seconds from the first failure to the last attempt; 0: never repeat."""
    first_pause_s: float = 0.05
    longest_pause_s: float = 1.0
    jitter: float = 0.1
    """Share of each pause that is random, so that many callers do not repeat their calls at the same time."""
    max_attempts_without_progress: int = 20
    """Number of consecutive starts of a job without progress after which the job is given up (`Retrier.follow`)."""
    max_worker_deaths: int = 3
    """Number of workers that may be killed or crash in a job before the job is given up (`Retrier.follow`)."""
    on_deadline: bool = True
    """Whether a call that ended with DeadlineError is repeated."""
    advice: str = ""
    """Advice for the user in the error that is raised after the limit. This error names the limit. Empty: the last error is raised unchanged."""


class CancellationToken:
    """Asks all threads of a run to end, and stores the cause. The first cause counts."""

    def __init__(self) -> None:
        # The event is set after `_cause`, so that a thread that wakes in `wait` finds the cause.
        self._cancelled = threading.Event()
        self._lock = threading.Lock()  # Protects the fields below, so that each callback is called exactly once.
        self._cause: ModynError | None = None
        self._callbacks: list[Callable[[ModynError], None]] = []

    @property
    def cause(self) -> ModynError | None:
        """The cause of the first `cancel`; None while the token is not cancelled."""
        return self._cause

    def cancel(self, cause: ModynError) -> None:
        """Cancel the token, wake the threads that wait for it, and call the callbacks with `cause`. Later calls change nothing."""
        with self._lock:
            if self._cause is not None:
                return
            self._cause = cause
            callbacks = list(self._callbacks)
        self._cancelled.set()
        # The lock is not held here, because callbacks take their own locks, and the holders of those locks may wait for this lock.
        for callback in callbacks:
            callback(cause)

    def on_cancel(self, callback: Callable[[ModynError], None]) -> Callable[[], None]:
        """Call `callback` with the cause when the token is cancelled, to wake a thread that waits elsewhere. If the token is already cancelled, the
        callback is called immediately.

        Returns: a function that removes the callback; call this function once. If `cancel` is calling the callback at that moment, the callback may
        still run afterwards.
        """
        with self._lock:
            self._callbacks.append(callback)
            cause = self._cause
        # If `cancel` ran before the callback was added, `cancel` has not called the callback, so it is called here.
        if cause is not None:
            callback(cause)

        def remove() -> None:
            with self._lock:
                self._callbacks.remove(callback)

        return remove

    def check(self) -> None:
        """Raise the cause if there is one."""
        if self._cause is not None:
            raise self._cause

    def wait(self, seconds: float) -> None:
        """Sleep. Raises: the cause, as soon as the token is cancelled."""
        # `cancel` ends this wait early; `seconds` bounds the wait.
        self._cancelled.wait(seconds)
        self.check()


class Backoff:
    """Pauses after consecutive failures of a call."""

    def __init__(self, policy: RetryPolicy, token: CancellationToken, report: Callable[[str], None]) -> None:
        """Args: report: receives one sentence before the first pause."""
        self._policy = policy
        self._token = token
        self._report = report
        self._since: float | None = None
        self._pause_s = policy.first_pause_s

    def reset(self, *, has_progress: bool = True) -> None:
        """Let the limit begin again, because the service has answered. Args: has_progress: begin with the first pause again, too; False: the service
        answers, but its job fails each time, for example because a disk is full."""
        self._since = None
        if has_progress:
            self._pause_s = self._policy.first_pause_s

    def wait(self, error: UnavailableError) -> None:
        """Sleep before the next attempt.

        Raises: the cause of the token. After the policy's limit: `error` or, if the policy has advice, an UnavailableError with the advice.
        Without a pause: a DeadlineError, unless the policy repeats calls after a DeadlineError.
        """
        self._token.check()
        policy, now = self._policy, time.monotonic()
        if isinstance(error, DeadlineError) and not policy.on_deadline:
            raise error
        if self._since is None:
            self._since = now
            if self._pause_s == policy.first_pause_s:
                self._report(f"{error.message} (trying again for {policy.limit_s:.0f} s)")
        left_s = policy.limit_s - (now - self._since)
        if left_s <= 0:
            if not policy.advice:
                raise error
            raise UnavailableError(f"gave up after {policy.limit_s:.0f} s: {error.message}; {policy.advice}") from error
        # The pause gives the service time to recover. Only a cancellation of the token ends it early.
        self._token.wait(min(self._pause_s * (1 - policy.jitter * random.random()), left_s))
        self._pause_s = min(2 * self._pause_s, policy.longest_pause_s)


class JobStatus(Protocol):
    """The status of a job at another service: a training or an evaluation."""

    @property
    def state(self) -> JobState:
        """The current state of the job."""

    @property
    def samples_seen(self) -> int:
        """Samples that the job has processed so far: its progress."""

    def to_error(self) -> ModynError:
        """Return the error that a failed job ended with."""


S = TypeVar("S", bound=JobStatus)


class Retrier:
    """Repeats calls under one policy until they answer or the token is cancelled. Safe to share between threads."""

    def __init__(
        self, policy: RetryPolicy, token: CancellationToken | None = None, report: Callable[[str], None] = lambda _: None
    ) -> None:
        """Args: report: receives one sentence at the first of several failures in a row."""
        self.policy = policy
        self.token = token or CancellationToken()
        self._report = report

    def under(self, policy: RetryPolicy, *, silent: bool = False) -> Retrier:
        """Return a retrier with the same token and another policy. Args: silent: whether failures are not reported."""
        return Retrier(policy, self.token) if silent else Retrier(policy, self.token, self._report)

    def backoff(self) -> Backoff:
        """Return new pauses for one call, with this policy and token."""
        return Backoff(self.policy, self.token, self._report)

    def call(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `action`, repeat the call while it raises UnavailableError, and return its result."""
        backoff = self.backoff()
        while True:
            self.token.check()
            try:
                return action(*args, **kwargs)
            except UnavailableError as error:
                backoff.wait(error)

    def call_worker(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `action`, and return its result, which a worker process makes. The call is repeated as in `call`, and also if the worker was killed.

        Raises: WorkerDiedError after `max_worker_deaths`.
        """
        deaths = 0
        while True:
            try:
                return self.call(action, *args, **kwargs)
            except WorkerDiedError as error:
                deaths += 1
                self._outlive(error, deaths)

    def follow(
        self, start: Callable[[], S], watch: Callable[[], Iterator[S]], report: Callable[[S], None], stop: Callable[[], None]
    ) -> S:
        """Start a job at another service and return its status once it has finished.

        The job is started again after the service was restarted, could not be reached, or stopped the job for another caller, and a few times when
        its worker was killed. The job is stopped when the token is cancelled with CancelledError. With any other cause, the job continues to run, and
        a resumed run finds the job again.

        Args: start: starts the job, or finds the running job; called again for each attempt. watch: yields statuses up to the final status. report:
        receives every status. stop: asks for the end of the job; called by the thread that cancels the token.
        Raises: the error of a failed job; UnavailableError when the limit has passed, or after `max_attempts_without_progress` consecutive
        attempts without progress; WorkerDiedError after `max_worker_deaths`.
        """

        def stop_on_request(cause: ModynError | None) -> None:
            # Only a cancelled run ends the job at the service. After another cause, such as a failure here, the job continues.
            if isinstance(cause, CancelledError):
                try:
                    stop()
                except ModynError as error:
                    _LOG.warning("job_not_stopped", error=error.message)

        unregister = self.token.on_cancel(stop_on_request)
        try:
            return self._follow(start, watch, report)
        finally:
            unregister()
            # The request is repeated, because the service may not have known the job at the first time.
            stop_on_request(self.token.cause)

    def _follow(self, start: Callable[[], S], watch: Callable[[], Iterator[S]], report: Callable[[S], None]) -> S:
        backoff = self.backoff()
        furthest, attempts, deaths = -1, 0, 0
        while True:
            self.token.check()
            try:
                status = start()
                attempts += 1
                self.token.check()
                for status in iter(()) if status.state.is_final else _watched(watch):  # noqa: B020 - the loop replaces `status` by the newest one
                    self.token.check()
                    has_progress = status.samples_seen > furthest
                    backoff.reset(has_progress=has_progress)
                    report(status)
                    if has_progress:
                        furthest, attempts = status.samples_seen, 0
                if status.state is JobState.FINISHED:
                    return status
                self.token.check()
                raise _job_error(status)
            except UnavailableError as error:
                if attempts >= self.policy.max_attempts_without_progress:
                    raise UnavailableError(f"gave up after {attempts} attempts without progress: {error.message}") from error
                backoff.wait(error)
            except WorkerDiedError as error:
                deaths += 1
                self._outlive(error, deaths)

    def _outlive(self, error: WorkerDiedError, deaths: int) -> None:
        """Wait before another worker repeats the work. Raises: WorkerDiedError: no further worker is allowed. The cause of the token."""
        self.token.check()
        most = self.policy.max_worker_deaths
        if deaths >= most:
            raise WorkerDiedError(
                f"{error.message}; it was the last of {most} workers, which all ended like this: give them more memory, or see in the log "
                "what they were doing"
            ) from error
        self._report(f"{error.message} (another worker makes it again, attempt {deaths + 1} of {most})")
        # The pause lets a short lack of memory pass, of which workers may have died. A cancellation of the token ends it early.
        self.token.wait(self.policy.longest_pause_s)


_LIVES_AFTER_S = 100.0
"""Seconds after which an open stream shows that the server is alive. If the server were dead, pings of the connection would have failed earlier."""


class ResumingStream(Iterator[T], Generic[T, Position]):
    """A stream from a server. If the server becomes unavailable, the stream is opened again after the last received item.

    An outage ends with a received item, or when the stream has been open for `_LIVES_AFTER_S` seconds. The next outage may then last for the whole
    limit of the retrier again.

    Args: open_at: opens the stream at a position. position_after: returns the position after an item. convert: converts a message to an item.
    clock: seconds, monotonic.
    """

    def __init__(
        self,
        open_at: Callable[[Position], Iterator[Any]],
        position: Position,
        position_after: Callable[[T], Position],
        retrier: Retrier,
        convert: Callable[[Any], T] = lambda message: message,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_at = open_at
        self._position = position
        self._position_after = position_after
        self._retrier = retrier
        self._convert = convert
        self._clock = clock
        self._source: Iterator[Any] | None = None
        # The event is set before the source is cancelled, so that `__next__` treats the error of the source as the end of the iteration.
        self._cancelled = threading.Event()

    def __next__(self) -> T:
        backoff = self._retrier.backoff()
        while True:
            began = self._clock()
            try:
                if not self._cancelled.is_set() and self._source is None:
                    self._source = self._open_at(self._position)
                # This check follows the assignment of the source. Therefore either `cancel` sees the source, or this thread sees the event.
                if self._cancelled.is_set():
                    self.cancel()
                    raise StopIteration
                assert self._source is not None
                item = self._convert(next(self._source))
            except (CancelledError, UnavailableError) as error:
                if self._cancelled.is_set():
                    raise StopIteration from None
                if isinstance(error, CancelledError):
                    raise
                self._source = None
                if self._clock() - began >= _LIVES_AFTER_S:
                    backoff.reset()
                # An expired stream is normal: it is opened again immediately.
                if not isinstance(error, StreamExpiredError):
                    backoff.wait(error)
            else:
                self._position = self._position_after(item)
                return item

    def cancel(self) -> None:
        """End the iteration, from any thread."""
        self._cancelled.set()
        source = self._source
        if source is not None and hasattr(source, "cancel"):
            source.cancel()


def _watched(watch: Callable[[], Iterator[S]]) -> Iterator[S]:
    """Yield the statuses that `watch` yields. If a restarted service does not know the job, this counts as an outage."""
    while True:
        try:
            yield from watch()
        except StreamExpiredError:
            continue
        except NotFoundError as error:
            raise UnavailableError(f"the service was restarted: {error.message}") from error
        return


def _job_error(status: JobStatus) -> ModynError:
    if not status.state.is_final:
        return UnavailableError("the service ended its answer before the job was done")
    if status.state is JobState.STOPPED:
        return UnavailableError("the job was stopped by another caller")
    return status.to_error()
