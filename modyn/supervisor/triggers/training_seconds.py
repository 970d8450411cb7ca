"""How long a training takes, by its samples, forecast from what earlier ones took."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from modyn.supervisor.triggers.base import TriggerOutcome

ALMOST: Final = 0.1
"""Standard deviation of samples, as a part of their mean, up to which trainings count as of equal size."""


@dataclass(frozen=True, slots=True)
class TrainingSeconds:
    """Seconds of a training by its samples. Neither number is negative, so no forecast is."""

    per_trigger: float = 0.0
    per_sample: float = 0.0

    def of(self, num_samples: int) -> float:
        """Seconds for so many samples."""
        return self.per_trigger + self.per_sample * num_samples


class TrainingTime(NamedTuple):
    """What one training took."""

    num_samples: int
    seconds: float
    batches_s: float | None = None
    """Of these, the seconds in which batches were made and trained on; None: not known."""


def vary(num_samples: Sequence[int]) -> bool:
    """Whether so many samples of trainings differ enough to tell from them how seconds depend on samples: by over `ALMOST` of their mean.

    >>> vary([100, 200]), vary([100, 103, 98]), vary([100])
    (True, False, False)
    """
    return float(np.std(num_samples)) > ALMOST * float(np.mean(num_samples))


def fit_seconds(trainings: Sequence[TrainingTime]) -> TrainingSeconds:
    """Fit seconds to samples. This is the one rule by which trainings are forecast, in runs and in simulations.

    - Where samples vary (`vary`): linear regression, least squares under the condition that neither number is negative. Without the condition,
      the slope that noise makes would forecast no seconds at all for few samples.
    - Where they do not, the trainings themselves say it, as far as they have measured it: seconds of batches are in proportion to the samples,
      and all others (the worker's start, the model's) are the same for any number.
    - Where they have not, each training is taken to last as long, for any number of samples.

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
    if slope <= 0:
        return TrainingSeconds(mean)
    return TrainingSeconds(constant, slope) if constant >= 0 else TrainingSeconds(0.0, float(x @ y / (x @ x)))


class TrainingTimes:
    """The newest trainings of a run, from which the next one is forecast by `fit_seconds`.

    Samples are those since the trigger before, which a policy knows before it fires; what selection and epochs make of them is in the seconds.
    """

    def __init__(self, window_size: int) -> None:
        """Args: window_size: the newest trainings that forecasts are made from."""
        self._trainings: deque[TrainingTime] = deque(maxlen=window_size)
        self._fitted: TrainingSeconds | None = None

    def add(self, num_pending: int, outcome: TriggerOutcome) -> None:
        """Take a training. Args: num_pending: samples since the trigger before."""
        seconds = outcome.seconds.get("train", outcome.seconds.get("total"))
        if seconds is not None:
            self._trainings.append(TrainingTime(num_pending, float(seconds), outcome.batches_s))
            self._fitted = None

    def forecast(self, num_pending: int) -> float | None:
        """Seconds of a training that is triggered now; None: there has been none to forecast from."""
        if self._fitted is None and self._trainings:
            self._fitted = fit_seconds(list(self._trainings))
        return None if self._fitted is None else self._fitted.of(num_pending)

    def warning(self, num_triggers: int) -> str | None:
        """What a policy that needs a forecast warns of. Args: num_triggers: of the run so far."""
        if self._trainings or not num_triggers:
            return None
        return "no trigger so far has trained a model: the time of a training cannot be forecast, and until it can each interval fires"

    def state(self) -> list[tuple[int, float, float | None]]:
        """What survives a restart, as JSON."""
        return [(training.num_samples, training.seconds, training.batches_s) for training in self._trainings]

    def load_state(self, state: Iterable[Sequence[Any]]) -> None:
        """Go on from `state()`, also where it is of a release that did not know seconds of batches."""
        self._trainings.clear()
        self._fitted = None
        self._trainings.extend(TrainingTime(*values) for values in state)
