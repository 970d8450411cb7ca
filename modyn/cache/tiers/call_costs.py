"""Recent costs of calls to a Redis. The costs distinguish a slow Redis on a busy machine from a broken Redis."""

from __future__ import annotations

import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from statistics import median
from typing import Final

REMEMBERED: Final = 16
"""Number of the newest calls of each kind whose costs are kept."""
EXPECTED: Final = 2
"""Number of calls that each kind is assumed to have at the start. Their cost is estimated from the machine's load."""
MARGIN: Final = 4.0
"""A call is slow if it costs more than this multiple of the usual cost of its kind."""
MOST_FACTOR: Final = 16.0
"""A call above this multiple of the limit on an idle machine is always slow, even if other calls cost as much."""
MOST_PATIENCE: Final = 8.0
"""Largest factor by which the waiting time for one answer is longer than on an idle machine."""


def machine_load() -> float:
    """Return the number of running or waiting processes for each processor, over the last minute."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 0.0


class CallCosts:
    """Costs of calls of each kind, as multiples of the limit on an idle machine. Thread-safe.

    >>> costs = CallCosts(load=lambda: 1.0)
    >>> for _ in range(8):
    ...     costs.note("get", 0.75)
    >>> costs.factor("get"), costs.factor("put")
    (3.0, 1.0)
    """

    def __init__(self, load: Callable[[], float] = machine_load) -> None:
        """Args: load: returns the load of this machine, like `machine_load`."""
        self._lock = threading.Lock()  # Guards the costs.
        self._costs: defaultdict[str, deque[float]] = defaultdict(lambda: deque([load() / MARGIN] * EXPECTED, maxlen=REMEMBERED))

    def note(self, kind: str, cost: float) -> None:
        """Record the cost of a call that has ended or was given up."""
        with self._lock:
            self._costs[kind].append(cost)

    def factor(self, kind: str) -> float:
        """Return the cost above which a call of this kind counts as slow now. The result is MARGIN times the median of earlier calls, within 1 …
        MOST_FACTOR.
        """
        with self._lock:
            return min(MOST_FACTOR, max(1.0, MARGIN * median(self._costs[kind])))

    def patience(self) -> float:
        """Return the factor by which the wait for an answer may now be longer than on an idle machine, 1 … MOST_PATIENCE."""
        with self._lock:
            usual = max((median(costs) for costs in self._costs.values()), default=0.0)
        return min(MOST_PATIENCE, max(1.0, MARGIN * usual))
