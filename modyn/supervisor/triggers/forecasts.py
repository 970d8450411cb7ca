"""Forecasts of a number from earlier ones, over points (x, y): of an accuracy by the number of the trigger, of seconds by samples."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

Points = Sequence[tuple[float, float]]
"""Pairs (x, y), at least one, of finite numbers. In any order; equal x are legal."""

_STRENGTH: Final = 1.0


class ForecastingMethod(StrEnum):
    """How a number is forecast."""

    RIDGE_REGRESSION = "ridge_regression"
    ROLLING_AVERAGE = "rolling_average"


def forecast(method: ForecastingMethod, points: Points, at: float) -> float:
    """Forecast y at x = `at`. The caller clips what cannot be, such as less than no seconds. Raises ValueError: there are no points."""
    return ridge_regression(points, at) if method is ForecastingMethod.RIDGE_REGRESSION else rolling_average(points)


def forecast_next(method: ForecastingMethod, series: Sequence[float]) -> float:
    """Forecast the number that follows a series, oldest first: x counts its numbers. Raises ValueError: the series is empty.

    >>> round(forecast_next(ForecastingMethod.RIDGE_REGRESSION, [0.9, 0.8, 0.7]), 3)
    0.667
    """
    return forecast(method, list(enumerate(series)), len(series))


def rolling_average(points: Points) -> float:
    """The mean of all y. Raises ValueError: there are no points.

    >>> rolling_average([(1, 2.0), (2, 4.0)])
    3.0
    """
    return float(_columns(points)[1].mean())


def ridge_regression(points: Points, at: float, strength: float = _STRENGTH) -> float:
    """The value at `at` of the line a + b x that minimises Σ (y - a - b x)² + `strength` b²; the intercept a is not penalised.

    In closed form, with x and y less their means: b = Σ x y / (Σ x² + strength). One point, or points with one x, give their mean y.

    Args: strength: at least 0, in units of x². One step of x counts as much as the penalty; where x are thousands it has no weight.
    Raises: ValueError: there are no points.

    >>> ridge_regression([(0, 1.0), (2, 3.0)], at=4, strength=0)
    5.0
    >>> ridge_regression([(0, 1.0), (2, 3.0)], at=4, strength=2)
    3.5
    """
    x, y = _columns(points)
    x_mean, y_mean = x.mean(), y.mean()
    spread = float(np.square(x - x_mean).sum()) + strength
    slope = float(((x - x_mean) * (y - y_mean)).sum()) / spread if spread else 0.0
    return float(y_mean + slope * (at - x_mean))


def _columns(points: Points) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if not points:
        raise ValueError("a forecast needs at least one point")
    columns = np.array(points, np.float64)
    return columns[:, 0], columns[:, 1]
