"""Stored partial sums over pairs of samples: they equal the sums over all pairs, and do not depend on earlier questions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.config.policy import load_policy
from modyn.evaluator.drift import DRIFT_METRICS, Drift, DriftMetric, compare
from modyn.evaluator.drift.base import centred_rows, compare_kept
from modyn.evaluator.drift.kept_sums import HeldBlocks, KeptSums, PartedWindow, PartOfWindow, SumKeeper

SECTIONS: dict[str, dict[str, Any]] = {
    "median": {"id": "MMDDriftMetric"},
    "biased": {"id": "MMDDriftMetric", "biased": True},
    "bandwidth": {"id": "MMDDriftMetric", "bandwidth": 2.0},
    "energy": {"id": "EnergyDriftMetric"},
}


def metric(name: str, **options: object) -> DriftMetric:
    kind, config = load_policy(DRIFT_METRICS, {**SECTIONS[name], **options}, "id", "metric")
    made: DriftMetric = kind(config, 0)
    return made


def window(rows: torch.Tensor, start: int, stop: int, part: int = 7) -> PartedWindow:
    """Rows [start, stop), in parts that end at multiples of `part`."""
    edges = sorted({start, stop, *(edge for edge in range(0, stop, part) if edge > start)})
    places = list(pairwise(edges))
    parts = [PartOfWindow(b"%016d" % (first * 10_000 + last), last - first) for first, last in places]
    return PartedWindow(parts, lambda number: rows[slice(*places[number])], lambda: centred_rows(rows[start:stop]))


def kept(name: str, rows: torch.Tensor, windows: tuple[int, int, int, int], sums: SumKeeper) -> Drift:
    found = compare_kept(metric(name), window(rows, *windows[:2]), window(rows, *windows[2:]), sums)
    assert found is not None
    return found


WINDOWS = st.tuples(st.integers(0, 20), st.integers(23, 50), st.integers(10, 50), st.integers(53, 80))


@given(windows=st.lists(WINDOWS, min_size=1, max_size=4), seed=st.integers(0, 99), offset=st.sampled_from([0.0, 1e4]))
@settings(max_examples=settings().max_examples // 2)
@pytest.mark.parametrize("name", list(SECTIONS))
def test_the_distance_is_that_of_all_pairs_regardless_of_earlier_questions(
    name: str, windows: list[tuple[int, int, int, int]], seed: int, offset: float
) -> None:
    """This includes two windows with the same samples."""
    random = np.random.default_rng(seed)
    rows = torch.from_numpy((random.normal(size=(80, 5)) + offset).astype(np.float32))
    rows[60:] += 1
    together = SumKeeper(KeptSums())
    for asked in windows:
        found = kept(name, rows, asked, together)
        assert found == kept(name, rows, asked, SumKeeper(KeptSums(limit=3), HeldBlocks(limit=1)))
        expected = compare(metric(name), rows[slice(*asked[:2])], rows[slice(*asked[2:])])
        assert found.distance == pytest.approx(expected.distance, rel=1e-4, abs=2e-6 if name != "energy" else 2e-3)


@pytest.mark.parametrize("scale", [1e-14, 1.0, 1e9])
def test_samples_far_out_are_computed_as_precisely_as_they_need_it(scale: float) -> None:
    rows = torch.randn(60, 4, generator=torch.Generator().manual_seed(1)) * scale
    for far in (1.0, 1e3, 1e8):
        rows[5] = 2 * far * scale
        rows[40] = far * scale
        found = kept("median", rows, (0, 30, 30, 60), SumKeeper(KeptSums()))
        expected = compare(metric("median"), rows[:30], rows[30:])
        assert found.distance == pytest.approx(expected.distance, abs=1e-5)


def test_a_window_that_slides_takes_few_new_sums() -> None:
    rows, sums = torch.randn(400, 3), KeptSums()
    numbers = []
    for stop in range(200, 400, 2):
        before = len(sums)
        kept("median", rows, (0, 100, stop - 98, stop), SumKeeper(sums))
        numbers.append(len(sums) - before)
    # At most three parts are new: the first, the last, and the one that was last before. There are 15 in either window.
    assert max(numbers[1:]) <= 3 * 32
    assert numbers[0] > 300


def test_what_is_kept_is_bounded_and_what_is_asked_for_stays() -> None:
    sums, made = KeptSums(limit=10), list[int]()

    def make(number: int) -> float:
        made.append(number)
        return float(number)

    for number in range(1000):
        for asked in (-1, number):
            assert sums.get(b"%d" % asked, lambda asked=asked: make(asked)) == asked  # type: ignore[misc]
        assert len(sums) <= 20
    assert sorted(made) == list(range(-1, 1000))


def test_metrics_that_keep_no_sums_say_so() -> None:
    rows = torch.randn(40, 3)
    windows = window(rows, 0, 20), window(rows, 20, 40)
    for made in (metric("median", num_permutations=10), metric("median", configure_kernel_from_x_ref=False)):
        assert compare_kept(made, *windows, SumKeeper(KeptSums())) is None
    rows[:20] = 1.0  # the bandwidth is that of both windows then
    for name in ("median", "energy"):
        assert compare_kept(metric(name), *windows, SumKeeper(KeptSums())) is None
    kept("bandwidth", rows, (0, 20, 20, 40), SumKeeper(KeptSums()))
