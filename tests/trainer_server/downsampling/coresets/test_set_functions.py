"""The set functions against their definitions, and against values of two libraries."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, islice

import numpy as np
import numpy.typing as npt
import pytest

from modyn.errors import InvalidArgumentError
from modyn.trainer_server.downsampling.coresets.distances import CosineDistances, EuclideanDistances
from modyn.trainer_server.downsampling.coresets.facility_location import FacilityLocation
from modyn.trainer_server.downsampling.coresets.graph_cut import GraphCut
from modyn.trainer_server.downsampling.coresets.greedy import SetFunction, maximize
from modyn.trainer_server.downsampling.coresets.log_determinant import LogDeterminant

Features = npt.NDArray[np.float64]
Value = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]]
"""From sets (m, size) to the value of each, (m,)."""


def normal(count: int, dimensions: int, seed: int = 11) -> Features:
    return np.random.default_rng(seed).standard_normal((count, dimensions))


def kernel(x: Features) -> Features:
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    z = x / np.where(lengths > 0, lengths, 1)
    return np.asarray((1 + z @ z.T) / 2)


def euclidean(x: Features) -> Features:
    return np.asarray(np.sqrt(np.square(x[:, None] - x).sum(2)))


def facility_location(x: Features) -> tuple[SetFunction, Value]:
    k = kernel(x)
    np.fill_diagonal(k, 1)
    return FacilityLocation(CosineDistances(x)), lambda sets: k[:, sets].max(2).sum(0)


def by_distance(x: Features) -> tuple[SetFunction, Value]:
    of = EuclideanDistances(x)
    similarities = of.farthest - euclidean(x) / of.unit
    return FacilityLocation(of), lambda sets: similarities[:, sets].max(2).sum(0)


def weighted(x: Features) -> tuple[SetFunction, Value]:
    of = EuclideanDistances(x)
    weights = np.arange(1, len(x) + 1) % 4
    similarities = of.farthest - euclidean(x) / of.unit
    return FacilityLocation(of, weights.astype(np.float32)), lambda sets: weights @ similarities[:, sets].max(2)


def graph_cut(x: Features, redundancy: float = 0.5) -> tuple[SetFunction, Value]:
    k = kernel(x)

    def value(sets: npt.NDArray[np.int64]) -> Features:
        return np.asarray(k.sum(0)[sets].sum(1) - redundancy * k[sets[:, :, None], sets[:, None, :]].sum((1, 2)))

    return GraphCut(x, redundancy), value


def log_determinant(x: Features, regularization: float = 1.0) -> tuple[SetFunction, Value]:
    k = kernel(x) + regularization * np.eye(len(x))
    return LogDeterminant(x, regularization), lambda sets: np.linalg.slogdet(k[sets[:, :, None], sets[:, None, :]])[1]


FUNCTIONS = [facility_location, by_distance, weighted, graph_cut, log_determinant]


@pytest.mark.parametrize("make", FUNCTIONS)
def test_gains_are_differences_of_values_for_all_candidates(make: Callable[[Features], tuple[SetFunction, Value]]) -> None:
    function, value = make(normal(120, 5))
    chosen: list[int] = []
    for candidate in (17, 99, 0, 119, 50, 51, 3):
        left = np.setdiff1d(np.arange(120), chosen)
        before = value(np.array([chosen]))[0] if chosen else 0.0
        with_each = value(np.array([[*chosen, other] for other in left]))
        assert function.value == pytest.approx(before, rel=1e-5)
        assert function.gains(left) == pytest.approx(with_each - before, rel=1e-4, abs=1e-4)
        function.add(candidate)
        chosen.append(candidate)


@pytest.mark.parametrize("size", [1, 4, 10])
@pytest.mark.parametrize("make", FUNCTIONS)
def test_greedy_is_near_the_best_of_all_sets(make: Callable[[Features], tuple[SetFunction, Value]], size: int) -> None:
    function, value = make(normal(16, 4))
    sets = combinations(range(16), size)
    best = -np.inf
    while some := list(islice(sets, 20_000)):
        best = max(best, value(np.array(some)).max())
    chosen = maximize(function, size, "NaiveGreedy", np.random.default_rng(0))
    assert function.value == pytest.approx(value(chosen[None])[0], rel=1e-5)
    assert (1 - 1 / np.e) * best <= function.value <= best * (1 + 1e-6)
    if size == 1:
        assert function.value == pytest.approx(best, rel=1e-6)


LIBRARIES = [
    (facility_location, 171.81414792206283, [127, 24, 32, 128, 173, 183]),  # both
    (by_distance, None, [79, 125, 22, 12, 195, 50]),  # apricot; its value below
    (graph_cut, 1970.3289219196886, [127, 34, 56, 146, 141, 58]),  # submodlib
    (lambda x: graph_cut(x, 1.0), 1838.863745259121, [127, 34, 56, 146, 58, 74]),  # submodlib
    (log_determinant, 8.823220210583049, None),  # submodlib; the first gains are all equal, and it begins with another candidate
    (lambda x: log_determinant(x, 0.1), -20.75908177640809, None),
]
"""Value of the greedy set of 20 out of 200 and its first members. apricot-select 0.6.1 (optimizer naive) with numba 0.68.1, submodlib-py 0.0.3
(NaiveGreedy), metric="precomputed" or mode="dense", given `kernel(normal(200, 8))`; `by_distance`: the largest Euclidean distance less each."""


@pytest.mark.parametrize(("make", "expected", "first"), LIBRARIES)
def test_values_are_those_of_libraries(
    make: Callable[[Features], tuple[SetFunction, Value]], expected: float | None, first: list[int] | None
) -> None:
    function, _ = make(normal(200, 8))
    chosen = maximize(function, 20, "LazyGreedy", np.random.default_rng(0))
    if expected is not None:
        assert function.value == pytest.approx(expected, rel=1e-6 if first else 2e-3)
    assert first is None or chosen[:6].tolist() == first


def test_distances_to_the_chosen_are_those_of_a_library() -> None:
    of = EuclideanDistances(normal(200, 8))
    function = FacilityLocation(of)
    maximize(function, 20, "NaiveGreedy", np.random.default_rng(0))
    assert of.unit * (200 * of.farthest - function.value) == pytest.approx(374.104445300492, rel=1e-6)  # apricot, as above


def test_a_log_determinant_gains_more_from_what_is_different() -> None:
    function = LogDeterminant(np.array([[1.0, 0.0], [1.0, 0.01], [-1.0, 0.5]]))
    function.add(0)
    near, far = function.gains(np.array([1, 2]))
    assert far > near > 0


def test_a_log_determinant_of_more_than_dimensions_stays_finite() -> None:
    function, value = log_determinant(normal(300, 3), 1e-3)
    chosen = maximize(function, 100, "NaiveGreedy", np.random.default_rng(0))
    assert function.value == pytest.approx(value(chosen[None])[0], rel=1e-4)
    assert np.isfinite(function.gains(np.arange(300))).all()


@pytest.mark.parametrize("regularization", [0.0, -1.0, float("nan")])
def test_a_log_determinant_needs_a_positive_regularization(regularization: float) -> None:
    with pytest.raises(InvalidArgumentError, match="must be positive"):
        LogDeterminant(normal(3, 2), regularization)


@pytest.mark.parametrize("make", FUNCTIONS)
def test_equal_candidates_and_candidates_of_zeros_have_finite_gains(
    make: Callable[[Features], tuple[SetFunction, Value]],
) -> None:
    for x in (np.zeros((9, 3)), np.ones((9, 3)), np.repeat(normal(3, 3), 3, axis=0)):
        function, _ = make(x)
        chosen = maximize(function, 9, "LazyGreedy", np.random.default_rng(0))
        assert sorted(chosen) == list(range(9))
        assert np.isfinite(function.value)


def test_each_chosen_one_represents_itself_and_those_nearest_to_it() -> None:
    places = np.array([[0.0], [0.1], [5.0], [5.1], [5.2], [0.0]])
    function = FacilityLocation(EuclideanDistances(places))
    for candidate in (3, 0, 5):
        function.add(candidate)
    assert function.represented(np.array([3, 0, 5])).tolist() == [3, 2, 1]
    function = FacilityLocation(EuclideanDistances(places), np.array([1, 2, 4, 8, 16, 32], np.float32))
    for candidate in (3, 0):
        function.add(candidate)
    assert function.represented(np.array([0, 3])).tolist() == [35, 28]


def test_one_candidate_far_out_does_not_round_the_others_away() -> None:
    x = normal(60, 4)
    x[0] *= 1e6
    found = EuclideanDistances(x)
    assert found.rows(np.arange(60)) * found.unit == pytest.approx(euclidean(x), rel=1e-4)
    cosines = CosineDistances(x * 10.0 ** np.arange(-200, 220, 7)[:, None]).rows(np.arange(60))
    assert cosines == pytest.approx(1 - kernel(x), abs=1e-6)


@pytest.mark.parametrize("kind", [CosineDistances, EuclideanDistances])
def test_sums_of_distances_are_sums_of_their_rows(kind: type[CosineDistances] | type[EuclideanDistances]) -> None:
    weights = np.arange(300, dtype=np.float32) % 5
    x = normal(300, 6)
    x[7] = 0
    found = kind(x)
    rows = found.rows(np.arange(300))
    assert found.sums(weights) == pytest.approx(weights @ rows.astype(np.float64), rel=1e-5)
    assert (rows <= found.farthest).all()
    assert (np.diag(rows) == 0).all()
    assert len(found) == 300


@pytest.mark.parametrize("kind", [CosineDistances, EuclideanDistances])
def test_how_many_rows_are_computed_at_once_changes_nothing(kind: type[CosineDistances] | type[EuclideanDistances]) -> None:
    found = kind(normal(90, 6))
    one_by_one = np.concatenate([found.rows(np.array([row])) for row in range(90)])
    assert found.rows(np.arange(90)) == pytest.approx(one_by_one, rel=1e-5, abs=1e-6)
