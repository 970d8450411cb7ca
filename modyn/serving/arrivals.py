"""Predictions on their way to the join of observations: added by the threads that predict, taken by the one that joins."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from modyn.errors import ModynError
from modyn.serving.observation_join import JoinEvent, JoinEventKind, JoinLimits, RequestFeatures, num_bytes
from modyn.serving.waiting_log import WaitingLog, encode

_LOG_EVERY_S: Final = 10.0
"""Between two lines about a disk that takes nothing."""


class ArrivedPredictions:
    """Bounded as the join is: of more, the oldest are dropped. Each is written to `waiting`, if there is one, before its answer is sent, so
    that a kill of the process does not lose what a client has an answer to. Thread-safe.

    Args: clock: seconds since 1970.
    """

    def __init__(self, limits: JoinLimits, clock: Callable[[], float], waiting: WaitingLog | None, logger: Any) -> None:
        self._limits, self._clock, self._waiting, self._logger = limits, clock, waiting, logger
        self._found: deque[tuple[str, RequestFeatures, float]] = deque()
        self._bytes = self._dropped = 0
        self._rows = dict[str, int]()
        """Of requests of several rows, whose ids no label can have; the newest ones."""
        self._logged = -_LOG_EVERY_S
        # Protects the fields above, and that what is written and what is taken come in one order. Held for a copy into the page cache at most.
        self._lock = threading.Lock()

    def add(self, request_id: str, features: RequestFeatures) -> None:
        """Take a prediction. A disk that fails is logged: the client gets its answer."""
        size = num_bytes(features)
        with self._lock:
            at = self._clock()
            self._rows.pop(request_id, None)
            self._found.append((request_id, features, at))
            self._bytes += size
            while self._bytes > self._limits.max_bytes:
                self._bytes -= num_bytes(self._found.popleft()[1])
                self._dropped += 1
            if self._waiting is not None:
                self._write_prediction(self._waiting, JoinEvent(JoinEventKind.PREDICTED, request_id, at, None, features))

    def note_rows(self, request_id: str, rows: int) -> None:
        """Remember that a request has several rows."""
        with self._lock:
            self._rows[request_id] = rows
            if len(self._rows) > self._limits.max_done:
                del self._rows[next(iter(self._rows))]

    def rows_of(self, request_id: str) -> int:
        """The rows of a request, if they are several and remembered; otherwise 1."""
        return self._rows.get(request_id, 1)

    def take(self, events: Sequence[JoinEvent] = ()) -> tuple[Sequence[tuple[str, RequestFeatures, float]], int]:
        """Return what has come since the last call, as request id, features and time, and how many were dropped.

        Args: events: written behind what is returned and before what comes later, so that a restart joins in the same order.
        Raises: UnavailableError: they cannot be written, and nothing is taken.
        """
        content = self._encoded(events)
        with self._lock:
            if content and self._waiting is not None:
                self._waiting.append(content)
            found, dropped = self._found, self._dropped
            self._found, self._bytes, self._dropped = deque(), 0, 0
            return found, dropped

    def write(self, events: Sequence[JoinEvent]) -> None:
        """Write other events between those of predictions. Raises UnavailableError: none counts."""
        content = self._encoded(events)
        with self._lock:
            if self._waiting is not None:
                self._waiting.append(content)

    def rotate(self) -> int:
        """Begin another file. Returns the number of the one before: all that is in it was added before. Raises UnavailableError."""
        assert self._waiting is not None, "there is a file"
        with self._lock:
            return self._waiting.rotate()

    def _encoded(self, events: Sequence[JoinEvent]) -> bytes:
        """Called without the lock, since many events take long, and a prediction must not wait for them."""
        return b"" if self._waiting is None else b"".join(map(encode, events))

    def _write_prediction(self, waiting: WaitingLog, event: JoinEvent) -> None:
        """Called with the lock held."""
        try:
            waiting.append(encode(event))
        except ModynError as error:
            if time.monotonic() >= self._logged + _LOG_EVERY_S:
                self._logged = time.monotonic()
                self._logger.error("prediction_not_kept", error=error.message)
