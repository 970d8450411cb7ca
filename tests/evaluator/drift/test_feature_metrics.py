"""Distances of one feature at a time, against SciPy and the formulas written out."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import jensenshannon

from modyn.evaluator.drift import DRIFT_METRICS, DriftMetric, compare, missing_modules
from modyn.evaluator.drift.base import TooFewSamplesError
from modyn.evaluator.drift.chi_squared import LEAST_EXPECTED, pooled
from modyn.evaluator.drift.features import combined, shares
from modyn.evaluator.drift.wasserstein import wasserstein

Vector = npt.NDArray[np.float64]

VALUES = st.lists(st.integers(-5, 5), min_size=2, max_size=40)


def metric(id_: str, **options: object) -> DriftMetric:
    policy = DRIFT_METRICS.get(id_)
    return policy(policy.Config.model_validate(options))


def columns(seed: int, n: int, *shifts: float) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([rng.normal(shift, 1, n) for shift in shifts], 1).astype(np.float32))


X, Y = columns(0, 300, 0, 0, 0), columns(1, 200, 0, 0.2, 1)


@pytest.mark.parametrize(
    ("id_", "options", "one"),
    [
        ("KSDriftMetric", {}, stats.ks_2samp),
        ("KSDriftMetric", {"alternative_hypothesis": "less"}, lambda x, y: stats.ks_2samp(x, y, alternative="less")),
        ("CVMDriftMetric", {}, stats.cramervonmises_2samp),
    ],
)
def test_tests_are_those_of_scipy(id_: str, options: dict[str, object], one: Any) -> None:
    found = [one(x, y) for x, y in zip(X.T.double().numpy(), Y.T.double().numpy(), strict=True)]
    drift = compare(metric(id_, **options), X, Y)
    assert drift.distance == pytest.approx(np.mean([test.statistic for test in found]), rel=1e-6)
    assert drift.p_value == pytest.approx(min(1, 3 * min(test.pvalue for test in found)), rel=1e-6)
    largest = compare(metric(id_, reduction="max", **options), X, Y)
    assert largest.distance == pytest.approx(max(test.statistic for test in found), rel=1e-6)


def test_chi_squared_compares_categories() -> None:
    labels, others = torch.tensor([0, 0, 1, 2, 2, 2]).repeat(2), torch.tensor([0, 1, 1, 1, 3, 2]).repeat(2)
    table = [[4, 2, 6, 0], [2, 6, 2, 2]]
    expected = stats.chi2_contingency(table, correction=False)
    drift = compare(metric("ChiSquaredDriftMetric"), labels, others)
    assert drift.distance == pytest.approx(np.sqrt(expected.statistic / 24))
    assert drift.p_value == pytest.approx(expected.pvalue)
    assert compare(metric("ChiSquaredDriftMetric"), torch.ones(5), torch.ones(7)).distance == 0


@given(counts=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=40), order=st.randoms())
def test_rare_categories_share_a_cell_for_any_numbers(counts: list[tuple[int, int]], order: Random) -> None:
    counts = [pair for pair in counts if sum(pair)]
    assume(counts)
    table = np.array(counts, np.int64).reshape(-1, 2).T
    assume(table.sum(1).min() > 0)
    cells = pooled(table)
    assert cells.sum(1).tolist() == table.sum(1).tolist()
    share = table.sum(1).min() / table.sum()
    assert (cells.sum(0) * share >= LEAST_EXPECTED - 1e-9).all() or cells.shape[1] == 1
    frequent = sorted(pair for pair in counts if sum(pair) * share >= LEAST_EXPECTED)
    assert len(frequent) <= cells.shape[1] + 1, "of frequent ones, at most one is with the rare ones"
    order.shuffle(counts)
    again = pooled(np.array(counts, np.int64).reshape(-1, 2).T)
    assert sorted(again.sum(0).tolist()) == sorted(cells.sum(0).tolist())


def test_a_hundred_classes_that_change_places_are_seen_although_their_numbers_stay() -> None:
    rng = np.random.default_rng(0)
    even = torch.from_numpy(2 * rng.integers(0, 50, 500))
    odd = torch.from_numpy(2 * rng.integers(0, 50, 250) + 1)
    seen, blind = (compare(metric(id_), even, odd).p_value for id_ in ("ChiSquaredDriftMetric", "KSDriftMetric"))
    assert (seen or 0) < 1e-50
    assert (blind or 0) > 0.05


def test_where_every_category_is_rare_nothing_is_measured() -> None:
    with pytest.raises(TooFewSamplesError, match="no category has enough of the 100 reference and 100 current samples"):
        compare(metric("ChiSquaredDriftMetric"), torch.arange(100), torch.arange(100, 200))


@given(x=VALUES, y=VALUES, num_bins=st.integers(2, 12))
def test_shares_count_every_sample_once_and_in_the_same_bins(x: list[int], y: list[int], num_bins: int) -> None:
    reference, current = np.array(x, float), np.array(y, float)
    p, q = shares(reference, current, num_bins)
    assert p.shape == q.shape
    assert p.sum() == pytest.approx(1)
    assert q.sum() == pytest.approx(1)
    same = shares(reference, reference, num_bins)
    assert same[0].tolist() == same[1].tolist()


def test_few_values_are_categories_and_many_are_quantiles() -> None:
    p, q = shares(np.array([0.0, 0, 1, 1]), np.array([1.0, 1, 7, 7]), 10)
    assert (p.tolist(), q.tolist()) == ([0.5, 0.5, 0], [0, 0.5, 0.5])
    p, q = shares(np.arange(100.0), np.full(20, 1e9), 4)
    assert (p.tolist(), q.tolist()) == ([0.25] * 4, [0, 0, 0, 1])


def test_few_samples_of_continuous_values_are_not_taken_for_categories() -> None:
    few, many = columns(3, 10, *[0] * 20), columns(4, 500, *[0] * 20)
    assert compare(metric("HellingerDriftMetric"), few, many).distance < 0.3
    p, q = shares(np.array([0.0] * 9 + [0.3]), np.array([0.0] * 9 + [0.7]), 10)
    assert p.tolist() == q.tolist() == [0.9, 0.1]


def by_shares(distance: Any) -> float:
    return float(np.mean([distance(*shares(x, y, 10)) for x, y in zip(X.T.numpy(), Y.T.numpy(), strict=True)]))


def test_histogram_distances() -> None:
    def hellinger(p: Vector, q: Vector) -> float:
        return float(np.linalg.norm(np.sqrt(p) - np.sqrt(q)) / np.sqrt(2))

    def stability(p: Vector, q: Vector) -> float:
        p, q = (p * 300 + 0.5) / 305, (q * 200 + 0.5) / 205
        return float(stats.entropy(p, q) + stats.entropy(q, p))

    assert compare(metric("HellingerDriftMetric"), X, Y).distance == pytest.approx(by_shares(hellinger), abs=1e-9)
    expected = by_shares(lambda p, q: jensenshannon(p, q, base=2))
    assert compare(metric("JensenShannonDriftMetric"), X, Y).distance == pytest.approx(expected, abs=1e-9)
    assert compare(metric("PSIDriftMetric"), X, Y).distance == pytest.approx(by_shares(stability), abs=1e-9)


@given(x=VALUES, y=VALUES)
def test_wasserstein_is_that_of_scipy(x: list[int], y: list[int]) -> None:
    found = wasserstein(np.array(x, float)[:, None], np.array(y, float)[:, None])
    assert found[0] == pytest.approx(stats.wasserstein_distance(x, y), abs=1e-9)


def test_wasserstein_is_scaled_by_the_reference() -> None:
    scaled = (X * torch.tensor([1, 10, 100]), Y * torch.tensor([1, 10, 100]))
    near = compare(metric("WassersteinDriftMetric"), X, Y).distance
    assert compare(metric("WassersteinDriftMetric"), *scaled).distance == pytest.approx(near, rel=1e-4)
    assert compare(metric("WassersteinDriftMetric", normalize=False), *scaled).distance > 10 * near


def test_sliced_wasserstein_of_one_feature_is_wasserstein() -> None:
    x, y = X[:, :1], Y[:, 2:]
    expected = stats.wasserstein_distance(x[:, 0].double(), y[:, 0].double())
    assert compare(metric("SlicedWassersteinDriftMetric"), x, y).distance == pytest.approx(expected, rel=1e-5)


def test_means() -> None:
    x, y = torch.tensor([[1.0, 0], [3, 0]]), torch.tensor([[0.0, 1]])
    assert compare(metric("MeanDistanceDriftMetric"), x, y).distance == pytest.approx(np.sqrt(5))
    assert compare(metric("MeanDistanceDriftMetric", distance="cosine"), x, y).distance == pytest.approx(1)


def test_cosine_of_means() -> None:
    zero, one = torch.zeros(3, 2), torch.ones(3, 2)
    cosine = metric("MeanDistanceDriftMetric", distance="cosine")
    assert [compare(cosine, *sets).distance for sets in ((zero, zero), (zero, one))] == [0, 1]
    assert compare(cosine, 1e-9 * one, 1e-9 * one).distance == pytest.approx(0, abs=1e-12)


def test_a_classifier_tells_what_differs() -> None:
    same = compare(metric("DomainClassifierDriftMetric"), X, columns(2, 200, 0, 0, 0))
    other = compare(metric("DomainClassifierDriftMetric"), X, Y)
    assert same.p_value is not None
    assert same.p_value > 0.05
    assert same.distance == pytest.approx(0.5, abs=0.1)
    assert other.p_value == pytest.approx(0, abs=1e-6)
    assert other.distance > 0.7


def test_corrections() -> None:
    p_values = np.array([0.04, 0.01, 0.03, 0.2])
    assert combined(p_values, "bonferroni") == pytest.approx(0.04)
    assert combined(p_values, "fdr") == pytest.approx(min(stats.false_discovery_control(p_values)))
    assert combined(np.array([0.9, 0.8]), "bonferroni") == 1


@pytest.mark.parametrize("id_", [id_ for id_ in DRIFT_METRICS.builtin if not missing_modules(DRIFT_METRICS.get(id_))])
def test_every_metric_grows_with_the_shift_and_repeats(id_: str) -> None:
    # Rounded, so that values occur more than once, as categories do; the cosine needs a reference that is not around 0.
    reference = columns(5, 200, 1, 1).round()
    shifted = [columns(6, 150, 1 + shift, 1).round() for shift in (0, 1, 3)]
    distances = [compare(metric(id_), reference, current).distance for current in shifted]
    assert all(smaller < larger for smaller, larger in pairwise(distances))
    assert compare(metric(id_), reference, shifted[-1]).distance == distances[-1]


@pytest.mark.parametrize("id_", ["ChiSquaredDriftMetric", "HellingerDriftMetric", "JensenShannonDriftMetric", "PSIDriftMetric", "KSDriftMetric",
                                 "CVMDriftMetric"])  # fmt: skip
def test_large_labels_are_told_apart_as_small_ones_are(id_: str) -> None:
    rng = np.random.default_rng(0)
    small = [torch.from_numpy(rng.integers(0, 5, n) if n > 50 else rng.integers(0, 4, n)) for n in (60, 50)]
    for dtype in (torch.int64, torch.float64):
        large = [torch.where(labels > 0, labels + 10**9, 0).to(dtype) for labels in small]
        assert compare(metric(id_), *large) == compare(metric(id_), *small) == compare(metric(id_), *(s.float() for s in small))
