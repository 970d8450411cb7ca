"""The load of a server of predictions: how many it answers, and how fast."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from modyn.periodic_task import PeriodicTask
from modyn.records import ServingLoad
from modyn.rpc.logs import get_logger

WINDOW_S: Final = 5.0
"""Requests that ended in the last so many seconds are measured."""
MOST: Final = 5_000
"""Of them, the newest so many: looking at them keeps answers from the interpreter for less than a millisecond."""
REPORT_S: Final = 1.0
"""Between two reports."""


class LoadMeter:
    """Measures the requests of the last seconds. `answered` may be called by any thread; one other thread calls `load`.

    Args: clock: seconds that never jump.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        # Appends of a deque need no lock.
        self._newest: deque[tuple[float, float]] = deque(maxlen=MOST)

    def answered(self, seconds: float) -> None:
        """Count a request. Args: seconds: from its arrival to its answer, errors included."""
        self._newest.append((self._clock(), seconds))

    def load(self) -> ServingLoad:
        """The load of now."""
        now, ended = self._clock(), self._newest.copy()
        start = max(now - WINDOW_S, self._began)
        if len(ended) == MOST:
            start = max(start, ended[0][0])
        seconds = [took for at, took in ended if at >= start]
        if not seconds:
            return ServingLoad(num_servers=1)
        return ServingLoad(
            rate=len(seconds) / max(now - start, 1e-3),
            mean_s=float(np.mean(seconds)),
            p99_s=float(np.quantile(seconds, 0.99)),
            num_servers=1,
        )


@contextmanager
def load_reports(meter: LoadMeter, report: Callable[[ServingLoad], object], every_s: float = REPORT_S) -> Iterator[None]:
    """Report the load again and again, in a thread of its own. What cannot be reported is logged, once until it can be again."""
    logger, is_away = get_logger("serving.load"), False

    def send() -> None:
        nonlocal is_away
        report(meter.load())
        is_away = False

    def log(error: Exception) -> None:
        nonlocal is_away
        if not is_away:
            logger.warning("load_not_reported", error=str(error))
        is_away = True

    task = PeriodicTask("load-reports", every_s, [send], log)
    task.start()
    try:
        yield
    finally:
        task.close()
