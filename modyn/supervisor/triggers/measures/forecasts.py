"""Forecasts of a number from points (x, y), such as an accuracy by the number of the trigger."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

Points = Sequence[tuple[float, float]]
"""Pairs (x, y) of finite numbers, at least one, in any order. Equal x are allowed."""

_STRENGTH: Final = 1.0
"""Weight of the penalty on the slope of a ridge regression."""


class ForecastingMethod(StrEnum):
    """Method of forecasting a number."""

    RIDGE_REGRESSION = "ridge_regression"
    ROLLING_AVERAGE = "rolling_average"


def forecast(method: ForecastingMethod, points: Points, at: float) -> float:
    """Forecast y at x = `at`. The caller clips impossible values, such as negative seconds. Raises ValueError: there are no points."""
    return ridge_regression(points, at) if method is ForecastingMethod.RIDGE_REGRESSION else rolling_average(points)


def forecast_next(method: ForecastingMethod, series: Sequence[float]) -> float:
    """Forecast the next number of a series, oldest first. The numbers are y, and their indices are x. Raises ValueError: the series is empty.

    >>> round(forecast_next(ForecastingMethod.RIDGE_REGRESSION, [0.9, 0.8, 0.7]), 3)
    0.667
    """
    return forecast(method, list(enumerate(series)), len(series))


def rolling_average(points: Points) -> float:
    """Return the mean of all y. Raises ValueError: there are no points.

    >>> rolling_average([(1, 2.0), (2, 4.0)])
    3.0
    """
    return float(_columns(points)[1].mean())


def ridge_regression(points: Points, at: float, strength: float = _STRENGTH) -> float:
    """Return the value at `at` of the line a + b x that minimises Σ (y - a - b x)² + `strength` b²; the intercept a is not penalised.

    In closed form, with x and y minus their means: b = Σ x y / (Σ x² + strength). One point, or points with equal x, give their mean y.

    Args: strength: at least 0, in units of x². The penalty flattens the line if x are small numbers, such as 0, 1, 2. The penalty has almost no
    effect if x are thousands.
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
