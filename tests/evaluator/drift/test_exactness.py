"""MMD and the energy distance of distant, equal or tiny samples, compared with sums over all pairs in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist

from modyn.evaluator.drift import compare
from modyn.evaluator.drift.base import PermutationConfig
from modyn.evaluator.drift.energy import EnergyDriftMetric
from modyn.evaluator.drift.mmd import EQUAL, MMDConfig, MMDDriftMetric

Matrix = npt.NDArray[np.float32]
Sets = tuple[Matrix, Matrix]
Rng = np.random.Generator


def exact_mmd(x: Matrix, y: Matrix, squared_bandwidth: float | None = None) -> float:
    """Without bias; by the lower median of the reference, and if it is 0, by whether samples are equal at the scale of the reference."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    squares = np.sort(pdist(a, "sqeuclidean"))
    # If all samples of the reference are equal, both sets count.
    unequal = squares[squares > 0] if squares.any() else pdist(np.concatenate([a, b]), "sqeuclidean")
    only_equal = EQUAL**2 * unequal[unequal > 0].min(initial=np.inf)
    wide = 2 * squared_bandwidth if squared_bandwidth else squares[(len(squares) - 1) // 2] or only_equal
    xx, yy, xy = (np.exp(-cdist(p, q, "sqeuclidean") / wide) for p, q in ((a, a), (b, b), (a, b)))
    n, m = len(a), len(b)
    return float((xx.sum() - n) / (n * (n - 1)) + (yy.sum() - m) / (m * (m - 1)) - 2 * xy.mean())


def exact_energy(x: Matrix, y: Matrix) -> float:
    a, b = x.astype(np.float64), y.astype(np.float64)
    return float(np.sqrt(max(0.0, 2 * cdist(a, b).mean() - cdist(a, a).mean() - cdist(b, b).mean())))


def sparse(rng: Rng) -> Sets:
    """Most rows of the reference are 0 in each value."""
    x, y = (rng.random((400, 64)) * (rng.random((400, 1)) < alive) for alive in (0.2, 0.8))
    return x.astype(np.float32), y.astype(np.float32)


def dead_relu(rng: Rng) -> Sets:
    x, y = (np.maximum(rng.normal(0, 1, (400, 64)), 0) * (rng.random((400, 1)) < alive) for alive in (0.2, 0.6))
    return x.astype(np.float32), y.astype(np.float32)


def far_out(rng: Rng, by: float = 1e5) -> Sets:
    """One row in ten of both sets is shifted."""
    x, y = (rng.normal(shift, 1, (500, 3)) + by * (np.arange(500) % 10 == 0)[:, None] for shift in (0, 1))
    return x.astype(np.float32), y.astype(np.float32)


def missing_value(rng: Rng) -> Sets:
    """One column contains a number that means a missing value; another column is shifted."""
    x, y = rng.normal(0, 1, (500, 4)), rng.normal(0, 1, (500, 4))
    y[:, 1] += 1
    x[::10, 0] = y[::10, 0] = -1e6
    return x.astype(np.float32), y.astype(np.float32)


def scaled(scale: float) -> Callable[[Rng], Sets]:
    def draw(rng: Rng) -> Sets:
        x, y = (scale * rng.normal(shift, 1, (300, 4)) for shift in (0, 3))
        return x.astype(np.float32), y.astype(np.float32)

    return draw


CASES = {
    "sparse": sparse,
    "dead ReLU": dead_relu,
    "far out": far_out,
    "farther out": lambda rng: far_out(rng, 1e9),
    "missing value": missing_value,
    **{f"scaled by {scale:g}": scaled(scale) for scale in (1e-30, 1e-12, 1e-8, 1e-7, 1.0, 1e15)},
}


@pytest.mark.parametrize("draw", CASES.values(), ids=CASES)
@pytest.mark.parametrize("num", [None, 9])
def test_distances_are_those_of_all_pairs_in_float64(draw: Callable[[Rng], Sets], num: int | None) -> None:
    x, y = draw(np.random.default_rng(0))
    samples = torch.from_numpy(x), torch.from_numpy(y)
    mmd = compare(MMDDriftMetric(MMDConfig(num_permutations=num)), *samples)
    energy = compare(EnergyDriftMetric(PermutationConfig(num_permutations=num)), *samples)
    assert mmd.distance == pytest.approx(exact_mmd(x, y), abs=1e-3)
    if x.std() < 1e8:  # the sums over all pairs round as the distances do
        assert energy.distance == pytest.approx(exact_energy(x, y), rel=2e-3)
    assert num is None or mmd.p_value == 0.1


def test_a_given_bandwidth_holds_among_samples_that_lie_far_out() -> None:
    x, y = far_out(np.random.default_rng(0))
    found = compare(MMDDriftMetric(MMDConfig(bandwidth=1)), torch.from_numpy(x), torch.from_numpy(y)).distance
    assert found == pytest.approx(exact_mmd(x, y, 1.0), abs=1e-3)


@given(
    seed=st.integers(0, 999),
    width=st.sampled_from([1, 2, 64]),
    equal=st.sampled_from([0.0, 0.3, 0.9]),
    out=st.sampled_from([0.0, 1e2, 1e4, 1e6]),
    scale=st.sampled_from([1e-20, 1e-6, 1.0, 1e9]),
)
@example(seed=171, width=2, equal=0.9, out=0.0, scale=1.0)
@example(seed=171, width=2, equal=0.9, out=1e4, scale=1.0)
def test_no_mixture_of_samples_is_compared_wrongly(seed: int, width: int, equal: float, out: float, scale: float) -> None:
    rng = np.random.default_rng(seed)

    def draw(shift: float) -> Matrix:
        rows = rng.normal(shift, 1, (60, width))
        rows[rng.random(60) < equal] = 0.5
        rows[rng.random(60) < 0.1] += out
        return np.asarray(scale * rows, np.float32)

    x, y = draw(0), draw(rng.normal())
    samples = torch.from_numpy(x), torch.from_numpy(y)
    assert compare(MMDDriftMetric(MMDConfig()), *samples).distance == pytest.approx(exact_mmd(x, y), abs=5e-3)
    energy = compare(EnergyDriftMetric(PermutationConfig()), *samples).distance
    # The mean distances of which it is the difference are of samples in float32.
    rounding = 2e-6 * cdist(x.astype(np.float64), y.astype(np.float64)).mean()
    assert energy**2 == pytest.approx(exact_energy(x, y) ** 2, rel=4e-3, abs=rounding)
