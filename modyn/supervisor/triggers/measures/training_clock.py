"""Measure the time since the last training and the duration of a training, for policies that leave time between trainings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.records import SampleBatch, ServingLoad
from modyn.supervisor.triggers.base import TriggerOutcome

_STATE = ("now", "fired_at", "took_s", "ended_at", "last_s")


class TrainingClock:
    """Time since the last training. In production a clock measures this time. In an experiment, the time is stream time, and a training takes its
    measured seconds.
    """

    def __init__(self, *, online: bool) -> None:
        """Args: online: whether the duration of step batches counts, instead of the duration of retrainings."""
        self._online = online
        self._now: int | None = None
        """Stream time."""
        self._fired_at = 0
        """Stream time of the last trigger."""
        self._took_s = 0.0
        """Seconds of the last training, of either kind."""
        self._ended_at: float | None = None
        """Time at which the last training ended, in seconds since 1970."""
        self._last_s = 0.0

    @property
    def last_s(self) -> float:
        """Seconds T of the last training of the kind that counts (see `online`), including selection and storing; 0 before the first training."""
        return self._last_s

    @property
    def stream_s(self) -> int:
        """Seconds of stream time since the last trigger."""
        return (self._now or 0) - self._fired_at

    def since_s(self, load: ServingLoad | None) -> float:
        """Return the seconds since the last training of either kind ended.

        Args: load: load with the time of the clock; None in an experiment; the result is then negative while the training would still run.
        """
        if load is None:
            return self.stream_s - self._took_s
        return max(0.0, load.at - (load.at if self._ended_at is None else self._ended_at))

    def rest_s(self, max_share: float) -> float:
        """Return the seconds that must pass after a training, so that trainings take at most this share of the time."""
        return self._last_s * (1 / max_share - 1)

    def observe(self, samples: SampleBatch) -> None:
        """Update the stream time."""
        if len(samples):
            newest = int(samples.timestamps.max())
            self._now = newest if self._now is None else max(self._now, newest)

    def triggered(self) -> None:
        """Record that a training starts."""
        self._fired_at, self._took_s = self._now or 0, 0.0

    def ended(self, outcome: TriggerOutcome) -> None:
        """Record the seconds of the training, which may have made no model."""
        self._took_s = float(outcome.seconds.get("total", outcome.seconds.get("train", 0.0)))
        if outcome.finished_at is not None:
            self._ended_at = outcome.finished_at
        if outcome.online is self._online and "train" in outcome.seconds:
            self._last_s = self._took_s

    def state(self) -> dict[str, Any]:
        """Return the state that survives a restart, as JSON."""
        return {name: getattr(self, f"_{name}") for name in _STATE}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`. Other names in the state are ignored."""
        for name in _STATE:
            setattr(self, f"_{name}", state[name])
