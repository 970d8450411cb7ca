"""The seconds that a stage of a trigger works."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from modyn.records import JobState


class WorkClock:
    """Adds up the seconds in which a job of another service runs. Waiting in line and being started again do not count.

    Args: now: seconds of a clock that never jumps.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds = 0.0
        self._now = now
        self._since: float | None = None

    def report(self, state: JobState) -> None:
        """Take note of the state of the job: of every status, in order."""
        now = self._now()
        if self._since is not None:
            self.seconds += now - self._since
        self._since = now if state is JobState.RUNNING else None


def stage_seconds(seconds: Mapping[str, float], training_result: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by stage of a trigger, from those of its steps: with `store`, a part of `train`, and `total`, which is `select` and `train`.

    >>> stage_seconds({"select": 0.5, "train": 2.0}, {"seconds": {"forward": 1.0, "store": 0.25}})
    {'select': 0.5, 'train': 2.0, 'store': 0.25, 'total': 2.5}
    """
    stages = dict(seconds)
    store = trained_seconds(training_result).get("store")
    if store is not None:
        stages["store"] = store
    if "train" in stages:
        stages["total"] = stages.get("select", 0.0) + stages["train"]
    return stages


def trained_seconds(training_result: Mapping[str, Any]) -> dict[str, float]:
    """The seconds by stage that the trainer has measured, attempts before a resumption included; empty if it measured none."""
    seconds = training_result.get("seconds")
    return {k: float(v) for k, v in seconds.items() if isinstance(v, int | float)} if isinstance(seconds, Mapping) else {}


def batch_seconds(training_result: Mapping[str, Any]) -> float | None:
    """The seconds that the trainer has spent on batches: all that it has measured but storing the model; None: it measured none.

    >>> batch_seconds({"seconds": {"load": 0.5, "forward": 1.0, "store": 0.25}}), batch_seconds({})
    (1.5, None)
    """
    stages = {stage: seconds for stage, seconds in trained_seconds(training_result).items() if stage != "store"}
    return sum(stages.values()) if stages else None
