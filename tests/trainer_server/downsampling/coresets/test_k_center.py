"""k-center against brute force and a plain traversal in float64."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import InvalidArgumentError
from modyn.trainer_server.downsampling.coresets.k_center import k_center

Features = npt.NDArray[np.float64]


def normal(count: int, dimensions: int, seed: int = 3) -> Features:
    return np.random.default_rng(seed).standard_normal((count, dimensions))


def pairs(x: Features) -> Features:
    return np.asarray(np.sqrt(np.square(x[:, None] - x).sum(2)))


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 10**6))
def test_the_radius_is_at_most_twice_the_least(count: int, size: int, seed: int) -> None:
    x = normal(count, 2, seed)
    distances = pairs(x)
    size = min(size, count)
    least = min(distances[:, list(centers)].min(1).max() for centers in combinations(range(count), size))
    found = k_center(x, size)
    assert found.value == pytest.approx(distances[:, found.positions].min(1).max(), rel=1e-5, abs=1e-6)
    assert found.value <= 2 * least + 1e-6


def test_it_is_the_plain_traversal() -> None:
    x = normal(400, 6)
    distances = pairs(x)
    chosen = [int(np.argmin(np.square(x - x.mean(0)).sum(1)))]
    while len(chosen) < 60:
        chosen.append(int(distances[:, chosen].min(1).argmax()))
    assert k_center(x, 60).positions.tolist() == sorted(chosen)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_dtype_gives_the_same(dtype: Any) -> None:
    x = (normal(200, 5) * 20).round().astype(dtype)
    found = k_center(x, 25)
    assert found.positions.tolist() == k_center(x.astype(np.float64), 25).positions.tolist()
    assert found.weights.dtype == np.float32
    assert found.weights.tolist() == [1] * 25


def test_large_float16_values_do_not_overflow() -> None:
    assert np.isfinite(k_center((normal(50, 4) * 1e4).astype(np.float16), 5).value)


def test_no_candidate_comes_twice_where_many_are_equal() -> None:
    x = np.repeat(normal(4, 3), 5, axis=0)
    found = k_center(x, 9)
    assert len(set(found.positions.tolist())) == 9
    assert found.value == 0
    assert {position // 5 for position in k_center(x, 4).positions.tolist()} == {0, 1, 2, 3}


def test_near_neighbours_far_from_the_mean_are_told_apart() -> None:
    x = np.concatenate([normal(20, 3) * 1e-5 + 1000, normal(20, 3) * 1e-5 - 1000])
    assert k_center(x, 6).value == pytest.approx(pairs(x)[:, k_center(x, 6).positions].min(1).max(), rel=1e-6)


def test_few_candidates_and_none() -> None:
    assert k_center(normal(3, 2), 10).positions.tolist() == [0, 1, 2]
    assert k_center(normal(0, 2), 10).positions.tolist() == []
    assert k_center(normal(3, 2), 0).positions.tolist() == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_position(bad: float) -> None:
    x = normal(5, 2)
    x[3, 1] = bad
    with pytest.raises(InvalidArgumentError, match="candidate 3 "):
        k_center(x, 2)


def test_arrays_that_are_not_features_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"int64 of shape \(3, 2\)"):
        k_center(np.ones((3, 2), np.int64), 2)  # type: ignore[arg-type]
