"""One fetch of payloads: its requests, the threads that send them, and the order of the answers for the consumer.

A fetch is divided into requests of about 8 MiB. Each request is one `DoGet`. The threads take requests in order, and a thread keeps a request until
the request is answered. An interrupted request is continued at the next endpoint, from the first key without an answer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from modyn.errors import DeadlineError, ModynError, NotFoundError, UnavailableError
from modyn.records import Int64Array
from modyn.storage.flight.endpoints import EndpointPool
from modyn.storage.flight.protocol import (
    REQUESTS_PER_STREAM,
    AnswerHead,
    PayloadRequest,
    error_from_flight,
    error_from_text,
    from_record_batch,
)
from modyn.storage.model.samples import OnMissing, Payloads


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of the fetches of a client, in seconds, bytes and keys."""

    retry_s: float = 30.0
    """Seconds without any answer after which the error of the endpoints is raised. Until then the endpoints are tried again."""
    stall_s: float = 30.0
    """Seconds without a message after which an endpoint with an open request counts as failed. A slow endpoint reports every few seconds that it is
    alive."""
    avoid_s: float = 5.0
    """Seconds for which a failed endpoint is not tried while another endpoint is available."""
    buffer_bytes: int = 32 * 2**20
    """Largest number of bytes that a fetch buffers for a slow consumer, plus one record batch for each thread."""
    request_bytes: int = 8 * 2**20
    """Approximate size in bytes of the answer to one request."""
    first_keys: int = 1024
    """Number of keys of a request while the size of samples is unknown."""
    max_keys: int = 65_536
    """Largest number of keys of a request."""


_OPEN_PER_STREAM = 4
"""Largest number of open requests for each stream of a fetch. An open request was taken by a thread and is not consumed yet."""
_ROW_BYTES = 24
"""Number of bytes of key, label and offset of a sample in a message."""
_SAME_VERSION = "run the same version of Modyn on both sides"


class _Request:
    """A range of keys of a fetch. The first `done` keys are answered. The samples in `arrived` wait for the consumer."""

    __slots__ = ("arrived", "done", "error", "keys")

    def __init__(self, keys: Int64Array) -> None:
        self.keys = keys
        self.done = 0
        self.arrived: deque[Payloads] = deque()
        self.error: ModynError | None = None

    @property
    def is_settled(self) -> bool:
        return self.error is not None or self.done == len(self.keys)


class Fetch:
    """State that the consumer and the threads of one fetch share."""

    def __init__(
        self, asked: PayloadRequest, pool: EndpointPool, streams: int, limits: FetchLimits, deadline_s: float | None
    ) -> None:
        self.asked = asked
        self.pool = pool
        self.limits = limits
        self._streams = streams
        self._keys = asked.keys
        self._deadline_s = deadline_s
        # Protects the fields below and the fields of all requests. Each change of a field notifies the condition. Each of the four waits releases
        # the lock, so that other threads proceed. Network calls are made without the lock, so a stalled endpoint blocks only its own thread.
        self._changed = threading.Condition()
        turn = pool.next_turn()
        self._threads = [RequestThread(self, (turn + number) % len(pool)) for number in range(streams * REQUESTS_PER_STREAM)]
        self._started = self._ended = False
        self._end_error: ModynError | None = None
        self._open: deque[_Request] = deque()
        """Requests in order, from the current request of the consumer to the last request that a thread has taken."""
        self._cut_to = 0
        """Number of keys that have been divided into requests."""
        self._buffered = 0
        """Number of bytes of samples that wait for the consumer."""
        self._failing_since: float | None = None
        self._failing: set[int] = set()
        """Endpoints that have failed since the last answer of any endpoint."""
        self._identity: bytes | None = None
        """Identity of the dataset in the first answer. Later answers must have the same identity."""

    # The consumer's side

    def next(self) -> Payloads | None:
        """Return the next samples; None at the end. Raises the error that ended the fetch. While the method waits, it replaces stalled threads."""
        give_up = None if self._deadline_s is None else time.monotonic() + self._deadline_s
        with self._changed:
            while not self._ended:
                head = self._open[0] if self._open else None
                if head is not None and head.arrived:
                    arrived = head.arrived.popleft()
                    self._buffered -= arrived.data.nbytes
                    self._changed.notify_all()  # The buffer has room.
                    return arrived
                if head is not None and head.error is not None:
                    self._end(head.error)
                elif head is not None and head.is_settled:
                    self._open.popleft()
                    self._changed.notify_all()  # Threads may now take another request, or deliver samples of the next request.
                elif head is None and self._cut_to == len(self._keys):
                    self._ended = True  # All requests are answered, so no call is cancelled, and the connections can be reused.
                    self._changed.notify_all()
                elif give_up is not None and time.monotonic() >= give_up:
                    self._end(self._deadline_error(head))
                else:
                    self._start()
                    wait_s = self._replace_stalled()
                    # Wait 1: the consumer waits for samples or an error of the first request, for the deadline, or for the next stalled thread.
                    self._changed.wait(wait_s if give_up is None else min(wait_s, max(0.0, give_up - time.monotonic())))
            if self._end_error is not None:
                raise self._end_error
            return None

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()

    def _deadline_error(self, head: _Request | None) -> DeadlineError:
        key = self._keys[self._cut_to] if head is None else head.keys[head.done]
        owing = sorted({thread.address for thread in self._threads if thread.request is not None})
        return DeadlineError(
            f"the sample with key {key} of dataset '{self.asked.dataset}' did not come within {self._deadline_s:g} s; it was waited for from "
            + (", ".join(owing) or "no endpoint, as none could be asked")
        )

    def end(self, error: ModynError | None) -> None:
        """End the fetch, from any thread: `next` raises `error`, or returns None if `error` is None. If the fetch has ended before, nothing
        happens.
        """
        with self._changed:
            if not self._ended:
                self._end(error)

    def _end(self, error: ModynError | None) -> None:
        self._ended, self._end_error = True, error
        self._open.clear()
        self._changed.notify_all()
        self.abandon_threads()

    def abandon_threads(self) -> None:
        """End the calls of all threads, also after the regular end of a fetch."""
        with self._changed:  # The lock is reentrant, because `_end` holds it already.
            for thread in self._threads:
                thread.abandon()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of all threads, at most `timeout_s` seconds in all."""
        give_up = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, give_up - time.monotonic()))

    def _replace_stalled(self) -> float:
        """Replace threads whose endpoint has stalled. Returns the seconds until the next thread could stall.

        A new thread continues with the request, and the old thread is abandoned, because a `DoGet` cannot be cancelled before the server opens it.
        """
        stall_s, now = self.limits.stall_s, time.monotonic()
        wait_s = stall_s
        for i, thread in enumerate(self._threads):
            if (since := thread.silent_since) is None:
                continue
            if since + stall_s <= now:
                thread.abandon()
                self._threads[i] = RequestThread(self, thread.preferred, stalled=thread)
                self._threads[i].start()
            else:
                wait_s = min(wait_s, since + stall_s - now)
        return max(0.05, wait_s)

    # The threads' side

    def assign(self, thread: RequestThread) -> bool:
        """Assign the next request to `thread`, unless its current request is unanswered. Waits while there are too many open requests. Returns False
        if the thread must end. A thread keeps its single request until the answer is complete, and samples of the consumer's current request never
        wait in `deliver` while the consumer waits. Therefore this request always makes progress, and no fetch hangs because of a full buffer.
        """
        with self._changed:
            if thread.request is not None and thread.request.is_settled:
                thread.request = None
            if thread.request is None:
                max_open = _OPEN_PER_STREAM * self._streams
                # Wait 2: a thread without a request waits until the consumer has consumed a request, which bounds the number of open requests.
                self._changed.wait_for(
                    lambda: self._ended or thread.is_abandoned or self._cut_to == len(self._keys) or len(self._open) < max_open
                )
                if self._cut_to < len(self._keys) and not (self._ended or thread.is_abandoned):
                    thread.request = self._cut()
            return thread.request is not None and not (self._ended or thread.is_abandoned)

    def _cut(self) -> _Request:
        limits, mean = self.limits, self.pool.sample_bytes.get((self.asked.dataset, self.asked.with_bytes))
        size = limits.first_keys if mean is None else int(limits.request_bytes / (mean + _ROW_BYTES))
        # A request has 8 bytes per key and some further kilobytes. The request must not exceed the largest message that the endpoints accept.
        size = max(1, min(size, limits.max_keys, (self.pool.max_message_bytes - 4096) // 8))
        request = _Request(self._keys[self._cut_to : self._cut_to + size])
        self._cut_to += len(request.keys)
        self._open.append(request)
        return request

    def deliver(self, thread: RequestThread, identity: bytes, done: int, payloads: Payloads) -> bool:
        """Deliver samples to the consumer. After these samples, `done` keys of the thread's request are answered. Returns False if the samples are no
        longer needed. Waits while the buffer is full, unless the consumer needs these samples next.

        Raises: ModynError: the samples do not match the request. NotFoundError: earlier samples belonged to another registration of the dataset.
        """
        request = thread.request
        assert request is not None
        if not request.done <= done <= len(request.keys):
            raise ModynError(
                f"the payload server at {thread.address} answered {done} keys of a request of {len(request.keys)}, {request.done} of which "
                f"were answered before; {_SAME_VERSION}"
            )
        if not _are_answers(request.keys[request.done : done], payloads.keys, self.asked.on_missing):
            raise ModynError(
                f"the payload server at {thread.address} answered other keys of dataset '{self.asked.dataset}' than requested; "
                f"{_SAME_VERSION}"
            )
        if done == request.done:
            return True  # The message reports only that the server is alive.
        self.pool.mark_answered(thread.endpoint)
        with self._changed:
            self._identity = self._identity or identity
            if identity != self._identity:
                raise NotFoundError(f"dataset '{self.asked.dataset}' was deleted, and another was registered under its name")
            self._failing_since = None
            self._failing.clear()
            # Wait 3: a thread with samples waits until the buffer has room. There is no wait if the consumer waits for samples of this request.
            self._changed.wait_for(
                lambda: (
                    self._ended
                    or thread.is_abandoned
                    or self._buffered + payloads.data.nbytes <= self.limits.buffer_bytes
                    or (request is self._open[0] and not request.arrived)
                )
            )
            if self._ended or thread.is_abandoned:
                return False
            if len(payloads):
                self.pool.sample_bytes[self.asked.dataset, self.asked.with_bytes] = payloads.data.nbytes / len(payloads)
                request.arrived.append(payloads)
                self._buffered += payloads.data.nbytes
            request.done = done
            self._changed.notify_all()
            return True

    def retry(self, thread: RequestThread, error: UnavailableError) -> None:
        """Wait until an endpoint may be tried again, after the endpoint of `thread` has failed. If every endpoint has failed and `retry_s` have
        passed without any answer, the consumer gets `error` instead.
        """
        with self._changed:
            now, pause_s = time.monotonic(), self.pool.pause_s()
            self._failing_since = self._failing_since or now
            self._failing.add(thread.endpoint)
            all_failed = len(self._failing) == len(self.pool)
            if all_failed and now + pause_s > self._failing_since + self.limits.retry_s:
                self._fail(thread, error)
            else:  # Wait 4: a thread whose endpoint has failed waits for the end of the backoff, or of the fetch.
                self._changed.wait_for(lambda: self._ended, pause_s)

    def fail(self, thread: RequestThread, error: ModynError) -> None:
        """Record that no endpoint can answer the thread's request. The consumer gets the samples before the error, and then `error`."""
        with self._changed:
            self._fail(thread, error)

    def _fail(self, thread: RequestThread, error: ModynError) -> None:
        if thread.request is not None and not thread.request.is_settled and not thread.is_abandoned:
            thread.request.error = error
            self._cut_to = len(self._keys)  # No key after the error is requested.
            self._changed.notify_all()


class RequestThread(threading.Thread):
    """A thread of a fetch. It sends one request after the other, each to an available endpoint. request, is_abandoned: changed only with the lock of
    the fetch held. silent_since: time since which the thread waits for its endpoint; None: it does not wait.
    """

    def __init__(self, fetch: Fetch, preferred: int, stalled: RequestThread | None = None) -> None:
        """Args: preferred: index in the pool of the first endpoint to try. stalled: the thread that this thread replaces."""
        super().__init__(name="payloads", daemon=True)
        self._fetch = fetch
        self._pool = fetch.pool
        self.preferred = preferred
        self.endpoint: int = preferred if stalled is None else stalled.endpoint
        self.request: _Request | None = None if stalled is None else stalled.request
        self._is_replacement = stalled is not None
        self.is_abandoned = False
        self.silent_since: float | None = None
        self._reader: Any = None

    @property
    def address(self) -> str:
        """Address of the current endpoint."""
        return self._pool.address(self.endpoint)

    def abandon(self) -> None:
        """End the call. The caller holds the lock of the fetch. Later samples of the call are dropped."""
        self.is_abandoned = True
        self.silent_since = None
        if (reader := self._reader) is not None:
            reader.cancel()

    def run(self) -> None:
        """Send requests of the fetch until there are no more requests or the thread is abandoned. Errors are passed to the fetch."""
        limits = self._fetch.limits
        if self._is_replacement:
            self._pool.mark_failed(self.endpoint, max(limits.avoid_s, limits.stall_s))
            self._fetch.retry(
                self, DeadlineError(f"the payload server at {self.address} has sent nothing for {limits.stall_s:g} s")
            )
        while self._fetch.assign(self):
            self.endpoint = self._pool.choose(self.preferred)
            try:
                self._ask()
            except UnavailableError as error:
                if not self.is_abandoned:
                    self._pool.mark_failed(self.endpoint, limits.avoid_s)
                    self._fetch.retry(self, error)
            except ModynError as error:
                self._fetch.fail(self, error)
            except BaseException as error:  # noqa: BLE001  (the consumer raises it)
                self._fetch.fail(self, ModynError(f"fetching payloads failed: {type(error).__name__}: {error}"))

    def _ask(self) -> None:
        """Request the unanswered keys once from the endpoint."""
        request, fetch = self.request, self._fetch
        assert request is not None
        ticket = replace(fetch.asked, keys=request.keys[request.done :]).to_ticket()
        client, options = self._pool.take(self.endpoint)
        ended_well = False
        try:
            self.silent_since = time.monotonic()
            self._reader = client.do_get(ticket, options)
            ended_well = self._read(request)
        except (pa.ArrowException, OSError) as error:
            raise error_from_flight(error, self.address) from error
        finally:
            self.silent_since = None
            if ended_well:
                self._pool.give_back(self.endpoint, client)
            else:
                if self._reader is not None:
                    self._reader.cancel()  # Lets the server end its work.
                client.close()
            self._reader = None
        if ended_well and not request.is_settled:
            raise UnavailableError(f"the payload server at {self.address} ended its answer too early")

    def _read(self, request: _Request) -> bool:
        """Read the answer to its end. Returns False if the fetch no longer wants the answer."""
        done_before = request.done
        identity = (self._reader.schema.metadata or {}).get(b"identity", b"")
        while not self.is_abandoned:
            try:
                message = self._reader.read_chunk()
            except StopIteration:
                return True
            self.silent_since = None  # Time in which the thread waits for the consumer does not count as silence.
            head = AnswerHead.from_bytes(b"" if message.app_metadata is None else message.app_metadata.to_pybytes())
            if head.error:
                raise error_from_text(head.error) or ModynError(
                    f"the payload server at {self.address} failed: {head.error}; {_SAME_VERSION}"
                )
            payloads = from_record_batch(message.data, head.record_size)
            if not self._fetch.deliver(self, identity, done_before + head.done, payloads):
                return False
            self.silent_since = time.monotonic()
        return False


def _are_answers(asked: Int64Array, arrived: Int64Array, on_missing: OnMissing) -> bool:
    """Whether `arrived` equals `asked`. With "skip", deleted keys may be left out. A key that occurs several times is left out everywhere or not at
    all.
    """
    if len(asked) != len(arrived) and on_missing == "skip":
        # Only keys that did not arrive at all are left out of the comparison.
        asked = asked[np.isin(asked, arrived)]
    return np.array_equal(asked, arrived)
