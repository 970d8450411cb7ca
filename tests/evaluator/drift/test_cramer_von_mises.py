"""The Cramér-von Mises test, compared with SciPy, for exact and for asymptotic p-values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import cramervonmises_2samp

from modyn.evaluator.drift import compare
from modyn.evaluator.drift.cramer_von_mises import EXACT_SAMPLES, CVMDriftMetric
from modyn.evaluator.drift.features import FeatureTestConfig

METRIC = CVMDriftMetric(FeatureTestConfig())


@given(n=st.integers(2, 13), m=st.integers(2, 13), num_values=st.sampled_from([2, 5, 10**6]), seed=st.integers(0, 99))
def test_p_values_of_small_sets_are_the_exact_ones_of_scipy(n: int, m: int, num_values: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(0, num_values, (size, 3)).astype(np.float32) for size in (n, m))
    expected = cramervonmises_2samp(x.astype(np.float64), y.astype(np.float64), method="exact", axis=0)
    distances, p_values = METRIC.compare_features(x, y)
    assert p_values is not None
    assert distances == pytest.approx(expected.statistic, rel=1e-9, abs=1e-12)
    assert p_values == pytest.approx(expected.pvalue, rel=1e-12)


@pytest.mark.parametrize(("n", "m"), [(20, 19), (20, 20), (17, 20), (21, 19), (21, 40)])
def test_sets_around_the_largest_exact_size_are_those_of_scipy(n: int, m: int) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.normal(0, 1, (n, 1)), rng.normal(0.8, 1, (m, 1))
    expected = cramervonmises_2samp(x[:, 0], y[:, 0])
    distances, p_values = METRIC.compare_features(x, y)
    assert p_values is not None
    assert (distances[0], p_values[0]) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-12)


def test_the_exact_distribution_is_not_computed_for_each_feature() -> None:
    """Here SciPy takes most of a second per feature, so all features would exceed the time limit of a test."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(size, 512, generator=generator) for size in (EXACT_SAMPLES, EXACT_SAMPLES - 1))
    found = compare(METRIC, x, y)
    of_each = METRIC.compare_features(x.numpy(), y.numpy())[1]
    assert of_each is not None
    assert found.p_value == min(1, 512 * of_each.min())
    least = int(of_each.argmin())
    expected = cramervonmises_2samp(x[:, least].double().numpy(), y[:, least].double().numpy(), method="exact")
    assert of_each[least] == pytest.approx(expected.pvalue, rel=1e-12)


def test_the_statistic_of_many_samples_does_not_round() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(size, 1)).astype(np.float32) for size in (50_000, 49_999))
    expected = cramervonmises_2samp(x[:, 0].astype(np.float64), y[:, 0].astype(np.float64))
    found = compare(METRIC, torch.from_numpy(x), torch.from_numpy(y))
    assert (found.distance, found.p_value) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9)
