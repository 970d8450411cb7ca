"""Forecasts from the accuracy right after each trigger, and from the number of samples at each check."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from modyn.supervisor.triggers.measures.forecasts import ForecastingMethod, forecast_next


class AccuracyTrend:
    """Forecasts the accuracy that a model trained now would have, and how many samples the next check will evaluate.

    The first accuracy of each model counts as the accuracy after its trigger. The accuracy after the next trigger is forecast from these accuracies,
    including the accuracy of the newest model. At the first check after the first trigger, the forecast equals the accuracy of this check.
    """

    def __init__(self, method: ForecastingMethod, num_triggers: int, num_checks: int) -> None:
        """Args: num_triggers, num_checks: number of the newest triggers and checks that forecasts use."""
        self._method = method
        self._after_triggers = deque[float](maxlen=num_triggers)
        self._samples = deque[int](maxlen=num_checks)
        self._is_first = True
        """Whether no accuracy of the newest model is known."""

    def expected_accuracy(self, accuracy: float) -> float:
        """Forecast the accuracy after a trigger, within [0, 1]. Args: accuracy: accuracy at this check."""
        known = deque(self._after_triggers, self._after_triggers.maxlen)
        if self._is_first:
            known.append(accuracy)
        return min(1.0, max(0.0, forecast_next(self._method, known)))

    def samples_ahead(self, num_samples: int) -> float:
        """Forecast the number of samples of the next check. Args: num_samples: number of samples of this check."""
        return max(0.0, forecast_next(self._method, deque([*self._samples, num_samples], self._samples.maxlen)))

    def remember(self, accuracy: float, num_samples: int) -> None:
        """Add the measurements of a check."""
        if self._is_first:
            self._after_triggers.append(accuracy)
        self._is_first = False
        self._samples.append(num_samples)

    def trained(self) -> None:
        """Continue with a new model."""
        self._is_first = True

    def state(self) -> dict[str, Any]:
        """Return the state that survives a restart, as JSON."""
        return {"after_triggers": list(self._after_triggers), "samples": list(self._samples), "is_first": self._is_first}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""
        for own, name in ((self._after_triggers, "after_triggers"), (self._samples, "samples")):
            own.clear()
            own.extend(state[name])
        self._is_first = state["is_first"]
