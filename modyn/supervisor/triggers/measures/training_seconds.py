"""Forecast the seconds of a training from its samples and from earlier trainings."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from modyn.supervisor.triggers.base import TriggerOutcome

ALMOST: Final = 0.1
"""Largest standard deviation of sample counts, relative to their mean, for which trainings count as equally large."""


@dataclass(frozen=True, slots=True)
class TrainingSeconds:
    """Seconds of a training as a function of its samples. Both numbers are at least 0, so that no forecast is negative."""

    per_trigger: float = 0.0
    per_sample: float = 0.0

    def of(self, num_samples: int) -> float:
        """Return the seconds for a number of samples."""
        return self.per_trigger + self.per_sample * num_samples


class TrainingTime(NamedTuple):
    """Measured time of one training."""

    num_samples: int
    seconds: float
    batches_s: float | None = None
    """The part of `seconds` in which batches were made and trained on, or None if this part is not known."""


def vary(num_samples: Sequence[int]) -> bool:
    """Return whether the sizes of trainings differ enough to show how seconds depend on samples: by more than `ALMOST` of their mean.

    >>> vary([100, 200]), vary([100, 103, 98]), vary([100])
    (True, False, False)
    """
    return float(np.std(num_samples)) > ALMOST * float(np.mean(num_samples))


def fit_seconds(trainings: Sequence[TrainingTime]) -> TrainingSeconds:
    """Fit the seconds of trainings to their numbers of samples. Runs and simulations forecast all trainings by this rule.

    - If sizes vary (`vary`): linear regression, least squares with both numbers at least 0. Without this bound, noise could forecast 0
      seconds for few samples.
    - Otherwise by the measured stages: seconds of batches are proportional to samples, all others (start of worker and model) are constant.
    - If stages were not measured: the mean, for any number of samples.

    Args: trainings: at least one.

    >>> fit_seconds([TrainingTime(100, 3.0), TrainingTime(200, 5.0)]).of(150)
    4.0
    >>> fit_seconds([TrainingTime(100, 3.0, 2.0)]), fit_seconds([TrainingTime(100, 3.0)])
    (TrainingSeconds(per_trigger=1.0, per_sample=0.02), TrainingSeconds(per_trigger=3.0, per_sample=0.0))
    """
    sizes = [training.num_samples for training in trainings]
    y = np.array([training.seconds for training in trainings], np.float64)
    if not vary(sizes):
        known = [training for training in trainings if training.batches_s is not None and training.num_samples]
        if not known:
            return TrainingSeconds(float(y.mean()))
        of_batches = np.array([training.batches_s for training in known], np.float64)
        others = np.array([training.seconds for training in known], np.float64) - of_batches
        samples = np.array([training.num_samples for training in known], np.float64)
        return TrainingSeconds(max(0.0, float(others.mean())), float(of_batches.sum() / samples.sum()))
    x = np.asarray(sizes, np.float64)
    mean, deviation = float(y.mean()), x - x.mean()
    slope = float(deviation @ y / (deviation @ deviation))
    constant = mean - slope * float(x.mean())
    # If one number of the unbounded fit is negative, the bounded fit sets this number to 0 and fits only the other number.
    if slope <= 0:
        return TrainingSeconds(mean)
    return TrainingSeconds(constant, slope) if constant >= 0 else TrainingSeconds(0.0, float(x @ y / (x @ x)))


class TrainingTimes:
    """The newest trainings of a run, from which `fit_seconds` forecasts the next training.

    Sizes are numbers of samples since the previous trigger, because a policy knows these numbers before it fires. The fitted seconds therefore
    include the effects of selection and epochs.
    """

    def __init__(self, window_size: int) -> None:
        """Args: window_size: number of the newest trainings that forecasts use."""
        self._trainings: deque[TrainingTime] = deque(maxlen=window_size)
        self._fitted: TrainingSeconds | None = None

    def add(self, num_pending: int, outcome: TriggerOutcome) -> None:
        """Add a training. Args: num_pending: number of samples since the previous trigger."""
        seconds = outcome.seconds.get("train", outcome.seconds.get("total"))
        if seconds is not None:
            self._trainings.append(TrainingTime(num_pending, float(seconds), outcome.batches_s))
            self._fitted = None

    def forecast(self, num_pending: int) -> float | None:
        """Return the forecast seconds of a training that is triggered now; None before the first training has ended."""
        if self._fitted is None and self._trainings:
            self._fitted = fit_seconds(list(self._trainings))
        return None if self._fitted is None else self._fitted.of(num_pending)

    def warning(self, num_triggers: int) -> str | None:
        """Return the warning of a policy without a forecast, or None. Args: num_triggers: number of triggers of the run so far."""
        if self._trainings or not num_triggers:
            return None
        return "no trigger so far has trained a model: the time of a training cannot be forecast, and until it can each interval fires"

    def state(self) -> list[tuple[int, float, float | None]]:
        """Return the state that survives a restart, as JSON."""
        return [(training.num_samples, training.seconds, training.batches_s) for training in self._trainings]

    def load_state(self, state: Iterable[Sequence[Any]]) -> None:
        """Restore `state()`."""
        self._trainings.clear()
        self._fitted = None
        self._trainings.extend(TrainingTime(*values) for values in state)
