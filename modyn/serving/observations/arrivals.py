"""Buffer of predictions for the label join. The threads that predict add predictions, and the thread that joins removes predictions."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from modyn.errors import ModynError
from modyn.serving.observations.join import JoinEvent, JoinEventKind, JoinLimits, RequestFeatures, num_bytes
from modyn.serving.observations.waiting_log import WaitingLog, encode

_LOG_EVERY_S: Final = 10.0
"""Seconds between two log lines about failing writes to disk."""


class ArrivedPredictions:
    """Buffer of predictions, with the bounds of the join.

    Beyond the bounds, the oldest predictions are dropped. Thread-safe. If `waiting` is given, each prediction is written to `waiting` before its
    answer is sent, so that a kill of the process loses no answered prediction.

    Args: clock: seconds since 1970.
    """

    def __init__(self, limits: JoinLimits, clock: Callable[[], float], waiting: WaitingLog | None, logger: Any) -> None:
        self._limits, self._clock, self._waiting, self._logger = limits, clock, waiting, logger
        self._found: deque[tuple[str, RequestFeatures, float]] = deque()
        self._bytes = self._dropped = 0
        self._rows = dict[str, int]()
        """Number of rows of each of the newest requests that have several rows. No label can belong to such a request."""
        self._logged = -_LOG_EVERY_S
        # Protects the fields above, and ensures that predictions have the same order on disk and in memory. A thread holds the lock at most for a
        # copy into the page cache.
        self._lock = threading.Lock()

    def add(self, request_id: str, features: RequestFeatures) -> None:
        """Add a prediction. If the disk fails, the failure is logged, and the client still gets its answer."""
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
        """Return the number of rows that `note_rows` noted for a request; 1 if no number is remembered."""
        return self._rows.get(request_id, 1)

    def take(self, events: Sequence[JoinEvent] = ()) -> tuple[Sequence[tuple[str, RequestFeatures, float]], int]:
        """Return the predictions since the last call, as request id, features and time, and the number of dropped predictions.

        Args: events: written to disk after the returned predictions and before later predictions, so that a restart joins in the same order.
        Raises: UnavailableError: the events cannot be written, and no prediction is taken.
        """
        content = self._encode(events)
        with self._lock:
            if content and self._waiting is not None:
                self._waiting.append(content)
            found, dropped = self._found, self._dropped
            self._found, self._bytes, self._dropped = deque(), 0, 0
            return found, dropped

    def write(self, events: Sequence[JoinEvent]) -> None:
        """Write events to disk in order with the predictions. Raises UnavailableError: no event is written."""
        content = self._encode(events)
        with self._lock:
            if self._waiting is not None:
                self._waiting.append(content)

    def rotate(self) -> int:
        """Begin a new file. Returns the number of the previous file, which has only predictions that were added before this call. Raises
        UnavailableError.
        """
        assert self._waiting is not None, "there is a file"
        with self._lock:
            return self._waiting.rotate()

    def _encode(self, events: Sequence[JoinEvent]) -> bytes:
        """Encode events. Call this method without the lock, because encoding many events takes long and a prediction must not wait for it."""
        return b"" if self._waiting is None else b"".join(map(encode, events))

    def _write_prediction(self, waiting: WaitingLog, event: JoinEvent) -> None:
        """Write a prediction. The caller holds the lock."""
        try:
            waiting.append(encode(event))
        except ModynError as error:
            if time.monotonic() >= self._logged + _LOG_EVERY_S:
                self._logged = time.monotonic()
                self._logger.error("prediction_not_kept", error=error.message)
