"""Policies that fire when waiting has cost more than a training: the base class, and the policy for the waiting time of samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
from pydantic import Field

from modyn.records import Int64Array, SampleBatch
from modyn.supervisor.evidence import Evidence, required_value
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, TriggerContext, TriggerOutcome
from modyn.supervisor.triggers.interval import CheckMeasurement, IntervalConfig, IntervalTrigger
from modyn.supervisor.triggers.measures.label_clock import LateBatch
from modyn.supervisor.triggers.measures.training_seconds import TrainingTimes
from modyn.tolerance import exceeds

REGRET: Final = "regret"
FORECAST: Final = "forecast_training_s"


class CostConfig(IntervalConfig):
    """Options of triggers that weigh regret against the time of a training."""

    cost_tracking_window_size: int = Field(
        1000, ge=1, le=10_000, description="number of newest trainings from which the time of the next one is forecast"
    )


class LatencyCostConfig(CostConfig):
    """Fires when the time that samples have waited is worth more than the time of training on them."""

    incorporation_delay_per_training_second: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="sample-seconds of waiting that are worth one second of training; a higher value fires less often",
        examples=[100_000],
    )


class WaitingTime:
    """The area under the curve of the number of waiting samples over stream time: the sum of all waiting times.

    Stream time is the largest timestamp so far. A sample starts to wait when its label arrives, usually together with the sample. The wait of a late
    sample also starts at its arrival, not at its older timestamp. The sums are exact integers.

    >>> waiting = WaitingTime()
    >>> waiting.observe(np.array([0, 10, 4, 30]))
    >>> waiting.area()  # 30 + 20 + 20 + 0
    70
    """

    def __init__(self) -> None:
        self._count = 0
        self._since = 0
        """The sum of the stream times from which the samples wait."""
        self._now: int | None = None

    def observe(self, timestamps: Int64Array, now: int | None = None) -> None:
        """Add waiting samples. Args: timestamps: int64 (n,): the timestamps of the samples, in the order of arrival, or the stream times at which
        the labels of the samples arrive. now: stream time after these samples; None if `timestamps` defines the stream time.
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
        # The upper and the lower 32 bits are summed separately, so that no sum of int64 overflows.
        self._since += (int((arrivals >> 32).sum()) << 32) + int((arrivals & 0xFFFFFFFF).sum())

    def area(self) -> int:
        """Return the sample-seconds of waiting so far, at least 0."""
        return self._count * (self._now or 0) - self._since

    def clear(self) -> None:
        """Remove all waiting samples; the stream time stays the same."""
        self._count = self._since = 0

    def state(self) -> dict[str, Any]:
        """Return the state that survives a restart, as JSON."""
        return {"count": self._count, "since": self._since, "now": self._now}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""
        self._count, self._since, self._now = state["count"], state["since"], state["now"]


class CostTrigger(IntervalTrigger):
    """Fires when the regret since the last trigger, divided by an exchange rate, exceeds the forecast seconds of a training now. A difference within
    rounding does not count (`exceeds`).

    `fit_seconds` forecasts a training from the seconds of earlier trainings and the number of samples that had waited for each of these trainings.
    Before the first training nothing is measured, and the policy fires at the end of each interval. A trigger resets the regret. A subclass defines
    the regret by `regret`, `reset` and `rate`.

    Evidence: `regret` with its verdict and its threshold (the forecast times the rate), the numbers from which the regret is computed, and
    `forecast_training_s`.
    """

    Config: ClassVar[type[IntervalConfig]] = CostConfig
    weighs_seconds = True

    def __init__(self, config: CostConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._times = TrainingTimes(config.cost_tracking_window_size)
        self._num_taken = 0
        """The number of samples that the newest trigger has taken."""

    @property
    def needs_model(self) -> bool:
        """True, because a forecast needs the seconds of a training."""
        return True

    @property
    @abstractmethod
    def rate(self) -> float:
        """Units of regret that are worth a second of training."""

    @abstractmethod
    def regret(self, context: CheckContext) -> Sequence[Evidence]:
        """Return evidence: the regret since the last trigger as series `regret`, and the numbers from which the regret is computed. Called only if
        there is a model.
        """

    @abstractmethod
    def reset(self) -> None:
        """Count the regret from 0 again, at a trigger."""

    def measure(self, context: CheckContext) -> CheckMeasurement:
        """Measure the regret and forecast a training, after the first training."""
        forecast = self._times.forecast(context.num_pending)
        return CheckMeasurement() if forecast is None else CheckMeasurement([*self.regret(context), Evidence(FORECAST, forecast)])

    def judge(self, measured: Sequence[Evidence], context: CheckContext) -> tuple[bool, Sequence[Evidence]]:
        """Weigh the regret against the forecast."""
        threshold = required_value(measured, FORECAST) * self.rate
        unusual = exceeds(required_value(measured, REGRET), threshold)
        return unusual, [replace(one, threshold=threshold, unusual=unusual) if one.series == REGRET else one for one in measured]

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Reset the regret."""
        self._num_taken = outcome.position - self.last_trigger if outcome.num_new is None else outcome.num_new
        super().triggered(outcome)
        self.reset()

    def trained(self, outcome: TriggerOutcome) -> None:
        """Record the seconds of the training."""
        super().trained(outcome)
        self._times.add(self._num_taken, outcome)

    def warning(self) -> str | None:
        """Return a warning if the run has triggers, but the policy has no training for its forecast."""
        return self._times.warning(self.num_triggers)

    def own_state(self) -> dict[str, Any]:
        """Return the trainings so far."""
        return {"trainings": self._times.state(), "num_taken": self._num_taken}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore the trainings."""
        self._times.load_state(state["trainings"])
        self._num_taken = state["num_taken"]


class DataIncorporationLatencyCostTrigger(CostTrigger):
    """Fires when the time that samples have waited is worth more than the time of training on them (Modyn, SIGMOD'25, section 5.1: cost
    trigger).

    *Regret* is the sum of the times that the samples since the last trigger have waited, in sample-seconds of stream time: the area under the curve
    of the number of waiting samples. The regret divided by `incorporation_delay_per_training_second` is an amount of training time. If a training now
    is forecast to take less than this time, the policy fires, which resets the regret. The time of a training is forecast from the seconds of earlier
    trainings and the number of samples that had waited for each training. If these numbers vary, the forecast is a linear regression. Otherwise the
    seconds of batches grow in proportion to samples, and all other seconds are constant. The policy always fires at the end of the first interval.

    *Example of the units*: 1,000 samples have waited one hour on average, which is 1,000 · 3,600 s = 3.6e6 sample-seconds. With a rate of 1e5 these
    sample-seconds are worth 3.6e6 / 1e5 = 36 s of training. The policy fires if a training is forecast to take less than 36 s. If r samples arrive in
    each second and each training takes c seconds, the policy fires every √(2 · c · rate / r) seconds of stream time: every 2,000 s for one sample a
    second, trainings of 20 s and this rate.

    Evidence: `regret` in sample-seconds with its verdict and its threshold (the forecast times the rate), and `forecast_training_s`.

    >>> from modyn.testing.decisions import decide  # each of its trainings takes 1.5 s
    >>> stream = SampleBatch(np.arange(30), np.arange(30), np.zeros(30, np.int64))  # one sample a second
    >>> options = LatencyCostConfig(evaluation_interval_data_points=5, incorporation_delay_per_training_second=20)
    >>> checks = decide(DataIncorporationLatencyCostTrigger(options), [stream])
    >>> [(check.position, check.fires, check.numbers.get("regret")) for check in checks]
    [(5, True, None), (10, False, 10.0), (15, True, 45.0), (20, False, 10.0), (25, True, 45.0), (30, False, 10.0)]
    """

    Config: ClassVar[type[IntervalConfig]] = LatencyCostConfig
    config: LatencyCostConfig

    def __init__(self, config: LatencyCostConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._waiting = WaitingTime()

    @property
    def rate(self) -> float:
        """Sample-seconds that are worth a second of training."""
        return self.config.incorporation_delay_per_training_second

    def observe(self, samples: SampleBatch) -> None:
        """Add samples to the waiting samples when the labels of these samples arrive."""
        super().observe(samples)
        if isinstance(samples, LateBatch):
            newest = int(samples.timestamps.max()) if len(samples) else None
            self._waiting.observe(samples.came_at, newest)
        else:
            self._waiting.observe(samples.timestamps)

    def regret(self, context: CheckContext) -> Sequence[Evidence]:
        """Return the area so far."""
        return [Evidence(REGRET, float(self._waiting.area()))]

    def remember(self, record: CheckRecord) -> None:
        """Do nothing, because regret is counted from the samples."""

    def reset(self) -> None:
        """Remove all waiting samples."""
        self._waiting.clear()

    def own_state(self) -> dict[str, Any]:
        """Return the trainings and the waiting times."""
        return {**super().own_state(), "waiting": self._waiting.state()}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore the trainings and the waiting times."""
        super().load_own_state(state)
        self._waiting.load_state(state["waiting"])
