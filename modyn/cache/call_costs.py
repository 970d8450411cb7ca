"""What calls to a Redis have cost lately, so that one that is slow because the machine is busy is not taken for one that is broken."""

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
"""Calls that each kind is taken to have made before its first one, at the cost that the load of the machine lets expect."""
MARGIN: Final = 4.0
"""A call is slow if it costs this many times what calls of its kind usually cost."""
MOST_FACTOR: Final = 16.0
"""A call that costs this many times what it may cost on an idle machine is slow, whatever other calls cost."""
MOST_PATIENCE: Final = 8.0
"""One answer is waited for at most this many times as long as on an idle machine."""


def machine_load() -> float:
    """Processes that wait for a processor or have one, for each processor, over the last minute."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 0.0


class CallCosts:
    """What calls of each kind have cost, as a part of what such a call may cost on an idle machine. For any thread.

    >>> costs = CallCosts(load=lambda: 1.0)
    >>> for _ in range(8):
    ...     costs.note("get", 0.75)
    >>> costs.factor("get"), costs.factor("put")
    (3.0, 1.0)
    """

    def __init__(self, load: Callable[[], float] = machine_load) -> None:
        """Args: load: of this machine, as `machine_load`."""
        self._lock = threading.Lock()  # Guards the costs.
        self._costs: defaultdict[str, deque[float]] = defaultdict(lambda: deque([load() / MARGIN] * EXPECTED, maxlen=REMEMBERED))

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
