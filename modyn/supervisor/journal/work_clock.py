"""Measure the seconds of work of one stage of a trigger."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from modyn.records import JobState
from modyn.trainer_server.client import TrainingResult


class WorkClock:
    """Adds up the seconds in which a job of another service runs. Seconds of waiting in a queue and of a restart do not count.

    Args: now: monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds = 0.0
        self._now = now
        self._since: float | None = None

    def report(self, state: JobState) -> None:
        """Record the state of the job. The caller records every status, in order."""
        now = self._now()
        if self._since is not None:
            self.seconds += now - self._since
        self._since = now if state is JobState.RUNNING else None


def stage_seconds(seconds: Mapping[str, float], result: TrainingResult) -> dict[str, float]:
    """Return the seconds of each stage of a trigger, from the seconds of each step. `train` includes `store`; `total` is `select` plus `train`.

    >>> stage_seconds({"select": 0.5, "train": 2.0}, TrainingResult(seconds={"forward": 1.0, "store": 0.25}))
    {'select': 0.5, 'train': 2.0, 'store': 0.25, 'total': 2.5}
    """
    stages = dict(seconds)
    if "store" in result.seconds:
        stages["store"] = result.seconds["store"]
    if "train" in stages:
        stages["total"] = stages.get("select", 0.0) + stages["train"]
    return stages
