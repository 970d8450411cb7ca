"""Samples with little in them, or too much: every distance stays a finite number, and the distance between equal samples is 0."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.base import load_section
from modyn.errors import DataError
from modyn.evaluator.drift import DRIFT_METRICS, compare, missing_modules
from modyn.evaluator.drift.base import LARGEST, TooFewSamplesError

SHAPES = {
    "constant": lambda n, d, generator: torch.full((n, d), 7.0),
    "zero": lambda n, d, generator: torch.zeros(n, d),
    "duplicated": lambda n, d, generator: torch.randn(1, d, generator=generator).repeat(n, 1),
    "mostly duplicated": lambda n, d, generator: torch.cat([torch.zeros(n - 1, d), torch.ones(1, d)]),
    "two values": lambda n, d, generator: torch.randint(0, 2, (n, d), generator=generator).float(),
    "constant columns": lambda n, d, generator: torch.randn(n, 1, generator=generator) * torch.eye(1, d),
    "large": lambda n, d, generator: LARGEST * torch.rand(n, d, generator=generator),
    "largest": lambda n, d, generator: LARGEST * torch.randn(n, d, generator=generator).sign(),
    "tiny": lambda n, d, generator: 1e-30 * torch.randn(n, d, generator=generator),
    "smallest": lambda n, d, generator: 1e-45 * torch.randn(n, d, generator=generator).sign(),
    "far away": lambda n, d, generator: 1e6 + torch.randn(n, d, generator=generator),
    "plain": lambda n, d, generator: torch.randn(n, d, generator=generator),
}
"""Name → (n, d) samples."""
INSTALLED = [id_ for id_ in DRIFT_METRICS if not missing_modules(DRIFT_METRICS.get(id_))]
OPTIONS: dict[str, list[dict[str, object]]] = {
    "MMDDriftMetric": [{}, {"num_permutations": 5}, {"biased": True}],
    "EnergyDriftMetric": [{}, {"num_permutations": 5}],
    "MeanDistanceDriftMetric": [{}, {"distance": "cosine"}],
}
CASES = [(id_, options) for id_ in INSTALLED for options in OPTIONS.get(id_, [{}])]


@pytest.mark.parametrize(("id_", "options"), CASES)
@given(
    kinds=st.tuples(st.sampled_from(sorted(SHAPES)), st.sampled_from(sorted(SHAPES))),
    sizes=st.tuples(st.integers(2, 12), st.integers(2, 12)),
    width=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_every_distance_is_finite_and_in_the_declared_range(
    id_: str, options: dict[str, object], kinds: tuple[str, str], sizes: tuple[int, int], width: int, seed: int
) -> None:
    metric = DRIFT_METRICS.get(id_)
    generator = torch.Generator().manual_seed(seed)
    least = metric.min_samples
    reference, current = (SHAPES[kind](max(size, least), width, generator) for kind, size in zip(kinds, sizes, strict=True))
    config = load_section(metric.Config, options)
    try:
        found = compare(metric(config, seed), reference, current)  # which refuses what is not finite
    except TooFewSamplesError:
        assert metric.by_category
        return
    assert found.p_value is None or 0 <= found.p_value <= 1
    bounds = metric.range_of(config)
    assert bounds is not None
    low, high = bounds
    assert low - 1e-6 <= found.distance <= high + 1e-6


@pytest.mark.parametrize("id_", INSTALLED)
def test_values_that_cannot_be_squared_are_refused(id_: str) -> None:
    metric = DRIFT_METRICS.get(id_)
    rows = torch.ones(metric.min_samples, 2)
    with pytest.raises(DataError, match=r"samples have values that are not finite \(NaN or infinity\) or beyond 1e\+18"):
        compare(metric(metric.Config(), 0), rows, 1e30 * rows)
