"""What calls to a Redis have cost lately, so that one that is slow because the machine is busy is not taken for one that is broken."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from statistics import median
from typing import Final

REMEMBERED: Final = 16
"""Calls of each kind."""
FAST_AT_FIRST: Final = 3
"""Fast calls that each kind is taken to have made before its first one: so many slow ones are not usual yet."""
MARGIN: Final = 4.0
"""A call is slow from so many times what calls of its kind usually cost."""
MOST_FACTOR: Final = 16.0
"""Times what a call may cost on an idle machine: from there on it is slow whatever others cost."""
MOST_PATIENCE: Final = 8.0
"""The same, of the longest wait for one answer."""


class CallCosts:
    """What calls of each kind have cost, as a part of what such a call may cost on an idle machine. For any thread.

    >>> costs = CallCosts()
    >>> for _ in range(8):
    ...     costs.note("get", 0.75)
    >>> costs.factor("get"), costs.factor("put")
    (3.0, 1.0)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Guards the costs.
        self._costs: defaultdict[str, deque[float]] = defaultdict(lambda: deque([0.0] * FAST_AT_FIRST, maxlen=REMEMBERED))

    def note(self, kind: str, cost: float) -> None:
        """Note what a call has cost, when it has ended or was given up."""
        with self._lock:
            self._costs[kind].append(cost)

    def factor(self, kind: str) -> float:
        """How many times as much a call of this kind may cost now, 1 … MOST_FACTOR: MARGIN times the median of the calls before."""
        with self._lock:
            return min(MOST_FACTOR, max(1.0, MARGIN * median(self._costs[kind])))

    def patience(self) -> float:
        """How many times as long an answer of any kind is waited for now, 1 … MOST_PATIENCE."""
        with self._lock:
            usual = max((median(costs) for costs in self._costs.values()), default=0.0)
        return min(MOST_PATIENCE, max(1.0, MARGIN * usual))
