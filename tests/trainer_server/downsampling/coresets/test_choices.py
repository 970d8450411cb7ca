"""Choices of CRAIG, GradMatch, k-center and the set functions, from few candidates and from many in blocks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.errors import InvalidArgumentError
from modyn.trainer_server.downsampling.coresets import Coreset, FloatArray
from modyn.trainer_server.downsampling.coresets.choices import FUNCTIONS, craig, gradmatch, k_centers, submodular
from modyn.trainer_server.downsampling.coresets.k_center import k_center
from modyn.trainer_server.downsampling.coresets.partitioned import BLOCK_ROWS, STRIP_ROWS, choose_in_blocks, deal, quotas

Choice = Callable[[FloatArray, int, np.random.Generator], Coreset]

CHOICES: dict[str, Choice] = {
    "craig": craig,
    "gradmatch": gradmatch,
    "k_centers": k_centers,
    **{name: lambda x, size, rng, name=name: submodular(x, size, rng, name) for name in FUNCTIONS},  # type: ignore[misc]
}
ALL = pytest.mark.parametrize("choose", CHOICES.values(), ids=CHOICES)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(count: int, dimensions: int, seed: int = 2) -> npt.NDArray[np.float32]:
    return rng(seed).standard_normal((count, dimensions), np.float32)


def whole(count: int, dimensions: int, seed: int = 2) -> npt.NDArray[np.float32]:
    """Small whole numbers, of which products and sums are exact in every dtype."""
    return rng(seed).integers(-8, 9, (count, dimensions)).astype(np.float32)


def distances(x: FloatArray, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """To the nearest chosen one."""
    return np.asarray(np.sqrt(np.square(x[:, None].astype(np.float64) - x[chosen]).sum(2)).min(1))


@ALL
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 60), st.integers(0, 70), st.integers(1, 6), st.integers(0, 10**6))
def test_positions_ascend_and_weights_are_positive(choose: Choice, count: int, size: int, dimensions: int, seed: int) -> None:
    x = normal(count, dimensions, seed)
    found = choose(x, size, rng(seed))
    assert (np.diff(found.positions) > 0).all()
    assert len(found.positions) == len(found.weights)
    assert len(found.positions) == min(size, count) or (choose is gradmatch and len(found.positions) < min(size, count))
    assert (found.weights > 0).all()
    assert found.positions.dtype == np.int64
    assert found.weights.dtype == np.float32


@ALL
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_every_dtype_chooses_as_float32(choose: Choice, dtype: Any) -> None:
    x = normal(300, 5).astype(np.float16)
    one, other = choose(x.astype(np.float32), 30, rng()), choose(x.astype(dtype), 30, rng())
    assert len(np.intersect1d(one.positions, other.positions)) >= 29
    assert other.value == pytest.approx(one.value, rel=1e-3)


@ALL
def test_rows_in_another_order_are_the_same_choice(choose: Choice) -> None:
    x = normal(300, 5)
    order = rng(1).permutation(300)
    one, other = choose(x, 30, rng()), choose(x[order], 30, rng())
    assert np.sort(order[other.positions]).tolist() == one.positions.tolist() or choose is CHOICES["LogDeterminant"]
    assert other.value == pytest.approx(one.value, rel=1e-2)  # the first of a log determinant is one of equals


@ALL
def test_how_an_array_lies_in_memory_changes_nothing(choose: Choice) -> None:
    x = whole(250, 4)
    found = choose(x, 40, rng())
    again = choose(np.asfortranarray(x), 40, rng())
    assert again.positions.tolist() == found.positions.tolist()
    assert again.weights == pytest.approx(found.weights, rel=1e-5)


@ALL
def test_a_file_gives_what_an_array_gives(choose: Choice, tmp_path: Path) -> None:
    x = normal(BLOCK_ROWS + 100 if choose is k_centers else 1_000, 4)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    found, again = choose(x, 300, rng()), choose(mapped, 300, rng())
    assert again.positions.tolist() == found.positions.tolist()
    assert again.weights.tolist() == found.weights.tolist()


@ALL
def test_what_is_not_finite_is_refused_by_position(choose: Choice) -> None:
    x = normal(40, 3)
    x[17, 2] = np.nan
    with pytest.raises(InvalidArgumentError, match="candidate 17 "):
        choose(x, 4, rng())


@ALL
def test_features_of_zeros_and_equal_features_are_not_a_failure(choose: Choice) -> None:
    for x in (np.zeros((20, 3), np.float32), np.ones((20, 3), np.float32)):
        found = choose(x, 7, rng())
        assert len(found.positions) == (0 if choose is gradmatch and not x.any() else 7)
        assert np.isfinite(found.weights).all()


def test_craig_weighs_by_how_many_each_represents() -> None:
    x = np.concatenate([normal(70, 3) * 0.1, normal(30, 3) * 0.1 + 50])
    found = craig(x, 2, rng())
    assert found.weights.tolist() == [70, 30]
    assert found.value == pytest.approx(distances(x, found.positions).sum(), rel=1e-3)  # float32, of clusters far apart


@pytest.mark.parametrize("count", [500, BLOCK_ROWS + 100, pytest.param(40_000, marks=pytest.mark.slow)])
def test_the_weights_of_craig_are_all_candidates_together(count: int) -> None:
    x = normal(count, 4)
    found = craig(x, 50, rng())
    assert found.weights.sum(dtype=np.float64) == count
    assert found.weights.min() >= 1
    assert distances(x, found.positions).sum() <= found.value * (1 + 1e-5)


@pytest.mark.parametrize(("count", "size"), [(200, 20), (2_000, 700)])
def test_the_weighted_mean_of_gradmatch_is_near_the_mean(count: int, size: int) -> None:
    x = normal(count, 10) + 0.2
    found = gradmatch(x, size, rng(), ridge=0.01)
    mean = found.weights.astype(np.float64) @ x[found.positions] / len(found.positions)
    assert len(found.positions) == size
    assert np.linalg.norm(mean - x.mean(0)) == pytest.approx(found.value, abs=1e-6)
    chosen_alone = np.linalg.norm(x[rng().choice(count, size, replace=False)].mean(0) - x.mean(0))
    assert found.value < chosen_alone / 5


def test_gradmatch_continues_with_the_rest_where_few_match_the_mean() -> None:
    x = normal(300, 4)
    found = gradmatch(x, 60, rng(), ridge=0.0)
    assert len(found.positions) == 60
    assert found.value < 1e-5


def test_gradmatch_reports_what_it_cannot_choose() -> None:
    x = np.array([[2.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert gradmatch(x, 4, rng()).positions.tolist() == [0, 2]
    assert gradmatch(np.zeros((4, 2)), 3, rng()).positions.tolist() == []


def test_another_set_function_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'Saturation'; there are FacilityLocation, GraphCut, LogDeterminant"):
        submodular(normal(3, 2), 1, rng(), "Saturation")  # type: ignore[arg-type]


@given(st.integers(0, 2_000), st.integers(1, 20), st.integers(0, 100))
def test_each_candidate_is_dealt_to_one_block(count: int, num_blocks: int, seed: int) -> None:
    blocks = list(deal(count, num_blocks, rng(seed)))
    assert len(blocks) == num_blocks
    assert np.sort(np.concatenate(blocks)).tolist() == list(range(count))
    assert all((np.diff(block) > 0).all() for block in blocks)
    sizes = [len(block) for block in blocks]
    assert max(sizes) - min(sizes) <= 2 * STRIP_ROWS


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.data())
def test_quotas_are_in_proportion_and_use_the_budget(counts: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(0, sum(counts)))
    found = quotas(np.array(counts), size)
    assert found.sum() == size
    exact = np.array(counts) * size / max(1, sum(counts))
    assert (found >= np.floor(exact)).all()
    assert (found <= np.ceil(exact)).all()


def test_blocks_see_no_more_than_they_may_and_what_they_choose_is_chosen_from_again() -> None:
    x = normal(10_000, 3)
    seen: list[tuple[int, int]] = []

    def choose(rows: FloatArray, size: int, weights: npt.NDArray[np.float32], _: np.random.Generator) -> Coreset:
        seen.append((len(rows), size))
        chosen = np.arange(size)
        return Coreset.of(chosen, np.bincount(np.arange(len(rows)) % size, weights).astype(np.float64), 1.0)

    found = choose_in_blocks(x, 500, choose, rng(), most_rows=1_000)
    assert len(found.positions) == 500
    assert max(rows for rows, _ in seen) <= 1_000 + STRIP_ROWS
    assert [len(values) for values in found.values] == [10, 1]
    assert found.weights.sum() == 10_000
    seen.clear()
    assert len(choose_in_blocks(x, 6_000, choose, rng(), most_rows=1_000).positions) == 6_000
    assert len(seen) == 10


def test_choices_in_blocks_are_nearly_as_good_as_of_all_at_once() -> None:
    x = normal(3_000, 4)
    at_once = k_center(x, 100).value
    in_blocks = choose_in_blocks(x, 100, lambda rows, size, *_: k_center(rows, size), rng(), most_rows=500)
    radius = distances(x, in_blocks.positions).max()
    assert radius <= sum(map(max, in_blocks.values)) + 1e-6
    assert radius <= 1.5 * at_once


MEMORY = """
import sys
import numpy as np
from modyn.trainer_server.downsampling.coresets import choices

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

features = np.load(sys.argv[1], mmap_mode="r")[: int(sys.argv[2])]
peak = []
def traced(rows, size, *arguments, inner=choices.maximize):
    found = inner(rows, size, *arguments)
    peak.append(anonymous())
    return found
choices.maximize = traced
for name in ("craig", "gradmatch", "k_centers"):
    found = getattr(choices, name)(features, len(features) // 100, np.random.default_rng(0))
    assert len(found.positions) == len(features) // 100
    peak.append(anonymous())
print(max(peak))
"""


@pytest.mark.exhaustive
def test_memory_of_many_candidates_is_bounded(tmp_path: Path) -> None:
    """Each further candidate takes at most 70 bytes. `python -m benchmark.selection many` measures 10 million candidates."""
    np.save(tmp_path / "x.npy", normal(300_000, 64))
    peaks = []
    for count in (100_000, 300_000):
        command = [sys.executable, "-c", MEMORY, str(tmp_path / "x.npy"), str(count)]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] - peaks[0] < 200_000 * 70 / 1024  # KiB; 70 bytes a candidate are 0.7 GB of 10 million
