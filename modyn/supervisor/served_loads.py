"""What servers of predictions report of their load, by run. They may run anywhere: a report is a call of the supervisor."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from modyn.errors import InvalidArgumentError
from modyn.records import ServingLoad

KEPT_S: Final = 5.0
"""A report that is older counts as of a server that is gone."""


@dataclass(frozen=True, slots=True)
class _Report:
    load: ServingLoad
    at: float
    """By a clock that never jumps."""


class ServedLoads:
    """The newest report of each server. Safe to call from any thread. Nothing is kept over a restart: what was decided by it is journalled.

    Args: now: seconds since 1970. clock: seconds that never jump.
    """

    def __init__(self, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        self._now, self._clock = now, clock
        self._reports: dict[str, dict[str, _Report]] = {}
        self._lock = threading.Lock()  # Protects the reports.

    def report(self, run_id: str, server_id: str, load: ServingLoad) -> None:
        """Take a report. Args: server_id: of one process that serves the run.

        Raises: InvalidArgumentError: rate or latencies are no numbers of at least 0.
        """
        if wrong := [f"{name} {value}" for name, value in _measured(load).items() if not (math.isfinite(value) and value >= 0)]:
            raise InvalidArgumentError(f"the load of a server has {', '.join(wrong)}; report finite numbers of at least 0")
        with self._lock:
            self._drop_old()
            self._reports.setdefault(run_id, {})[server_id] = _Report(load, self._clock())

    def of(self, run_id: str) -> ServingLoad:
        """The load of all servers of a run together: rates add up, the mean latency is that of all predictions, p99 that of the slowest server."""
        with self._lock:
            self._drop_old()
            loads = [report.load for report in self._reports.get(run_id, {}).values()]
        rate = sum(load.rate for load in loads)
        mean = sum(load.rate * load.mean_s for load in loads) / rate if rate else 0.0
        return ServingLoad(rate, mean, max((load.p99_s for load in loads), default=0.0), len(loads), self._now())

    def _drop_old(self) -> None:
        """Called under the lock. Of all runs, also of those that no policy asks for, or that there are not."""
        oldest = self._clock() - KEPT_S
        for run_id, reports in list(self._reports.items()):
            kept = {server_id: report for server_id, report in reports.items() if report.at >= oldest}
            if kept:
                self._reports[run_id] = kept
            else:
                del self._reports[run_id]


def _measured(load: ServingLoad) -> dict[str, float]:
    return {"rate": load.rate, "mean_s": load.mean_s, "p99_s": load.p99_s}
