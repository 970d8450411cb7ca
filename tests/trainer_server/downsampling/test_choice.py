"""How candidates are chosen by scores: probabilities and draws against sums over all draws, quotas by brute force, and edges."""

from __future__ import annotations

import tracemalloc
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from modyn.trainer_server.downsampling.policies.importance import ImportanceConfig
from modyn.trainer_server.downsampling.policies.loss import LossDownsampling
from modyn.trainer_server.downsampling.policies.policy import (
    BalancedConfig,
    Candidates,
    Choice,
    DownsamplingConfig,
    DownsamplingPolicy,
    Draw,
)
from modyn.trainer_server.downsampling.policies.sampling import (
    NO_CLASS,
    class_quotas,
    highest,
    inclusion_probabilities,
    sample_by_scores,
    systematic_sample,
)

SCORES = st.lists(st.sampled_from([0.0, 1e-30, 0.1, 0.5, 1.0, 3.0, 1e30, np.inf]), min_size=2, max_size=30)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def candidates(scores: Any, labels: Any = None) -> Candidates:
    found = np.asarray(scores, np.float32).reshape(len(scores), -1)
    classes = np.full(len(found), NO_CLASS) if labels is None else np.asarray(labels, np.int64)
    return Candidates(found, classes, np.arange(len(found)) + 100)


@settings(max_examples=6 * settings().max_examples)
@given(scores=SCORES, share=st.floats(0, 1))
def test_probabilities_sum_to_the_size_and_keep_the_ratio_of_scores(scores: list[float], share: float) -> None:
    size = max(1, int(share * (len(scores) - 1)))
    values = np.asarray(scores, np.float32)
    found = inclusion_probabilities(values, size)
    assert found.sum() == pytest.approx(size)
    assert (found >= 0).all()
    assert (found <= 1).all()
    finite = values.astype(np.float64)
    finite[np.isinf(finite)] = max([score for score in finite if np.isfinite(score)], default=1.0) or 1.0
    for i, j in product(range(len(scores)), repeat=2):
        if finite[i] > finite[j]:
            assert found[i] >= found[j]
        if 0 < found[i] < 1 and 0 < found[j] < 1:
            assert found[i] * finite[j] == pytest.approx(found[j] * finite[i], rel=1e-9)
    if (finite > 0).sum() > size:
        assert (found[finite == 0] == 0).all()


def test_too_few_positive_scores_are_certain_and_the_rest_is_drawn_evenly() -> None:
    found = inclusion_probabilities(np.array([0, 5, 0, 0, 1e-20], np.float32), 4)
    assert found.tolist() == [pytest.approx(2 / 3), 1, pytest.approx(2 / 3), pytest.approx(2 / 3), 1]
    assert inclusion_probabilities(np.zeros(4, np.float32), 3).tolist() == [0.75] * 4
    assert inclusion_probabilities(np.full(4, np.inf, np.float32), 1).tolist() == [0.25] * 4


@settings(max_examples=4 * settings().max_examples)
@given(scores=SCORES, share=st.floats(0, 1), seed=st.integers(0, 1000))
def test_a_draw_has_its_size_and_no_candidate_twice(scores: list[float], share: float, seed: int) -> None:
    size = max(1, int(share * (len(scores) - 1)))
    values = np.asarray(scores, np.float32)
    positions, weights = sample_by_scores(values, size, generator(seed))
    assert len(positions) == len(weights) == size
    assert (np.diff(positions) > 0).all()
    assert np.isfinite(weights).all()
    assert (inclusion_probabilities(values, size)[positions] > 0).all()


def test_each_candidate_is_drawn_with_its_probability() -> None:
    scores, size, draws = np.array([0, 0.1, 0.5, 1, 1, 2, 3, 50], np.float32), 3, 8000
    expected = inclusion_probabilities(scores, size)
    source, counts = generator(), np.zeros(len(scores))
    for _ in range(draws):
        counts[systematic_sample(expected, size, source)] += 1
    error = np.sqrt(np.maximum(expected * (1 - expected), 1e-12) / draws)
    assert (np.abs(counts / draws - expected) <= 4.5 * error + 1e-12).all()


@settings(max_examples=100)
@given(scores=SCORES, share=st.floats(0, 1), uniform_share=st.floats(0.01, 1), data=st.data())
def test_a_uniform_share_bounds_the_weights(scores: list[float], share: float, uniform_share: float, data: st.DataObject) -> None:
    """Against the definition: proportional to the mixture, but for those that are certain."""
    usable = np.array(data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores))))
    usable[0] = True
    values, size = np.where(usable, scores, 0).astype(np.float32), max(1, int(share * (usable.sum() - 1)))
    found = inclusion_probabilities(values, size, uniform_share, usable)
    assert found.sum() == pytest.approx(size)
    assert (found <= 1).all()
    assert (found[~usable] == 0).all() or usable.sum() <= size
    least = min(1.0, uniform_share * size / usable.sum())
    assert (found[usable] >= least * (1 - 1e-9)).all()
    finite = values.astype(np.float64)
    finite[np.isinf(finite)] = max([score for score in finite if np.isfinite(score)], default=1.0) or 1.0
    parts = finite / finite.max() if finite.max() > 0 else finite
    mixed = (1 - uniform_share) * parts / (parts.sum() or 1) + uniform_share / usable.sum()
    for i, j in product(np.flatnonzero(usable & (found < 1)), repeat=2):
        assert found[i] * mixed[j] == pytest.approx(found[j] * mixed[i], rel=1e-9)


@pytest.mark.parametrize("uniform_share", [0.0, 0.1, 1.0])
def test_the_weighted_mean_of_a_draw_estimates_the_mean_without_bias(uniform_share: float) -> None:
    scores, values = np.array([0.1, 0.2, 0.5, 1, 1, 2, 3, 9], np.float32), np.array([3.0, -1, 4, 1, -5, 9, 2, 6])
    if uniform_share:
        scores[:2] = 0  # what the scores take for nothing counts all the same
    source = generator(1)
    estimates = []
    for _ in range(3000):
        positions, weights = sample_by_scores(scores, 3, source, uniform_share)
        assert not uniform_share or weights.max() <= 1 / uniform_share + 1e-6
        estimates.append((weights * values[positions]).mean())
    assert np.mean(estimates) == pytest.approx(values.mean(), abs=4.5 * np.std(estimates) / np.sqrt(len(estimates)))


@settings(max_examples=4 * settings().max_examples)
@given(scores=st.lists(st.sampled_from([0, 1, 2, 3]), min_size=2, max_size=20), data=st.data())
def test_the_highest_are_those_that_sorting_gives(scores: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(scores) - 1))
    found = highest(np.asarray(scores, np.float32), size, generator(data.draw(st.integers(0, 99))))
    assert (np.diff(found) > 0).all()
    assert sorted((scores[i] for i in found), reverse=True) == sorted(scores, reverse=True)[:size]


def test_among_equal_scores_all_have_a_chance() -> None:
    source = generator()
    seen = {i for _ in range(200) for i in highest(np.array([7, 1, 1, 1, 1], np.float32), 2, source).tolist()}
    assert seen == {0, 1, 2, 3, 4}


@settings(max_examples=4 * settings().max_examples)
@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=6), data=st.data())
def test_quotas_are_the_nearest_to_the_shares(counts: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, sum(counts)))
    found = class_quotas(np.array(counts), size, generator(data.draw(st.integers(0, 99))))
    assert found.sum() == size
    assert all(0 <= quota <= count for quota, count in zip(found.tolist(), counts, strict=True))
    if size >= len(counts):
        assert (found >= 1).all()
    # Brute force: no other division is nearer to the exact shares, of which none is less than 1.
    least, low, high = int(size >= len(counts)), 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(max(least, count * middle) for count in counts) < size else (low, middle)
    shares = np.array([max(least, count * high) for count in counts])
    others = product(*(range(least, count + 1) for count in counts))
    best = min(np.abs(np.array(other) - shares).sum() for other in others if sum(other) == size)
    assert np.abs(found - shares).sum() == pytest.approx(best, abs=1e-6)


class Highest(DownsamplingPolicy):
    """Chooses the highest scores."""

    Config = BalancedConfig

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        return Choice(highest(candidates.scores[:, 0], size, draw.generator()))


class DrawnConfig(BalancedConfig, ImportanceConfig):
    """Options of `Drawn`."""


class Drawn(LossDownsampling):
    Config = DrawnConfig


def balanced(policy: type[DownsamplingPolicy] = Highest) -> DownsamplingPolicy:
    return policy(DrawnConfig(ratio=50, balance=True))


def test_balance_chooses_in_each_class_by_itself() -> None:
    labels, scores = [0] * 8 + [1] * 3 + [2], [*range(8), 100, 101, 102, -1]
    found = balanced().select(candidates(scores, labels), 6, Draw(0, 0, 0))
    assert found.positions.tolist() in ([4, 5, 6, 7, 10, 11], [5, 6, 7, 9, 10, 11])
    assert found.weights is None
    repeated = balanced().select(candidates(scores, labels), 6, Draw(0, 0, 0))
    assert repeated.positions.tolist() == found.positions.tolist()


def test_balance_prefers_samples_with_a_class() -> None:
    found = balanced().select(candidates([9, 9, 1, 2, 3], [NO_CLASS, NO_CLASS, 0, 0, 1]), 2, Draw(0, 0, 0))
    assert found.positions.tolist() == [3, 4]
    assert len(balanced().select(candidates([9, 9, 1, 2, 3], [NO_CLASS, NO_CLASS, 0, 0, 1]), 4, Draw(0, 0, 0))) == 4


@pytest.mark.slow
def test_weights_of_a_balanced_choice_estimate_the_mean_over_all() -> None:
    source, policy = generator(5), balanced(Drawn)
    labels = np.repeat([0, 1, 2, NO_CLASS], [20, 5, 2, 3])
    scores, values = source.random(30).astype(np.float32), source.standard_normal(30)
    values[labels == NO_CLASS] = 0  # ignored by the loss
    drawn = [policy.select(candidates(scores, labels), 9, Draw(3, 0, number)) for number in range(20_000)]
    estimates = [(choice.weights * values[choice.positions]).mean() for choice in drawn if choice.weights is not None]
    assert len(estimates) == 20_000
    assert np.mean(estimates) == pytest.approx(values.mean(), abs=4.5 * np.std(estimates) / np.sqrt(len(estimates)))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("num_classes", "most_bytes"), [(0, 41), (1, 66), (2, 66), (10, 66)])
def test_a_choice_takes_the_memory_that_the_page_of_selections_says(share: float, num_classes: int, most_bytes: int) -> None:
    policy = balanced() if num_classes else LossDownsampling(ImportanceConfig(ratio=50))
    num, source = 200_000, generator(6)
    among = candidates(source.random(num), source.integers(0, max(1, num_classes), num))
    tracemalloc.start()
    try:
        policy.select(among, int(num * share), Draw(0, 0, 0))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= most_bytes * num


def test_all_are_chosen_where_there_are_no_more() -> None:
    found = LossDownsampling(ImportanceConfig(ratio=50)).select(candidates([1, 2, 3]), 5, Draw(0, 0, 0))
    assert found.positions.tolist() == [0, 1, 2]
    assert found.weights is not None
    assert found.weights.tolist() == [1, 1, 1]


@given(ratio=st.integers(1, 1000), ratio_max=st.integers(1, 1000), size=st.integers(1, 500), num_samples=st.integers(0, 5000))
def test_sizes_are_shares(ratio: int, ratio_max: int, size: int, num_samples: int) -> None:
    assume(ratio <= ratio_max)
    config = DownsamplingConfig(ratio=ratio, ratio_max=ratio_max)
    assert config.num_candidates(size) >= size
    assert abs(config.num_candidates(size) * ratio - size * ratio_max) <= ratio / 2
    chosen = config.num_chosen(num_samples)
    assert min(1, num_samples) <= chosen <= num_samples
    assert chosen == 1 or abs(chosen * ratio_max - num_samples * ratio) <= ratio_max / 2
