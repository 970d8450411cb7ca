"""The client that fetches payloads by key.

A fetch is cut into requests of bounded size. Streams take them in turn, each stream being one exchange with one endpoint (see
`flight_messages`); requests are on their way while answers to earlier ones come in. What a broken stream owes goes back, and is asked for
by the next stream that has room. The consumer gets the answers in the order asked, whatever stream they came by.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from types import TracebackType
from typing import Self

import numpy as np

from modyn.config.system import Endpoint
from modyn.errors import CancelledError, DeadlineError, InvalidArgumentError, ModynError, UnavailableError
from modyn.records import Int64Array
from modyn.storage.flight.connections import Connections
from modyn.storage.flight.protocol import AnswerHead, Question
from modyn.storage.flight.streams import Stream
from modyn.storage.model.samples import OnMissing, Payloads

__all__ = ["OnMissing", "PayloadClient", "PayloadStream", "Payloads"]

RETRY_S = 30.0
"""For how long endpoints are tried again without any progress before their error is raised."""
STALL_S = 30.0
"""An endpoint from which nothing is heard for so long, though it owes an answer, is given up. A slow one says every few seconds that it lives."""
BUFFER_BYTES = 32 * 2**20
"""Most bytes that a fetch holds for a consumer that is slower than the streams, and one piece a stream."""

REQUEST_BYTES = 4 * 2**20
"""About the size of an answer to one request."""
FIRST_KEYS = 1024
"""Keys in a request as long as nothing is known of the size of the samples."""
MAX_KEYS = 65_536
REQUESTS_A_STREAM = 4
"""Most requests of a fetch, for each stream, that are sent and not yet consumed."""

_CLOSED = "the payload client was closed"
_ROW_BYTES = 24
"""Key, label and offset of a sample on the wire."""
_JOIN_S = 2.0


class PayloadClient:
    """Fetches payloads by key. May be used by several threads at once, not across a fork.

    endpoints: payload servers of one storage, all with the same data. streams: exchanges at once for one fetch, spread over the
    endpoints; the fetches of one client begin with different ones.
    """

    def __init__(
        self,
        endpoints: Endpoint | Sequence[Endpoint],
        streams: int = 1,
        retry_s: float = RETRY_S,
        stall_s: float = STALL_S,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        endpoints = [endpoints] if isinstance(endpoints, Endpoint) else list(endpoints)
        if not endpoints or streams < 1:
            raise InvalidArgumentError(
                f"a payload client needs at least one endpoint and one stream, not {len(endpoints)} and {streams}"
            )
        self.connections = Connections(endpoints)
        self.num_streams = streams
        self.retry_s = retry_s
        self.stall_s = stall_s
        self.buffer_bytes = buffer_bytes
        self.sample_bytes: dict[str, float] = {}
        """Mean size of the samples by dataset, as they came lately."""
        self._turns = count(os.getpid())  # clients of several processes begin with different endpoints
        self._lock = threading.Lock()
        self._closed = False
        self._fetches: weakref.WeakSet[Fetch] = weakref.WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Fetches that run are cancelled; none begins any more."""
        with self._lock:
            self._closed = True
            fetches = list(self._fetches)
        for fetch in fetches:
            fetch.end(CancelledError(_CLOSED))
            fetch.abandon_streams()
        self.connections.close()

    def fetch(
        self, dataset: str, keys: Int64Array, on_missing: OnMissing = "raise", deadline_s: float | None = None
    ) -> PayloadStream:
        """The samples of `keys`, in the order asked, duplicates included, in batches as they arrive.

        Keys that do not exist or were deleted raise NotFoundError that names the first of them, or are left out with
        on_missing="skip". DataError names file and offset of what cannot be read, or the key of what is too large to be sent.
        UnavailableError: no endpoint could be reached for `retry_s`. An error is raised when the consumer has got what comes before it.
        deadline_s: how long `next` may wait for a piece; then DeadlineError, which names the sample and the endpoints that owe it.
        CancelledError if the client was closed.
        """
        fetch = Fetch(
            self, Question(dataset, on_missing), np.ascontiguousarray(keys, dtype=np.int64), next(self._turns), deadline_s
        )
        with self._lock:
            if self._closed:
                raise CancelledError(_CLOSED)
            self._fetches.add(fetch)
        return PayloadStream(fetch)


class PayloadStream(Iterator[Payloads]):
    """What a fetch yields. For one consumer; `cancel` may be called by any thread.

    Streams run from the first `next` on. Closing (or dropping) it ends them, at once also at the servers.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def __next__(self) -> Payloads:
        arrived = self._fetch.next()
        if arrived is None:
            raise StopIteration
        return arrived

    def cancel(self) -> None:
        """Makes `next` raise CancelledError, also one that waits."""
        self._fetch.end(CancelledError("the fetch was cancelled"))

    def close(self) -> None:
        """Ends the fetch and waits for its threads."""
        self._fetch.end(None)
        self._fetch.join(_JOIN_S)

    def __del__(self) -> None:
        self._fetch.end(None)


class Request:
    """Keys [start, stop) of a fetch. `done` of them are dealt with; `arrived` waits for the consumer."""

    __slots__ = ("arrived", "done", "error", "keys", "number")

    def __init__(self, number: int, keys: Int64Array) -> None:
        self.number = number
        self.keys = keys
        self.done = 0
        self.arrived: deque[Payloads] = deque()
        self.error: ModynError | None = None

    def __lt__(self, other: Request) -> bool:
        return self.number < other.number

    @property
    def is_complete(self) -> bool:
        return self.done == len(self.keys)


class Fetch:
    """What consumer and streams of one fetch share. Everything waits on one condition."""

    def __init__(
        self, client: PayloadClient, question: Question, keys: Int64Array, turn: int, deadline_s: float | None = None
    ) -> None:
        self.question = question
        self._client = client
        self._keys = keys
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._streams = [
            Stream(self, client.connections, (turn + i) % len(client.connections)) for i in range(client.num_streams)
        ]
        self._started = False
        self._ended = False
        self._end_error: ModynError | None = None
        self._cut_to = 0
        self._num_cut = 0
        self._last = np.iinfo(np.int64).max
        """Number of the request that failed: none behind it is asked for any more."""
        self._open: deque[Request] = deque()
        """Requests in order, from the one that the consumer is at to the last that was given to a stream."""
        self._returned: list[Request] = []
        """A heap of those that a broken stream owed."""
        self._buffered = 0
        self._failing_since: float | None = None
        self._failing: set[int] = set()
        """Endpoints that broke since then, without any answer in between."""

    # The consumer's side

    def next(self) -> Payloads | None:
        """The next piece, or None at the end. Looks after streams that stall while it waits."""
        give_up = None if self._deadline_s is None else time.monotonic() + self._deadline_s
        with self._changed:
            while True:
                if self._ended:
                    if self._end_error is not None:
                        raise self._end_error
                    return None
                head = self._open[0] if self._open else None
                if head is not None and head.arrived:
                    arrived = head.arrived.popleft()
                    self._buffered -= arrived.data.nbytes
                    self._changed.notify_all()
                    return arrived
                if head is not None and head.error is not None:
                    self._end(head.error)
                elif head is not None and head.is_complete:
                    self._open.popleft()
                    self._changed.notify_all()
                elif head is None and self._cut_to == len(self._keys):
                    self._ended = True  # The streams owe nothing, and end their exchanges in good order.
                    self._changed.notify_all()
                elif give_up is not None and time.monotonic() >= give_up:
                    self._end(self._too_late(head))
                else:
                    self._start()
                    wait_s = self._look_after_streams()
                    self._changed.wait(wait_s if give_up is None else min(wait_s, max(0.0, give_up - time.monotonic())))

    def _too_late(self, head: Request | None) -> DeadlineError:
        key = self._keys[self._cut_to] if head is None else head.keys[head.done]
        owing = sorted({stream.address for stream in self._streams if stream.owed}) or ["no endpoint, as none could be asked"]
        return DeadlineError(
            f"the sample with key {key} of dataset '{self.question.dataset}' did not come within {self._deadline_s:g} s; it was waited "
            f"for from {', '.join(owing)}"
        )

    def end(self, error: ModynError | None) -> None:
        """From any thread: streams end, and `next` raises `error` or says that this is the end."""
        with self._changed:
            if not self._ended:
                self._end(error)

    def join(self, timeout_s: float) -> None:
        give_up = time.monotonic() + timeout_s
        for stream in self._streams:
            stream.join(max(0.0, give_up - time.monotonic()))

    def _end(self, error: ModynError | None) -> None:
        self._ended, self._end_error = True, error
        self._open.clear()
        self._returned.clear()
        self._changed.notify_all()
        self.abandon_streams()

    def abandon_streams(self) -> None:
        for stream in self._streams:
            stream.abandon()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for stream in self._streams:
                stream.start()

    def _look_after_streams(self) -> float:
        """Gives up those that have stalled; seconds until the next could have."""
        now = time.monotonic()
        left = [self._client.stall_s]
        for stream in self._streams:
            if stream.waits_since is not None:
                left.append(stream.waits_since + self._client.stall_s - now)
                if left[-1] <= 0:
                    stream.stalled(self._client.stall_s)
        return max(0.05, min(left))

    # The streams' side

    def has_work(self) -> bool:
        """Whether there is something to ask for, now or once there is room; waits until that is known. False: all has arrived."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._can_ask() or self._is_answered())
            return not self._ended and self._can_ask()

    def ask(self, stream: Stream) -> Request | None:
        """The next request for `stream`, once there is room for it. None: it shall ask for nothing more on this exchange.

        A stream owes requests in ascending order, always: a returned one goes only to a stream that owes nothing behind it. So whoever
        owes what the consumer waits for owes that first, and `deliver` never makes him wait: no fetch hangs, however full its buffer is.
        Nor does such a request stay with nobody: the stream that gave it back owes nothing any more and comes to ask.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._ended
                    or not stream.is_asking
                    or self._is_cut()
                    or (self._can_ask() and self._keeps_order(stream) and len(stream.owed) < REQUESTS_A_STREAM - 1)
                )
            )
            if self._ended or not stream.is_asking or not self._can_ask():
                return None
            if self._returned:
                request = heapq.heappop(self._returned)
                self._changed.notify_all()  # Others may have waited for it to be taken.
            else:
                request = self._cut()
            if not stream.owed:
                stream.waits_since = time.monotonic()
            stream.owed.append((request, request.done))
            return request

    def _keeps_order(self, stream: Stream) -> bool:
        """Whether what is asked for next comes behind all that `stream` owes."""
        return not self._returned or not stream.owed or stream.owed[-1][0] < self._returned[0]

    def is_cut(self) -> bool:
        """Whether nothing is left to be asked for, unless a stream breaks."""
        with self._changed:
            return self._is_cut()

    def _is_cut(self) -> bool:
        return not self._returned and (self._cut_to == len(self._keys) or self._last < self._num_cut)

    def _can_ask(self) -> bool:
        return bool(self._returned) or (not self._is_cut() and len(self._open) < REQUESTS_A_STREAM * len(self._streams))

    def _is_answered(self) -> bool:
        return self._is_cut() and all(request.is_complete or request.error is not None for request in self._open)

    def _cut(self) -> Request:
        mean = self._client.sample_bytes.get(self.question.dataset)
        size = FIRST_KEYS if mean is None else int(REQUEST_BYTES / (mean + _ROW_BYTES))
        # 8 bytes a key and some kilobytes around them: storage takes no larger request.
        size = max(1, min(size, MAX_KEYS, (self._client.connections.max_message_bytes - 4096) // 8))
        request = Request(self._num_cut, self._keys[self._cut_to : self._cut_to + size])
        self._num_cut += 1
        self._cut_to += len(request.keys)
        self._open.append(request)
        return request

    def deliver(self, stream: Stream, head: AnswerHead, payloads: Payloads) -> None:
        """An answer to the oldest request that `stream` owes. ModynError if it cannot be that.

        Waits while enough lies here for the consumer, unless this is what it waits for.
        """
        request, done_before = stream.owed[0] if stream.owed else (None, 0)
        done = done_before + head.done
        if request is None or request.number != head.request or not request.done <= done <= len(request.keys):
            raise ModynError("a payload server answered what it was not asked")
        check_answer(request.keys[request.done : done], payloads.keys, self.question.on_missing)
        with self._changed:
            self._failing_since = None
            self._failing.clear()
            stream.waits_since = None
            self._changed.wait_for(
                lambda: (
                    self._ended
                    or self._buffered + payloads.data.nbytes <= self._client.buffer_bytes
                    or (request is self._open[0] and not request.arrived)
                )
            )
            if self._ended:
                return
            if len(payloads):
                self._client.sample_bytes[self.question.dataset] = payloads.data.nbytes / len(payloads)
                request.arrived.append(payloads)
                self._buffered += payloads.data.nbytes
            request.done = done
            if request.is_complete:
                stream.owed.popleft()
            stream.waits_since = time.monotonic() if stream.owed else None
            self._changed.notify_all()

    def heard(self, stream: Stream) -> None:
        """The endpoint of `stream` lives."""
        with self._changed:
            stream.waits_since = time.monotonic() if stream.owed else None

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def broke(self, stream: Stream, error: UnavailableError) -> None:
        """What `stream` owes goes back; waits until some endpoint may be tried again. Gives up after `retry_s` without any answer, once
        each endpoint has been tried."""
        with self._changed:
            lost = self._take_back(stream)
            now, pause = time.monotonic(), self._client.connections.pause_s()
            self._failing_since = self._failing_since or now
            self._failing.add(stream.endpoint)
            all_failed = len(self._failing) == len(self._client.connections)
            if all_failed and now + pause > self._failing_since + self._client.retry_s:
                self._fail(lost, error)
            else:
                self._changed.wait_for(lambda: self._ended, pause)

    def failed(self, stream: Stream, error: ModynError) -> None:
        """The oldest request that `stream` owes cannot be answered, by no endpoint."""
        with self._changed:
            self._fail(self._take_back(stream), error)

    def _take_back(self, stream: Stream) -> Request | None:
        """Makes what `stream` owes a matter of all streams; the first of it."""
        first = stream.owed[0][0] if stream.owed else None
        for request, _ in stream.owed:
            heapq.heappush(self._returned, request)
        stream.owed.clear()
        stream.waits_since = None
        self._changed.notify_all()
        return first

    def _fail(self, request: Request | None, error: ModynError) -> None:
        """`error` is what the consumer gets in place of `request`, or of what is next to be asked for."""
        if self._ended:
            return
        if request is None:
            if not self._can_ask():
                return  # Others see to the rest.
            request = self._returned[0] if self._returned else self._cut()
        request.error = error
        self._last = min(self._last, request.number)
        self._returned = sorted(other for other in self._returned if other.number < self._last)
        self._changed.notify_all()


def check_answer(asked: Int64Array, arrived: Int64Array, on_missing: OnMissing) -> None:
    """Raises ModynError unless `arrived` is `asked`, or with "skip" what is left of it without some keys."""
    if len(asked) != len(arrived) and on_missing == "skip":
        # A key is missing wherever it was asked for in this piece, or nowhere.
        asked = asked[np.isin(asked, arrived)]
    if not np.array_equal(asked, arrived):
        raise ModynError("a payload server answered other keys than those it was asked for")
