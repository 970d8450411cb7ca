"""How long ago the last training ended, and how long one takes: what policies go by that leave time between trainings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.records import SampleBatch, ServingLoad
from modyn.supervisor.triggers.base import TriggerOutcome

_STATE = ("now", "fired_at", "took_s", "ended_at", "last_s")


class TrainingClock:
    """In production time is the clock's; in an experiment that of the stream, in which the last training takes its seconds."""

    def __init__(self, *, online: bool) -> None:
        """Args: online: whether the trainings whose length counts are stretches of steps."""
        self._online = online
        self._now: int | None = None
        """Stream time."""
        self._fired_at = 0
        """Stream time of the last trigger."""
        self._took_s = 0.0
        """The last training, also if it was of the other kind."""
        self._ended_at: float | None = None
        """When it ended, in seconds since 1970."""
        self._last_s = 0.0

    @property
    def last_s(self) -> float:
        """T: seconds of the last training of the kind that counts, selection and storing included; 0: there was none."""
        return self._last_s

    @property
    def stream_s(self) -> int:
        """Seconds of stream time since the last trigger."""
        return (self._now or 0) - self._fired_at

    def since_s(self, load: ServingLoad | None) -> float:
        """Seconds since the last training of either kind ended. Args: load: says what time it is; None: this is an experiment, and it is less than
        0 while the training would still be made."""
        if load is None:
            return self.stream_s - self._took_s
        return max(0.0, load.at - (load.at if self._ended_at is None else self._ended_at))

    def rest_s(self, max_share: float) -> float:
        """Seconds that must pass after a training, so that trainings take at most this share of the time."""
        return self._last_s * (1 / max_share - 1)

    def observe(self, samples: SampleBatch) -> None:
        """Let the stream's time go on."""
        if len(samples):
            newest = int(samples.timestamps.max())
            self._now = newest if self._now is None else max(self._now, newest)

    def triggered(self) -> None:
        """A training begins here."""
        self._fired_at, self._took_s = self._now or 0, 0.0

    def ended(self, outcome: TriggerOutcome) -> None:
        """Learn how long it took, whether it made a model or not."""
        self._took_s = float(outcome.seconds.get("total", outcome.seconds.get("train", 0.0)))
        if outcome.finished_at is not None:
            self._ended_at = outcome.finished_at
        if outcome.online is self._online and "train" in outcome.seconds:
            self._last_s = self._took_s

    def state(self) -> dict[str, Any]:
        """What survives a restart, as JSON."""
        return {name: getattr(self, f"_{name}") for name in _STATE}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`; further names are left alone."""
        for name in _STATE:
            setattr(self, f"_{name}", state[name])
