"""Forecasts against hand-computed ones, and against the normal equations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.supervisor.triggers.measures.forecasts import ForecastingMethod, forecast, forecast_next, ridge_regression

_NUMBERS = st.floats(-1e3, 1e3)
_POINTS = st.lists(st.tuples(_NUMBERS, _NUMBERS), min_size=1, max_size=20)


def test_by_hand() -> None:
    points = [(1000, 2.0), (3000, 6.0)]
    assert forecast(ForecastingMethod.ROLLING_AVERAGE, points, 10_000) == 4.0
    assert forecast(ForecastingMethod.RIDGE_REGRESSION, points, 10_000) == pytest.approx(20, rel=1e-5), "2 s per 1000 samples"
    assert forecast_next(ForecastingMethod.RIDGE_REGRESSION, [1.0, 2.0, 3.0]) == pytest.approx(2 + 2 * 2 / 3)
    assert forecast_next(ForecastingMethod.ROLLING_AVERAGE, [1.0, 2.0, 3.0]) == 2


@given(_POINTS, _NUMBERS, st.floats(0.1, 100))
def test_ridge_solves_the_normal_equations(points: list[tuple[float, float]], at: float, strength: float) -> None:
    x, y = np.array(points).T
    design = np.stack([np.ones_like(x), x - x.mean()], 1)
    a, b = np.linalg.solve(design.T @ design + np.diag([0, strength]), design.T @ y)
    assert ridge_regression(points, at, strength) == pytest.approx(a + b * (at - x.mean()), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("method", ForecastingMethod)
@given(y=_NUMBERS, count=st.integers(1, 5), at=_NUMBERS)
def test_one_x_gives_the_mean_and_divides_nothing_by_zero(method: ForecastingMethod, y: float, count: int, at: float) -> None:
    assert forecast(method, [(3.0, y)] * count, at) == pytest.approx(y)
    assert ridge_regression([(3.0, y)] * count, at, strength=0) == pytest.approx(y)


@pytest.mark.parametrize("method", ForecastingMethod)
def test_no_points_are_refused(method: ForecastingMethod) -> None:
    with pytest.raises(ValueError, match="at least one point"):
        forecast(method, [], 0)
