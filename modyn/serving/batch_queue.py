"""Which requests become one batch, and when: a queue without threads and without a clock of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from modyn.errors import OverloadedError


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of the batches and of the queue of one model version."""

    max_batch_size: int = 64
    """Rows in a batch."""
    max_delay_s: float = 0.0
    """How long the first of several requests waits for a fuller batch while the model is idle."""
    max_queue: int = 1024
    """Requests that wait; further ones are refused."""
    timeout_s: float = 30.0
    """A request that has no answer so long after its arrival ends with DeadlineError."""
    inline_s: float = 0.001
    """A model whose batches take at most so long, by processor time, may be called in the thread of the protocol's server; 0: never."""


class Queued(Protocol):
    """What a queue must know of a request."""

    @property
    def group(self) -> Hashable:
        """Only requests of equal groups can be joined: those whose rows have the same shape."""
        ...

    @property
    def rows(self) -> int:
        """Rows that the request has."""
        ...

    @property
    def arrived(self) -> float:
        """When it arrived, by the clock that `now` is of."""
        ...


T = TypeVar("T", bound=Queued)


class BatchQueue(Generic[T]):
    """Requests in order of arrival, in one line for each group.

    Rule: an idle model gets a lone request at once. Of several it gets a line that fills a batch, or else the oldest line as soon as its
    first request has waited `max_delay_s`. A batch holds requests of one line, the oldest first, as many as fit.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._lines: dict[Hashable, deque[T]] = {}
        self._rows: dict[Hashable, int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, request: T) -> None:
        """Add a request. Raises OverloadedError: as many as the limits allow wait already."""
        if self._length >= self._limits.max_queue:
            raise OverloadedError(
                f"{self._length} requests wait already, as many as serving.max_queue allows; send it again later"
            )
        self._lines.setdefault(request.group, deque()).append(request)
        self._rows[request.group] = self._rows.get(request.group, 0) + request.rows
        self._length += 1

    def discard(self, request: T) -> None:
        """Remove a request, if it still waits."""
        line = self._lines.get(request.group)
        if line is not None and request in line:
            line.remove(request)
            self._removed(request.group, 1, request.rows)

    def due(self, now: float) -> float | None:
        """Seconds from `now` until `take` has a batch for an idle model: 0: it has; None: nothing waits."""
        if not self._length:
            return None
        if self._length == 1 or self._full() is not None:
            return 0.0
        return max(0.0, self._oldest()[0].arrived + self._limits.max_delay_s - now)

    def take(self, now: float) -> list[T]:
        """Remove and return the batch that is due; empty: none is."""
        if self.due(now) != 0.0:
            return []
        full = self._full()
        line = self._oldest() if full is None else self._lines[full]
        batch = [line.popleft()]
        rows = batch[0].rows
        while line and rows + line[0].rows <= self._limits.max_batch_size:
            batch.append(line.popleft())
            rows += batch[-1].rows
        self._removed(batch[0].group, len(batch), rows)
        return batch

    def _oldest(self) -> deque[T]:
        return min(self._lines.values(), key=lambda line: line[0].arrived)

    def _full(self) -> Hashable | None:
        """The group whose line fills a batch, and of several the one that is oldest; None: there is none."""
        full = [group for group, rows in self._rows.items() if rows >= self._limits.max_batch_size]
        return min(full, key=lambda group: self._lines[group][0].arrived, default=None)

    def _removed(self, group: Hashable, requests: int, rows: int) -> None:
        self._length -= requests
        self._rows[group] -= rows
        if not self._lines[group]:
            del self._lines[group], self._rows[group]
