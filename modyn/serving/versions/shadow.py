"""Comparison of a shadow version's answers with the answers that clients get. No client gets an answer of the shadow version."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from modyn.errors import ModynError
from modyn.rpc.logs import get_logger
from modyn.serving.batch_queue import Outcome
from modyn.serving.messages.signature import Tensors
from modyn.serving.prometheus import SHADOW_ANSWERS, SHADOW_DIFFERENCE
from modyn.serving.versions.predictor import VersionName

_MAX_PENDING: Final = 1024
"""Largest number of pairs of answers that wait to be compared. Further pairs are dropped and counted."""
_TOLERANCE: Final = 1e-5
"""Largest relative and absolute difference of two numbers that count as equal. Equal inputs may give slightly different numbers, because rounding
depends on the size of the batch.
"""
_LOG_EVERY_S: Final = 5.0
"""Seconds between two log lines about answers that differ. A line contains the number of such answers that were not logged since the previous line.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between two answers to the same request."""

    equal: bool
    largest: float | None
    """Largest absolute difference of numbers; None: names or shapes differ, or no output has numbers."""


def compare(answer: Tensors, other: Tensors) -> Difference:
    """Compare two answers: numbers by their difference, other values by equality."""
    if answer.keys() != other.keys() or any(values.shape != other[name].shape for name, values in answer.items()):
        return Difference(False, None)
    equal, largest = True, None
    for name, values in answer.items():
        if values.dtype.kind in "fiu" and other[name].dtype.kind in "fiu":
            left, right = values.astype(np.float64), other[name].astype(np.float64)
            gap = np.abs(left - right)[~(np.isnan(left) & np.isnan(right))]
            largest = max(largest or 0.0, float(gap.max(initial=0.0)))
            equal &= bool(np.allclose(left, right, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True))
        else:
            equal &= bool(np.array_equal(values, other[name]))
    return Difference(equal, largest)


class ShadowPair:
    """The two outcomes of one request. The outcome that arrives second starts the comparison.

    Args: request_id: id of the client's request, for the log. compared: called when the pair has been compared or dropped; after this call the shadow
    version may be unloaded.
    """

    def __init__(
        self, comparer: ShadowComparer, shadow: VersionName, request_id: str = "", compared: Callable[[], object] = lambda: None
    ) -> None:
        self.shadow, self.request_id, self.compared = shadow, request_id, compared
        self._comparer = comparer
        self._outcomes: list[tuple[bool, Outcome]] = []
        self._lock = threading.Lock()  # Protects the list, because the threads of two versions append to the list.

    def add_answer(self, outcome: Outcome) -> None:
        """Take the outcome that the client gets."""
        self._add(False, outcome)

    def add_shadow(self, outcome: Outcome) -> None:
        """Take the outcome of the shadow version."""
        self._add(True, outcome)

    def outcomes(self) -> tuple[Outcome, Outcome]:
        """Return both outcomes. The client's outcome comes first."""
        first, second = sorted(self._outcomes, key=lambda item: item[0])
        return first[1], second[1]

    def _add(self, is_shadow: bool, outcome: Outcome) -> None:
        with self._lock:
            self._outcomes.append((is_shadow, outcome))
            complete = len(self._outcomes) == 2
        if complete:
            self._comparer.add(self)


class ShadowComparer:
    """Compares pairs in a separate thread, until `close`."""

    def __init__(self) -> None:
        # A pair wakes the thread, and so does the None that `close` adds. The queue is bounded, so that slow comparisons do not fill the memory.
        self._pairs: queue.Queue[ShadowPair | None] = queue.Queue(_MAX_PENDING)
        self._logger = get_logger("serving.shadow")
        self._logged, self._unlogged = -_LOG_EVERY_S, 0
        self._thread = threading.Thread(target=self._work, name="shadow", daemon=True)
        self._thread.start()

    def add(self, pair: ShadowPair) -> None:
        """Queue a pair, or drop and count it if the queue is full. This method never blocks."""
        try:
            self._pairs.put_nowait(pair)
        except queue.Full:
            count_dropped(pair.shadow)
            pair.compared()

    def close(self) -> None:
        """End the thread after it has compared all pairs."""
        self._pairs.put(None)  # wakes the thread
        self._thread.join(5.0)  # the thread is a daemon: pairs that it has not compared by then are lost

    def _work(self) -> None:
        while (pair := self._pairs.get()) is not None:
            try:
                self._compare(pair)
            finally:
                pair.compared()

    def _compare(self, pair: ShadowPair) -> None:
        answer, other = pair.outcomes()
        labels = (pair.shadow.model, pair.shadow.version)
        if isinstance(answer, ModynError) or isinstance(other, ModynError):
            SHADOW_ANSWERS.labels(*labels, "failed").inc()
            return
        found = compare(answer, other)
        SHADOW_ANSWERS.labels(*labels, "equal" if found.equal else "different").inc()
        if found.largest is not None:
            SHADOW_DIFFERENCE.labels(*labels).observe(found.largest)
        if not found.equal:
            self._log(pair, found)

    def _log(self, pair: ShadowPair, found: Difference) -> None:
        if time.monotonic() < self._logged + _LOG_EVERY_S:
            self._unlogged += 1
            return
        self._logger.info(
            "shadow_differs",
            model=pair.shadow.model,
            shadow=pair.shadow.version,
            request_id=pair.request_id,
            largest=found.largest,
            not_logged=self._unlogged,
        )
        self._logged, self._unlogged = time.monotonic(), 0


def count_dropped(shadow: VersionName) -> None:
    """Count a copy of a request that was not sent to the shadow version, or whose answers were not compared."""
    SHADOW_ANSWERS.labels(shadow.model, shadow.version, "dropped").inc()
