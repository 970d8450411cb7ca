"""Without drift, p-values are uniform: 500 draws of each test, with fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from modyn.evaluator.drift import DRIFT_METRICS, compare


@pytest.mark.slow
@pytest.mark.parametrize(
    ("id_", "options", "n", "m", "d"),
    [
        ("KSDriftMetric", {}, 400, 300, 1),
        ("CVMDriftMetric", {}, 400, 300, 1),
        ("ChiSquaredDriftMetric", {}, 400, 300, 1),
        ("MMDDriftMetric", {"num_permutations": 199}, 40, 30, 3),
        ("MMDDriftMetric", {"num_permutations": 199, "biased": True}, 40, 30, 3),
        ("EnergyDriftMetric", {"num_permutations": 199}, 40, 30, 3),
        ("DomainClassifierDriftMetric", {"num_folds": 2}, 80, 60, 3),
    ],
)
def test_p_values_without_drift_are_uniform(id_: str, options: dict[str, object], n: int, m: int, d: int) -> None:
    policy = DRIFT_METRICS.get(id_)
    metric = policy(policy.Config.model_validate(options))
    p_values = []
    for seed in range(500):
        rng = np.random.default_rng(seed)
        # Few values for the test of categories; many for the others.
        draw = rng.integers(0, 6, (n + m, d)) if id_ == "ChiSquaredDriftMetric" else rng.normal(size=(n + m, d))
        rows = torch.from_numpy(draw.astype(np.float32))
        p_values.append(compare(metric, rows[:n], rows[n:]).p_value)
    assert stats.kstest(p_values, "uniform").pvalue > 0.01
