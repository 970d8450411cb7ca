"""Non-negative matching pursuit against scikit-learn's pursuit, SciPy's NNLS and the conditions of an optimum."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from sklearn.linear_model import OrthogonalMatchingPursuit

from modyn.trainer_server.downsampling.coresets.matching_pursuit import pursue

Array = npt.NDArray[np.float64]


def atoms_of(count: int, dimensions: int, seed: int = 5) -> Array:
    return np.random.default_rng(seed).standard_normal((count, dimensions))


def objective(atoms: Array, target: Array, coefficients: Array, penalty: float) -> float:
    return float(np.square(target - coefficients @ atoms).sum() + penalty * np.square(coefficients).sum())


@pytest.mark.parametrize("seed", range(5))
def test_where_all_coefficients_are_positive_it_is_the_pursuit_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    atoms = np.linalg.qr(rng.standard_normal((40, 40)))[0][:25] + 0.02 * rng.standard_normal((25, 40))
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)  # as it wants them
    target = rng.uniform(0.5, 2, 25) @ atoms
    theirs = OrthogonalMatchingPursuit(n_nonzero_coefs=10, fit_intercept=False).fit(atoms.T, target).coef_
    assert (theirs >= 0).all()
    found = pursue(atoms, target, 10, ridge=0.0)
    assert sorted(found.chosen.tolist()) == np.flatnonzero(theirs).tolist()
    assert found.coefficients == pytest.approx(theirs[found.chosen])
    assert found.residual == pytest.approx(target - theirs @ atoms)


@given(st.integers(1, 30), st.integers(1, 12), st.sampled_from([0.0, 1e-3, 0.1, 1.0]), st.integers(0, 10**6))
def test_without_a_limit_it_is_the_non_negative_least_squares_solution(
    count: int, dimensions: int, ridge: float, seed: int
) -> None:
    atoms = atoms_of(count, dimensions, seed)
    target = np.random.default_rng(seed + 1).standard_normal(dimensions)
    penalty = ridge * float(np.square(atoms).sum(1).mean())
    widened = np.hstack([atoms, np.sqrt(penalty) * np.eye(count)])
    best, _ = nnls(widened.T, np.concatenate([target, np.zeros(count)]))
    found = pursue(atoms, target, count, ridge)
    coefficients = np.zeros(count)
    coefficients[found.chosen] = found.coefficients
    assert objective(atoms, target, coefficients, penalty) == pytest.approx(objective(atoms, target, best, penalty), abs=1e-7)


@given(st.integers(2, 60), st.integers(1, 20), st.integers(1, 30), st.sampled_from([0.0, 0.1]), st.integers(0, 10**6))
def test_coefficients_are_positive_and_the_best_for_what_is_chosen(
    count: int, dimensions: int, size: int, ridge: float, seed: int
) -> None:
    atoms = atoms_of(count, dimensions, seed)
    target = atoms.mean(0)
    found = pursue(atoms, target, size, ridge)
    penalty = ridge * float(np.square(atoms).sum(1).mean())
    assert len(found.chosen) == len(set(found.chosen.tolist())) == len(found.coefficients) <= size
    assert (found.coefficients > 0).all()
    chosen = atoms[found.chosen]
    assert found.residual == pytest.approx(target - found.coefficients @ chosen)
    assert chosen @ found.residual == pytest.approx(penalty * found.coefficients, abs=1e-6)  # the gradient is 0


def test_a_ridge_lets_it_use_its_budget_where_few_atoms_would_do() -> None:
    atoms = atoms_of(500, 8)
    assert len(pursue(atoms, atoms.mean(0), 100, ridge=0.0).chosen) <= 9
    assert len(pursue(atoms, atoms.mean(0), 100, ridge=0.1).chosen) == 100


def test_the_ridge_goes_with_the_scale_of_the_atoms() -> None:
    atoms = atoms_of(100, 10)
    one = pursue(atoms, atoms.mean(0), 20, ridge=0.1)
    for scale in (1e-6, 1e6):
        other = pursue(atoms * scale, atoms.mean(0) * scale, 20, ridge=0.1)
        assert other.chosen.tolist() == one.chosen.tolist()
        assert other.coefficients == pytest.approx(one.coefficients)


def test_it_ends_where_nothing_points_to_the_target() -> None:
    atoms = np.array([[-1.0, 0.0], [0.0, 0.0], [-1.0, 0.5]])
    found = pursue(atoms, np.array([1.0, 0.0]), 3)
    assert found.chosen.tolist() == []
    assert found.residual.tolist() == [1.0, 0.0]
    assert pursue(atoms, np.zeros(2), 3).chosen.tolist() == []
    assert pursue(np.empty((0, 2)), np.ones(2), 3).chosen.tolist() == []


def test_equal_atoms_share_with_a_ridge_and_do_not_fail_without() -> None:
    atoms = np.ones((6, 3))
    assert pursue(atoms, np.ones(3), 6, ridge=0.0).coefficients == pytest.approx([1.0])
    shared = pursue(atoms, np.ones(3), 6, ridge=0.1)
    assert shared.chosen.tolist() == list(range(6))
    assert shared.coefficients == pytest.approx([1 / 6.1] * 6)


def test_float32_atoms_give_nearly_the_same() -> None:
    atoms = atoms_of(300, 20)
    one, other = pursue(atoms, atoms.mean(0), 30), pursue(atoms.astype(np.float32), atoms.mean(0), 30)
    assert one.chosen.tolist() == other.chosen.tolist()
    assert other.coefficients == pytest.approx(one.coefficients, rel=1e-4)
