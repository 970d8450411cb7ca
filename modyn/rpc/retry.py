"""The one place for repeated service calls: policy, backoff, cancellation, calls, resumed streams, and jobs that are followed.

Everything that is repeated here must be idempotent: the answer to an attempt that did its work may have been lost.

Four places have pauses of their own, since no thread of theirs waits in a call that is repeated:
- `storage/flight/endpoints.py`: by endpoint of Arrow Flight. The threads of a fetch share them, and change to another endpoint instead of waiting.
- `supervisor/auto_resume.py`: by run that is interrupted; a timer resumes it.
- `storage/ingest/retry_schedule.py`: by file that cannot be read; the next look at its folder asks whether it is due.
- `local/stack.py`: by process of the embedded stack, before it is started again.

`supervisor/evaluation_queue.py` calls `Retrier.follow` again while the evaluator stays away.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

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
    """How long and how often a call is repeated that ended with UnavailableError. Pauses double from the first to the longest."""

    limit_s: float
    """Seconds from the first failure to the last attempt; 0: never repeat."""
    first_pause_s: float = 0.05
    longest_pause_s: float = 1.0
    jitter: float = 0.1
    """Part of each pause that is random, so that many callers do not come back at once."""
    max_attempts_without_progress: int = 20
    """A job that was started so often in a row without getting further is given up (`Retrier.follow`)."""
    max_worker_deaths: int = 3
    """A job of which so many workers were killed or crashed is given up (`Retrier.follow`)."""
    on_deadline: bool = True
    """Whether DeadlineError is repeated like every other UnavailableError."""
    advice: str = ""
    """What to do once the limit has passed. Set: the error says so and names the limit; empty: the last error is raised as it is."""


class CancellationToken:
    """Asks all threads of a run to end, and gives the cause. The first cause counts."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()  # Set once `_cause` is, so that a thread that it wakes in `wait` finds the cause.
        self._lock = threading.Lock()  # Each callback is called exactly once, whichever of `cancel` and `on_cancel` comes first.
        self._cause: ModynError | None = None
        self._callbacks: list[Callable[[ModynError], None]] = []

    @property
    def cause(self) -> ModynError | None:
        """The cause of the first `cancel`; None while the token is not cancelled."""
        return self._cause

    def cancel(self, cause: ModynError) -> None:
        """Cancel the token, wake its waiting threads and call the callbacks with `cause`; later calls change nothing."""
        with self._lock:
            if self._cause is not None:
                return
            self._cause = cause
            callbacks = list(self._callbacks)
        self._cancelled.set()
        # Without the lock: callbacks take locks of their own, whose holders may use this token.
        for callback in callbacks:
            callback(cause)

    def on_cancel(self, callback: Callable[[ModynError], None]) -> Callable[[], None]:
        """Call `callback` with the cause, to wake a thread that waits elsewhere; at once if the token is cancelled already.

        Returns: a function that takes the callback back, to be called once. One that `cancel` is just calling may still run then.
        """
        with self._lock:
            self._callbacks.append(callback)
            cause = self._cause
        if cause is not None:
            callback(cause)

        def take_back() -> None:
            with self._lock:
                self._callbacks.remove(callback)

        return take_back

    def check(self) -> None:
        """Raise the cause if there is one."""
        if self._cause is not None:
            raise self._cause

    def wait(self, seconds: float) -> None:
        """Sleep, at most until the token is cancelled; its cause is raised then."""
        # Woken by `cancel`; bounded by `seconds`.
        self._cancelled.wait(seconds)
        self.check()


class Backoff:
    """The pauses within one stretch of failures."""

    def __init__(self, policy: RetryPolicy, token: CancellationToken, report: Callable[[str], None]) -> None:
        """Args: report: receives one sentence, before the first pause."""
        self._policy = policy
        self._token = token
        self._report = report
        self._since: float | None = None
        self._pause_s = policy.first_pause_s

    def reset(self) -> None:
        """The service answers again: the next failure begins a new stretch."""
        self._since, self._pause_s = None, self._policy.first_pause_s

    def wait(self, error: UnavailableError) -> None:
        """Sleep before the next attempt.

        Raises: the cause of the token. Once the policy's limit has passed: `error` or, with the policy's advice, UnavailableError. At
        once: a DeadlineError, unless the policy repeats those.
        """
        self._token.check()
        policy, now = self._policy, time.monotonic()
        if isinstance(error, DeadlineError) and not policy.on_deadline:
            raise error
        if self._since is None:
            self._since = now
            self._report(f"{error.message} (trying again for {policy.limit_s:.0f} s)")
        left_s = policy.limit_s - (now - self._since)
        if left_s <= 0:
            if not policy.advice:
                raise error
            raise UnavailableError(f"gave up after {policy.limit_s:.0f} s: {error.message}; {policy.advice}") from error
        self._token.wait(min(self._pause_s * (1 - policy.jitter * random.random()), left_s))
        self._pause_s = min(2 * self._pause_s, policy.longest_pause_s)


class JobStatus(Protocol):
    """The status of a job at another service: a training or an evaluation."""

    @property
    def state(self) -> JobState:
        """The state of the job now."""

    @property
    def samples_seen(self) -> int:
        """Samples that the job has processed so far: its progress."""

    def to_error(self) -> ModynError:
        """Build the error that a failed job ended with."""


S = TypeVar("S", bound=JobStatus)


class Retrier:
    """Repeats calls under one policy until they answer or the token is cancelled. Safe to share between threads."""

    def __init__(
        self, policy: RetryPolicy, token: CancellationToken | None = None, report: Callable[[str], None] = lambda _: None
    ) -> None:
        """Args: report: receives one sentence for each stretch of failures."""
        self.policy = policy
        self.token = token or CancellationToken()
        self._report = report

    def under(self, policy: RetryPolicy, *, silent: bool = False) -> Retrier:
        """Return one with the same token under another policy. Args: silent: nothing is reported."""
        return Retrier(policy, self.token) if silent else Retrier(policy, self.token, self._report)

    def backoff(self) -> Backoff:
        """Start the pauses of one stretch of attempts under this policy and token."""
        return Backoff(self.policy, self.token, self._report)

    def call(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `action` returns, as soon as it does."""
        backoff = self.backoff()
        while True:
            self.token.check()
            try:
                return action(*args, **kwargs)
            except UnavailableError as error:
                backoff.wait(error)

    def call_worker(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `action` returns, which a worker process makes: as `call`, and again when that was killed.

        Raises: WorkerDiedError after `max_worker_deaths`.
        """
        deaths = 0
        while True:
            try:
                return self.call(action, *args, **kwargs)
            except WorkerDiedError as error:
                deaths += 1
                self._outlive(error, deaths)

    def wrap(self, client: T) -> T:
        """Return `client` with every method repeated by `call`. Not for methods that return streams: see `ResumingStream`."""
        return cast("T", _Wrapped(client, self))

    def follow(
        self, start: Callable[[], S], watch: Callable[[], Iterator[S]], report: Callable[[S], None], stop: Callable[[], None]
    ) -> S:
        """Start a job at another service and return its status once it has finished.

        It is started again when the service was restarted, could not be reached, or stopped it for another caller, and a few times when its
        worker was killed. It is stopped when the token is cancelled with CancelledError; any other cause leaves it running, since a resumed
        run finds it again.

        Args: start: starts the job, or finds it; called again for each attempt. watch: yields statuses up to the final one. report:
        receives every status. stop: asks for the end of the job; called by the thread that cancels the token.
        Raises: the error of a failed job; UnavailableError when the limit has passed, or after
            `max_attempts_without_progress` attempts in a row that got no further than those before; WorkerDiedError after
            `max_worker_deaths`.
        """

        def stop_on_request(cause: ModynError | None) -> None:
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
            # Once more: the first time, the service may not have known the job yet.
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
                for status in iter(()) if status.state.is_final else _watched(watch):  # noqa: B020 - the newest one counts
                    self.token.check()
                    backoff.reset()
                    report(status)
                    if status.samples_seen > furthest:
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
        """Wait before another worker does what one died of. Raises: WorkerDiedError: so many have died; the cause of the token."""
        self.token.check()
        most = self.policy.max_worker_deaths
        if deaths >= most:
            raise WorkerDiedError(
                f"{error.message}; it was the last of {most} workers, which all ended like this: give them more memory, or see in the log "
                "what they were doing"
            ) from error
        self._report(f"{error.message} (another worker makes it again, attempt {deaths + 1} of {most})")
        self.token.wait(self.policy.longest_pause_s)


class ResumingStream(Iterator[T], Generic[T, Position]):
    """A server's stream that is opened again behind the last item received when the server goes away.

    Args: open_at: opens the stream behind a position. position_after: the position behind an item. convert: makes an item of a message.
    """

    def __init__(
        self,
        open_at: Callable[[Position], Iterator[Any]],
        position: Position,
        position_after: Callable[[T], Position],
        retrier: Retrier,
        convert: Callable[[Any], T] = lambda message: message,
    ) -> None:
        self._open_at = open_at
        self._position = position
        self._position_after = position_after
        self._retrier = retrier
        self._convert = convert
        self._source: Iterator[Any] | None = None
        self._cancelled = threading.Event()  # Set before the source is cancelled: what that raises in `__next__` is then an end.

    def __next__(self) -> T:
        backoff = self._retrier.backoff()
        while True:
            try:
                if not self._cancelled.is_set() and self._source is None:
                    self._source = self._open_at(self._position)
                # After the assignment: of `cancel` and this thread, one sees what the other did.
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


class _Wrapped:
    def __init__(self, client: object, retrier: Retrier) -> None:
        self._client = client
        self._retrier = retrier

    def __getattr__(self, name: str) -> Any:
        return partial(self._retrier.call, getattr(self._client, name))


def _watched(watch: Callable[[], Iterator[S]]) -> Iterator[S]:
    """What `watch` yields. A service that was restarted does not know the job any more: that is repeated like an outage."""
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
