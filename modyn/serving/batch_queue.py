"""Queue that decides which requests form a batch, and when the batch is predicted. The queue has no threads and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from modyn.errors import ModynError, OverloadedError
from modyn.serving.messages.signature import Tensors


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of the batches and of the queue of one model version."""

    max_batch_size: int = 64
    """Largest number of rows in a batch."""
    max_delay_s: float = 0.0
    """Longest time that the first of several requests waits for a fuller batch while the model is idle."""
    max_queue: int = 1024
    """Largest number of requests that wait. The queue refuses further requests."""
    timeout_s: float = 30.0
    """Seconds after the arrival of a request at which the request ends with DeadlineError if it has no answer."""
    inline_s: float = 0.001
    """The thread of the protocol's server may call a model whose batches take at most this processor time, in seconds; 0: never."""


Outcome = Tensors | ModynError
"""Outcome of a request: the outputs by name, or an error."""
Done = Callable[[Outcome], None]
"""Callback for an outcome. A thread of the batcher calls it once for each request. The callback must neither block nor raise."""


@dataclass(slots=True, eq=False)
class BatchedRequest:
    """A request that waits for its batch. arrived, deadline: seconds of the same monotonic clock."""

    inputs: Tensors
    rows: int
    group: Hashable
    """Requests of the same group can be joined in a batch, since their rows have the same shape."""
    arrived: float
    deadline: float
    done: Done = field(repr=False)


class BatchQueue:
    """Requests in order of arrival, in one queue for each group.

    Rule: if one request waits, an idle model gets this request immediately. If several requests wait, the model gets a batch from a group with
    enough requests to fill one. If no group has enough, the model gets the oldest group after the first request of that group has waited
    `max_delay_s`. A batch consists of the oldest requests of one group that fit into it.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._lines: dict[Hashable, deque[BatchedRequest]] = {}
        self._rows: dict[Hashable, int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, request: BatchedRequest) -> None:
        """Add a request. Raises OverloadedError: the queue is full."""
        if self._length >= self._limits.max_queue:
            raise OverloadedError(
                f"{self._length} requests wait already, as many as serving.max_queue allows; send it again later"
            )
        self._lines.setdefault(request.group, deque()).append(request)
        self._rows[request.group] = self._rows.get(request.group, 0) + request.rows
        self._length += 1

    def discard(self, request: BatchedRequest) -> None:
        """Remove a request if the request still waits."""
        line = self._lines.get(request.group)
        if line is not None and request in line:
            line.remove(request)
            self._count_removal(request.group, 1, request.rows)

    def due(self, now: float) -> float | None:
        """Return the seconds from `now` until `take` can return a batch; 0: a batch is due now; None: no request waits."""
        if not self._length:
            return None
        if self._length == 1 or self._full() is not None:
            return 0.0
        return max(0.0, self._oldest()[0].arrived + self._limits.max_delay_s - now)

    def take(self, now: float) -> list[BatchedRequest]:
        """Remove and return the batch that is due, or an empty list."""
        if self.due(now) != 0.0:
            return []
        full = self._full()
        line = self._oldest() if full is None else self._lines[full]
        batch = [line.popleft()]
        rows = batch[0].rows
        while line and rows + line[0].rows <= self._limits.max_batch_size:
            batch.append(line.popleft())
            rows += batch[-1].rows
        self._count_removal(batch[0].group, len(batch), rows)
        return batch

    def _oldest(self) -> deque[BatchedRequest]:
        return min(self._lines.values(), key=lambda line: line[0].arrived)

    def _full(self) -> Hashable | None:
        """Return the oldest group that fills a batch, or None."""
        full = [group for group, rows in self._rows.items() if rows >= self._limits.max_batch_size]
        return min(full, key=lambda group: self._lines[group][0].arrived, default=None)

    def _count_removal(self, group: Hashable, requests: int, rows: int) -> None:
        self._length -= requests
        self._rows[group] -= rows
        # Empty lines are removed, so that memory does not grow with the number of groups seen.
        if not self._lines[group]:
            del self._lines[group], self._rows[group]
