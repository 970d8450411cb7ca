"""MMD and the energy distance, compared with explicit sums over all pairs in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.stats import energy_distance

from modyn.evaluator.drift import compare
from modyn.evaluator.drift.base import PermutationConfig
from modyn.evaluator.drift.energy import EnergyDriftMetric
from modyn.evaluator.drift.mmd import MMDConfig, MMDDriftMetric
from modyn.evaluator.drift.pairs import BLOCK, median_squared_distance, permuted_pair_sums

Matrix = npt.NDArray[np.float64]


def samples(seed: int, n: int, d: int = 3, shift: float = 0.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(shift, 1, (n, d)).astype(np.float32))


def squared_mmd(x: Matrix, y: Matrix, squared_bandwidth: float, *, biased: bool) -> float:
    """Gretton and others 2012, equations 3 (without bias) and 5."""

    def kernel(a: Matrix, b: Matrix) -> Matrix:
        values: Matrix = np.exp(-cdist(a, b, "sqeuclidean") / (2 * squared_bandwidth))
        return values

    def within(a: Matrix) -> float:
        sums = kernel(a, a).sum()
        return float(sums / len(a) ** 2 if biased else (sums - len(a)) / (len(a) * (len(a) - 1)))

    return within(x) + within(y) - 2 * float(kernel(x, y).mean())


@given(
    n=st.integers(2, 40),
    m=st.integers(2, 40),
    shift=st.floats(-3, 3),
    bandwidth=st.floats(0.2, 5),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_mmd_is_the_mean_over_all_pairs(n: int, m: int, shift: float, bandwidth: float, biased: bool, seed: int) -> None:
    x, y = samples(seed, n), samples(seed + 1, m, shift=shift)
    metric = MMDDriftMetric(MMDConfig(bandwidth=bandwidth, biased=biased))
    expected = squared_mmd(x.double().numpy(), y.double().numpy(), bandwidth**2, biased=biased)
    # Squared distances in float32 err by about 1e-6, and the kernel divides them by twice the squared bandwidth.
    assert compare(metric, x, y).distance == pytest.approx(expected, abs=2e-6 * max(1.0, bandwidth**-2))


@pytest.mark.parametrize(("n", "m"), [(BLOCK + 1, BLOCK - 1), (2 * BLOCK, 3), (5, BLOCK + 7)])
def test_blocks_do_not_change_the_sums(n: int, m: int) -> None:
    x, y = samples(1, n), samples(2, m, shift=0.3)
    expected = squared_mmd(x.double().numpy(), y.double().numpy(), 2.0**2, biased=False)
    assert compare(MMDDriftMetric(MMDConfig(bandwidth=2.0)), x, y).distance == pytest.approx(expected, abs=2e-6)
    sums = permuted_pair_sums(x, y, lambda squares: squares.mul_(-1 / 8).exp_(), 1, torch.Generator())
    assert float(sums.between[0]) == pytest.approx(np.exp(-cdist(x, y, "sqeuclidean") / 8).sum(), rel=1e-5)


@given(n=st.integers(2, 30), d=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_bandwidth_is_by_the_median_of_the_reference(n: int, d: int, seed: int) -> None:
    x, y = samples(seed, n, d), samples(seed + 1, 10, d, shift=5)
    squares = np.sort(cdist(x, x, "sqeuclidean")[~np.eye(n, dtype=bool)])
    lower_median = squares[(len(squares) - 1) // 2]
    assert median_squared_distance(x) == pytest.approx(lower_median, rel=1e-4, abs=1e-5)
    if lower_median > 1e-3:
        expected = squared_mmd(x.double().numpy(), y.double().numpy(), lower_median / 2, biased=False)
        assert compare(MMDDriftMetric(MMDConfig()), x, y).distance == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("n", [9, 25])
def test_permutations_are_those_of_a_reindexed_kernel(n: int) -> None:
    x, y = samples(3, n), samples(4, 17, shift=0.4)
    rows = torch.cat([x, y]).double().numpy()
    kernel = np.exp(-cdist(rows, rows, "sqeuclidean") / 8)
    np.fill_diagonal(kernel, 0)
    sums = permuted_pair_sums(x, y, lambda squares: squares.mul_(-1 / 8).exp_(), 20, torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(7)
    divisions = [np.arange(len(rows))] + [torch.randperm(len(rows), generator=generator).numpy() for _ in range(20)]
    for column, division in enumerate(divisions):
        first, second = division[:n], division[n:]
        assert float(sums.within_x[column]) == pytest.approx(kernel[np.ix_(first, first)].sum(), rel=1e-5)
        assert float(sums.within_y[column]) == pytest.approx(kernel[np.ix_(second, second)].sum(), rel=1e-5)
        assert float(sums.between[column]) == pytest.approx(kernel[np.ix_(first, second)].sum(), rel=1e-5)


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e5])
def test_an_offset_of_all_samples_changes_nothing(offset: float) -> None:
    x, y = samples(5, 200).double(), samples(6, 150, shift=0.5).double()
    moved = [(part + offset).float() for part in (x, y)]
    # What is left is the rounding of the samples themselves to float32.
    for metric in (MMDDriftMetric(MMDConfig()), EnergyDriftMetric(PermutationConfig())):
        near = compare(metric, x.float(), y.float()).distance
        assert compare(metric, *moved).distance == pytest.approx(near, rel=0.02)


@given(n=st.integers(2, 30), m=st.integers(2, 30), shift=st.floats(-3, 3), seed=st.integers(0, 99))
def test_energy_of_one_feature_is_that_of_scipy(n: int, m: int, shift: float, seed: int) -> None:
    x, y = samples(seed, n, 1), samples(seed + 1, m, 1, shift=shift)
    expected = float(energy_distance(x[:, 0].double(), y[:, 0].double()))
    assert compare(EnergyDriftMetric(PermutationConfig()), x, y).distance == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    "metric", [MMDDriftMetric(MMDConfig(num_permutations=99)), EnergyDriftMetric(PermutationConfig(num_permutations=99))]
)
def test_p_values_tell_a_shift_from_none(metric: MMDDriftMetric | EnergyDriftMetric) -> None:
    same, shifted = (compare(metric, samples(1, 60), samples(2, 50, shift=shift)).p_value for shift in (0.0, 2.0))
    assert same is not None
    assert same > 0.05
    assert shifted == 1 / 100  # the least that 99 permutations can give


def test_equal_samples_have_no_drift() -> None:
    x = torch.ones(10, 2)
    metric = MMDDriftMetric(MMDConfig(num_permutations=19))
    assert compare(metric, x, x).distance == 0
    assert compare(metric, x, x).p_value == 1


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("from_reference", [True, False])
def test_sets_that_lie_far_apart_are_compared_exactly(offset: float, from_reference: bool) -> None:
    x, y = samples(7, 60), 0.5 * samples(8, 50) + offset
    a, b = x.double().numpy(), y.double().numpy()
    rows = a if from_reference else np.concatenate([a, b])
    squares = np.sort(cdist(rows, rows, "sqeuclidean")[~np.eye(len(rows), dtype=bool)])
    expected = squared_mmd(a, b, squares[(len(squares) - 1) // 2] / 2, biased=False)
    for num in (None, 3):
        metric = MMDDriftMetric(MMDConfig(configure_kernel_from_x_ref=from_reference, num_permutations=num))
        assert compare(metric, x, y).distance == pytest.approx(expected, abs=1e-5)
    energy = np.sqrt(2 * cdist(a, b).mean() - cdist(a, a).mean() - cdist(b, b).mean())
    assert compare(EnergyDriftMetric(PermutationConfig()), x, y).distance == pytest.approx(energy, rel=1e-3)


@pytest.mark.parametrize("bandwidth", [float("inf"), 1e30, 1e-30, 1e-170])
def test_a_bandwidth_without_effect_is_refused(bandwidth: float) -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        MMDConfig(bandwidth=bandwidth)
    with pytest.raises(ValueError, match="no effect together with a bandwidth"):
        MMDConfig(bandwidth=1, configure_kernel_from_x_ref=False)
