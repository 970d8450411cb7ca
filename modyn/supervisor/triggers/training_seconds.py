"""How long a training takes, by its samples, forecast from what earlier ones took."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from modyn.supervisor.triggers.base import TriggerOutcome


@dataclass(frozen=True, slots=True)
class TrainingSeconds:
    """Seconds of a training by its samples. Neither number is negative, so no forecast is."""

    per_trigger: float = 0.0
    per_sample: float = 0.0

    def of(self, num_samples: int) -> float:
        """Seconds for so many samples."""
        return self.per_trigger + self.per_sample * num_samples


def fit_seconds(num_samples: Sequence[int], seconds: Sequence[float]) -> TrainingSeconds:
    """Fit seconds to samples by linear regression, least squares under the condition that neither number is negative.

    Without the condition, the slope that noise makes among trainings of about equal size would forecast no seconds at all for few samples.
    Where all have equally many samples, seconds are taken to be in proportion to these.

    Args: num_samples, seconds: of each training, at least one.

    >>> fit_seconds([100, 200], [3.0, 5.0]).of(150)
    4.0
    >>> fit_seconds([100, 200], [3.0, 2.0]), fit_seconds([100], [3.0])
    (TrainingSeconds(per_trigger=2.5, per_sample=0.0), TrainingSeconds(per_trigger=0.0, per_sample=0.03))
    """
    x, y = np.asarray(num_samples, np.float64), np.asarray(seconds, np.float64)
    mean, deviation = float(y.mean()), x - x.mean()
    if deviation.any():
        slope = float(deviation @ y / (deviation @ deviation))
        constant = mean - slope * float(x.mean())
        if slope <= 0:
            return TrainingSeconds(mean)
        if constant >= 0:
            return TrainingSeconds(constant, slope)
    return TrainingSeconds(0.0, float(x @ y / (x @ x))) if x.any() else TrainingSeconds(mean)


class TrainingTimes:
    """The newest trainings of a run: the samples that had waited for each, and its seconds.

    Samples are those since the trigger before, which a policy knows before it fires; what selection and epochs make of them is in the seconds.
    While all trainings were of one size they are taken to last as long for any number. If that is wrong, the policy fires early once and
    knows two sizes; in proportion to the samples, a first small training that takes long to start would keep it from firing for long.
    """

    def __init__(self, window_size: int) -> None:
        """Args: window_size: the newest trainings that forecasts are made from."""
        self._trainings: deque[tuple[int, float]] = deque(maxlen=window_size)
        self._fitted: TrainingSeconds | None = None

    def add(self, num_pending: int, outcome: TriggerOutcome) -> None:
        """Take a training. Args: num_pending: samples since the trigger before."""
        seconds = outcome.seconds.get("train", outcome.seconds.get("total"))
        if seconds is not None:
            self._trainings.append((num_pending, float(seconds)))
            self._fitted = None

    def forecast(self, num_pending: int) -> float | None:
        """Seconds of a training that is triggered now; None: there has been none to forecast from."""
        if self._fitted is None and self._trainings:
            sizes, seconds = zip(*self._trainings, strict=True)
            fitted = fit_seconds(sizes, seconds)
            self._fitted = fitted if len(set(sizes)) > 1 else TrainingSeconds(fitted.of(sizes[0]))
        return None if self._fitted is None else self._fitted.of(num_pending)

    def warning(self, num_triggers: int) -> str | None:
        """What a policy that needs a forecast warns of. Args: num_triggers: of the run so far."""
        if self._trainings or not num_triggers:
            return None
        return "no trigger so far has trained a model: the time of a training cannot be forecast, and until it can each interval fires"

    def state(self) -> list[tuple[int, float]]:
        """What survives a restart, as JSON."""
        return list(self._trainings)

    def load_state(self, state: Iterable[tuple[int, float]]) -> None:
        """Go on from `state()`."""
        self._trainings.clear()
        self._fitted = None
        self._trainings.extend((samples, seconds) for samples, seconds in state)
