"""Fires when waiting has cost more than a training: what triggers that weigh regret have in common, and the one of waiting samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from modyn.records import Int64Array, SampleBatch
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, TriggerContext, TriggerOutcome
from modyn.supervisor.triggers.interval import IntervalConfig, IntervalTrigger
from modyn.supervisor.triggers.label_clock import LateBatch
from modyn.supervisor.triggers.training_seconds import TrainingTimes
from modyn.tolerance import exceeds

REGRET = "regret"
FORECAST = "forecast_training_s"


class CostConfig(IntervalConfig):
    """Options of triggers that weigh regret against the time of a training."""

    cost_tracking_window_size: int = Field(
        1000, ge=1, le=10_000, description="newest trainings from which the time of the next one is forecast"
    )


class LatencyCostConfig(CostConfig):
    """Fires when the time that samples have waited is worth more than the time of training on them."""

    incorporation_delay_per_training_second: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="exchange rate: as many sample-seconds of waiting are worth one second of training; a higher one fires less often",
        examples=[100_000],
    )


class WaitingTime:
    """The area under the curve of what waits, over stream time: the sum of the times that each has waited.

    Stream time is the largest timestamp so far. A sample waits from the stream time at which its label comes, mostly that of its arrival: a late one
    waits from when it came, not from its own older timestamp. All in exact integers.

    >>> waiting = WaitingTime()
    >>> waiting.observe(np.array([0, 10, 4, 30]))
    >>> waiting.area()  # 30 + 20 + 20 + 0
    70
    """

    def __init__(self) -> None:
        self._count = 0
        self._since = 0
        """Sum of the stream times of arrival."""
        self._now: int | None = None

    def observe(self, timestamps: Int64Array, now: int | None = None) -> None:
        """Let these samples wait.

        Args: timestamps: of the samples, int64 (n,), in the order of arrival, or the stream times at which their labels come. now: a stream time that
        has come beside.
        """
        if len(timestamps):
            arrivals = np.maximum.accumulate(timestamps)
            if self._now is not None:
                arrivals = np.maximum(arrivals, self._now)
            self._now = int(arrivals[-1])
            self._add(arrivals)
        if now is not None:
            self._now = now if self._now is None else max(self._now, now)

    def _add(self, arrivals: Int64Array) -> None:
        self._count += len(arrivals)
        # In halves, so that no sum of int64 overflows.
        self._since += (int((arrivals >> 32).sum()) << 32) + int((arrivals & 0xFFFFFFFF).sum())

    def area(self) -> int:
        """Sample-seconds of waiting so far, at least 0."""
        return self._count * (self._now or 0) - self._since

    def clear(self) -> None:
        """Let nothing wait any more; time goes on."""
        self._count = self._since = 0

    def state(self) -> dict[str, Any]:
        """What survives a restart, as JSON."""
        return {"count": self._count, "since": self._since, "now": self._now}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self._count, self._since, self._now = state["count"], state["since"], state["now"]


class CostTrigger(IntervalTrigger):
    """Fires when the regret since the last trigger, divided by an exchange rate, exceeds the seconds that a training now is forecast to take,
    by more than rounding (`exceeds`).

    The seconds of a training are forecast from those of earlier trainings and the samples that had waited for them, by `fit_seconds`; before
    the first training nothing is measured, and each interval fires. A trigger resets the regret. A subclass counts it: `regret`, `reset` and `rate`.

    Evidence: `regret` and what it was made from, `regret.threshold` (the forecast times the rate), `regret.unusual`, `forecast_training_s`.
    """

    Config: ClassVar[type[IntervalConfig]] = CostConfig

    def __init__(self, config: CostConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._times = TrainingTimes(config.cost_tracking_window_size)
        self._num_taken = 0
        """Samples that the newest trigger has taken."""

    @property
    def needs_model(self) -> bool:
        """The seconds of its training."""
        return True

    @property
    @abstractmethod
    def rate(self) -> float:
        """Units of regret that are worth a second of training."""

    @abstractmethod
    def regret(self, context: CheckContext) -> Mapping[str, float]:
        """The regret since the last trigger under `regret`, and what it was made from, as evidence. Asked once there is a model."""

    @abstractmethod
    def reset(self) -> None:
        """Begin to count anew, at a trigger."""

    def measure(self, context: CheckContext) -> Mapping[str, float]:
        """Regret and forecast, once a training has been."""
        forecast = self._times.forecast(context.num_pending)
        return {} if forecast is None else {**self.regret(context), FORECAST: forecast}

    def judge(self, measured: Mapping[str, float], context: CheckContext) -> tuple[bool, Mapping[str, float]]:
        """Weigh one against the other."""
        threshold = measured[FORECAST] * self.rate
        unusual = exceeds(measured[REGRET], threshold)
        return unusual, {f"{REGRET}.threshold": threshold, f"{REGRET}.unusual": float(unusual)}

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Reset the regret."""
        self._num_taken = outcome.position - self.last_trigger if outcome.num_new is None else outcome.num_new
        super().triggered(outcome)
        self.reset()

    def trained(self, outcome: TriggerOutcome) -> None:
        """Learn how long it took."""
        super().trained(outcome)
        self._times.add(self._num_taken, outcome)

    def warning(self) -> str | None:
        """That it has nothing to forecast from, after a trigger."""
        return self._times.warning(self.num_triggers)

    def own_state(self) -> dict[str, Any]:
        """The trainings so far."""
        return {"trainings": self._times.state(), "num_taken": self._num_taken}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._times.load_state(state["trainings"])
        self._num_taken = state["num_taken"]


class DataIncorporationLatencyCostTrigger(CostTrigger):
    """Fires when the time that samples have waited is worth more than the time of training on them (Modyn, SIGMOD'25, section 5.1: cost
    trigger).

    *Regret* is the area under the curve of the samples since the last trigger, over stream time: the sum of the times that each has waited, in
    sample-seconds. Divided by `incorporation_delay_per_training_second` it is worth seconds of training; if these are more than a training
    now is forecast to take, the policy fires, which resets the regret. The time of a training is forecast from the seconds of earlier trainings and
    the samples that had waited for them: by linear regression where these vary, else by what of each training its batches took, in proportion to
    samples, and what all else; the first trigger, that of every policy of intervals, gives the first.

    *Units, an example*: 1,000 samples have waited one hour on average: 1,000 · 3,600 s = 3.6e6 sample-seconds. With a rate of 1e5 they are worth
    3.6e6 / 1e5 = 36 s of training. It fires if a training is forecast to take less than 36 s. If samples arrive at a constant r a second and each
    training takes c seconds, it fires every √(2 · c · rate / r) seconds of stream time: with one sample a second and trainings of 20 s, every
    2,000 s at that rate.

    Evidence: `regret` in sample-seconds, `regret.threshold` (the forecast times the rate), `regret.unusual`, `forecast_training_s`.
    """

    Config: ClassVar[type[IntervalConfig]] = LatencyCostConfig
    config: LatencyCostConfig

    def __init__(self, config: LatencyCostConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._waiting = WaitingTime()

    @property
    def rate(self) -> float:
        """Sample-seconds."""
        return self.config.incorporation_delay_per_training_second

    def observe(self, samples: SampleBatch) -> None:
        """Let those wait whose labels come."""
        super().observe(samples)
        if isinstance(samples, LateBatch):
            newest = int(samples.timestamps.max()) if len(samples) else None
            self._waiting.observe(samples.came_at, newest)
        else:
            self._waiting.observe(samples.timestamps)

    def regret(self, context: CheckContext) -> Mapping[str, float]:
        """The area so far."""
        return {REGRET: float(self._waiting.area())}

    def remember(self, record: CheckRecord) -> None:
        """Regret is counted from the samples."""

    def reset(self) -> None:
        """Let none of them wait any more."""
        self._waiting.clear()

    def own_state(self) -> dict[str, Any]:
        """What waits, too."""
        return {**super().own_state(), "waiting": self._waiting.state()}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        super().load_own_state(state)
        self._waiting.load_state(state["waiting"])
