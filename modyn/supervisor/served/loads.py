"""Load that prediction servers report, by run. Servers may run on any machine, and report by gRPC calls."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from modyn.errors import InvalidArgumentError
from modyn.latencies import MAX_BUCKET
from modyn.records import ServingLoad, VersionRole, VersionUse
from modyn.supervisor.journal.records import ServedVersion, ServingStatus

KEPT_S: Final = 5.0
"""Age of a report, in seconds, after which its server counts as gone."""


@dataclass(frozen=True, slots=True)
class _Report:
    load: ServingLoad
    versions: Sequence[VersionUse]
    at: float
    """Time of the report in seconds, by the monotonic clock."""


class ServedLoads:
    """The newest report of each server. Each method may be called from any thread. Reports need not survive a restart, because decisions are
    journalled and `ServedHistory` counts served predictions.

    Args: now: returns seconds since 1970. clock: monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        self._now, self._clock = now, clock
        self._reports: dict[str, dict[str, _Report]] = {}
        self._lock = threading.Lock()  # Protects the reports.

    def report(self, run_id: str, server_id: str, load: ServingLoad, versions: Sequence[VersionUse] = ()) -> None:
        """Store a report. Args: server_id: id of a process that serves the run. versions: use of each version by the process.

        Raises: InvalidArgumentError: rate, latencies or seconds are not finite numbers of at least 0, or a histogram is invalid.
        """
        if wrong := [f"{name} {value}" for name, value in _measured(load).items() if not (math.isfinite(value) and value >= 0)]:
            raise InvalidArgumentError(f"the load of a server has {', '.join(wrong)}; report finite numbers of at least 0")
        for use in versions:
            if not math.isfinite(use.seconds or 0) or any(
                not 0 <= bucket < MAX_BUCKET or number < 0 for bucket, number in use.latencies.items()
            ):
                raise InvalidArgumentError(
                    f"the report of version {use.model_id} has seconds {use.seconds} and latencies {dict(use.latencies)}; report finite seconds, "
                    f"and counts of at least 0 in buckets from 0 to {MAX_BUCKET - 1}"
                )
        with self._lock:
            self._drop_old()
            self._reports.setdefault(run_id, {})[server_id] = _Report(load, versions, self._clock())

    def of(self, run_id: str) -> ServingLoad:
        """Return the load of all servers of a run: the sum of rates, the mean latency of all predictions, and the p99 of the slowest server."""
        loads = [report.load for report in self._newest(run_id)]
        rate = sum(load.rate for load in loads)
        mean = sum(load.rate * load.mean_s for load in loads) / rate if rate else 0.0
        return ServingLoad(rate, mean, max((load.p99_s for load in loads), default=0.0), len(loads), self._now())

    def status(self, run_id: str) -> ServingStatus:
        """Return the present state and versions of all servers of a run; `num_servers` is 0 without servers."""
        load, since = self.of(run_id), dict[tuple[VersionRole, int], float]()
        for report in self._newest(run_id):
            # Reports have times of the monotonic clock, because the wall clock may change. Users need a wall-clock time.
            reported_at = self._now() - (self._clock() - report.at)
            for use in report.versions:
                if use.seconds is not None:
                    key = (use.role, use.model_id)
                    since[key] = min(since.get(key, math.inf), reported_at - use.seconds)
        order = list(VersionRole)
        versions = sorted(since, key=lambda key: (order.index(key[0]), key[1]))
        served = tuple(ServedVersion(model_id, role, since[role, model_id]) for role, model_id in versions)
        return ServingStatus(load.rate, load.p99_s, load.num_servers, served)

    def _newest(self, run_id: str) -> list[_Report]:
        with self._lock:
            self._drop_old()
            return list(self._reports.get(run_id, {}).values())

    def _drop_old(self) -> None:
        """Drop old reports of all runs, so that reports about unknown runs do not accumulate. The caller holds the lock."""
        oldest = self._clock() - KEPT_S
        for run_id, reports in list(self._reports.items()):
            kept = {server_id: report for server_id, report in reports.items() if report.at >= oldest}
            if kept:
                self._reports[run_id] = kept
            else:
                del self._reports[run_id]


def _measured(load: ServingLoad) -> dict[str, float]:
    return {"rate": load.rate, "mean_s": load.mean_s, "p99_s": load.p99_s}
