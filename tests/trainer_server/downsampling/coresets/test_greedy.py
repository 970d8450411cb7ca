"""The maximizers, on functions whose gains are kept and on one whose gains are computed when they are asked for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import InvalidArgumentError
from modyn.trainer_server.downsampling.coresets.distances import EuclideanDistances
from modyn.trainer_server.downsampling.coresets.facility_location import FacilityLocation
from modyn.trainer_server.downsampling.coresets.graph_cut import GraphCut
from modyn.trainer_server.downsampling.coresets.greedy import _MAXIMIZERS, Greedy, SetFunction, maximize
from modyn.trainer_server.downsampling.coresets.log_determinant import LogDeterminant

KINDS: list[Greedy] = ["NaiveGreedy", "LazyGreedy", "StochasticGreedy", "ApproximateLazyGreedy"]


class Coverage(SetFunction):
    """How many of some elements the chosen sets cover. Counts how many gains it was asked for."""

    def __init__(self, sets: npt.NDArray[np.bool_]) -> None:
        self._sets = sets
        self._covered = np.zeros(sets.shape[1], bool)
        self.asked = 0

    def __len__(self) -> int:
        return len(self._sets)

    @property
    def value(self) -> float:
        return float(self._covered.sum())

    def gains(self, candidates: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        self.asked += len(candidates)
        return np.asarray((self._sets[candidates] & ~self._covered).sum(1), np.float64)

    def add(self, candidate: int) -> None:
        self._covered |= self._sets[candidate]


def sets(count: int = 200, elements: int = 400, seed: int = 0) -> npt.NDArray[np.bool_]:
    rng = np.random.default_rng(seed)
    return rng.random((count, elements)) < rng.random((count, 1)) * 0.05


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10**6))
def test_lazy_chooses_what_naive_does_ties_included(count: int, size: int, seed: int) -> None:
    given = sets(count, 30, seed)
    assert (
        maximize(Coverage(given), size, "LazyGreedy", rng()).tolist()
        == maximize(Coverage(given), size, "NaiveGreedy", rng()).tolist()
    )


@given(st.integers(2, 60), st.integers(1, 60), st.integers(0, 10**6))
def test_naive_and_lazy_agree_on_every_function(count: int, size: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((count, 4))
    for make in (lambda: FacilityLocation(EuclideanDistances(x)), lambda: GraphCut(x), lambda: LogDeterminant(x)):
        found: list[list[int]] = [maximize(make(), size, kind, rng()).tolist() for kind in ("NaiveGreedy", "LazyGreedy")]
        assert found[0] == found[1]


def test_lazy_asks_for_few_gains() -> None:
    asked = {}
    for kind in KINDS:
        function = Coverage(sets())
        maximize(function, 30, kind, rng())
        asked[kind] = function.asked
    assert asked["ApproximateLazyGreedy"] <= asked["LazyGreedy"] < asked["NaiveGreedy"] / 3
    assert asked["StochasticGreedy"] < asked["NaiveGreedy"] / 3


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_nearly_as_good_as_naive(kind: Greedy) -> None:
    best = Coverage(sets())
    maximize(best, 30, "NaiveGreedy", rng())
    values = []
    for seed in range(10):
        function = Coverage(sets())
        chosen = maximize(function, 30, kind, rng(seed))
        assert len(set(chosen.tolist())) == 30
        values.append(function.value)
    assert np.mean(values) >= 0.9 * best.value


@pytest.mark.parametrize("kind", KINDS)
def test_the_generator_alone_decides(kind: Greedy) -> None:
    found = [maximize(Coverage(sets()), 30, kind, rng(seed)).tolist() for seed in (0, 0, 1)]
    assert found[0] == found[1]
    assert (found[0] != found[2]) == (kind == "StochasticGreedy")


@pytest.mark.parametrize("kind", KINDS)
def test_all_are_chosen_where_there_are_no_more(kind: Greedy) -> None:
    assert sorted(maximize(Coverage(sets(7)), 100, kind, rng())) == list(range(7))
    assert maximize(Coverage(sets(7)), 0, kind, rng()).tolist() == []
    assert maximize(Coverage(sets(0)), 3, kind, rng()).tolist() == []


@pytest.mark.parametrize("kind", KINDS)
def test_gains_below_zero_are_chosen_too(kind: Greedy) -> None:
    function = GraphCut(np.random.default_rng(0).standard_normal((40, 3)), redundancy=30.0)
    assert sorted(maximize(function, 40, kind, rng())) == list(range(40))
    assert function.value < 0


def test_another_maximizer_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'Greedy'; there are NaiveGreedy, LazyGreedy"):
        maximize(Coverage(sets(3)), 1, "Greedy", rng())  # type: ignore[arg-type]
    assert list(_MAXIMIZERS) == KINDS
