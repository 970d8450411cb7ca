"""Load of a prediction server: requests per second, latencies, and the versions that answered."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from modyn.errors import ModynError
from modyn.latencies import histogram, merged
from modyn.periodic_task import PeriodicTask
from modyn.records import ServingLoad, VersionRole, VersionUse
from modyn.rpc.logs import get_logger
from modyn.serving.versions.predictor import VersionName

WINDOW_S: Final = 5.0
"""Largest age of a measured request, in seconds."""
MOST: Final = 5_000
"""Largest number of measured requests. If there are more requests, only the newest are measured, so that measuring holds the interpreter's lock
for less than a millisecond.
"""
REPORT_S: Final = 1.0
"""Seconds between two reports."""


class LoadMeter:
    """Measures the requests of one model. Any thread may call `add`. One thread calls the other methods.

    Args: clock: seconds, monotonic. pinned: versions that the server keeps loaded for requests that name them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, pinned: Sequence[int] = ()) -> None:
        self._clock, self._began = clock, clock()
        self._pinned = [(str(model_id), VersionRole.PINNED) for model_id in pinned]
        # Appends of a deque need no lock.
        self._newest: deque[tuple[float, float]] = deque(maxlen=MOST)
        self._uncounted: deque[tuple[str, VersionRole, float]] = deque()
        self._unreported: dict[tuple[str, VersionRole], dict[int, int]] = {}
        self._since: dict[tuple[str, VersionRole], float] = {}

    def add(self, name: VersionName, role: VersionRole, seconds: float) -> None:
        """Count a request. Args: seconds: time from the arrival of the request to its answer or error."""
        self._newest.append((self._clock(), seconds))
        self._uncounted.append((name.version, role, seconds))

    def load(self) -> ServingLoad:
        """Return the present load."""
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

    def uses(self, roles: Mapping[VersionRole, str]) -> list[VersionUse]:
        """Return the versions in use, the pinned versions, and the versions that have answered since the last `clear_reported`.

        Args: roles: the versions in use now.
        """
        took = defaultdict[tuple[str, VersionRole], list[float]](list)
        for _ in range(len(self._uncounted)):  # the next call counts the requests that end meanwhile
            version, role, seconds = self._uncounted.popleft()
            took[version, role].append(seconds)
        for key, values in took.items():
            self._unreported[key] = merged([self._unreported.get(key, {}), histogram(np.array(values))])
        now, in_use = self._clock(), [(version, role) for role, version in roles.items()]
        self._since = {key: self._since.get(key, now) for key in in_use}
        return [
            VersionUse(int(key[0]), key[1], now - self._since[key] if key in self._since else None, self._unreported.get(key, {}))
            for key in dict.fromkeys([*in_use, *self._pinned, *self._unreported])
        ]

    def clear_reported(self) -> None:
        """Forget the requests that the last `uses` returned. Call this method after the supervisor has received them."""
        self._unreported = {}


@contextmanager
def load_reports(
    meter: LoadMeter,
    roles: Callable[[], Mapping[VersionRole, str]],
    report: Callable[[ServingLoad, Sequence[VersionUse]], object],
    every_s: float = REPORT_S,
) -> Iterator[None]:
    """Report load and versions at intervals, in a thread of its own, and at the end of the block.

    A failure is logged once until a report succeeds. The report after a failed report includes the requests of the failed report.

    Args: roles: returns the versions in use.
    """
    logger, is_away, in_use = get_logger("serving.load"), False, roles()

    def send() -> None:
        nonlocal is_away, in_use
        in_use = roles() or in_use  # a closed server has no versions; the last report uses the earlier versions
        report(meter.load(), meter.uses(in_use))
        meter.clear_reported()
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
        # The thread ends before the last report, because only one thread may read the meter.
        task.close()
        try:
            send()
        except ModynError as error:
            log(error)
