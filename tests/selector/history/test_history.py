"""Samples that proactive training draws from the history of a run, for any stream, steps and deletions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn._core import KeySet
from modyn.config.policy import load_policy
from modyn.errors import ConfigError
from modyn.records import Int64Array, SampleBatch
from modyn.selector.history import HISTORY, DueSteps, check_history, keys_of, select_online
from modyn.selector.history.reservoir import ranks_of
from modyn.selector.window import SelectionContext, SelectionWindow, StateFiles, window_of_trigger
from modyn.testing.memory_reader import MemoryReader

STRATEGIES: dict[str, dict[str, Any]] = {
    "Reservoir": {"num_samples": 12},
    "TimeWeighted": {"half_life": 10},
    "Uniform": {},
    "Window": {"num_samples": 9},
}


def context(seed: int = 3, trigger_id: int = 1) -> SelectionContext:
    return SelectionContext(seed, trigger_id, StateFiles(Path("unused"), trigger_id), lambda: np.zeros(0, np.int64))


def stream(num_samples: int, deleted: Int64Array | None = None) -> SelectionWindow:
    """Keys from 1000 downwards, one second apart."""
    keys = 1000 - np.arange(num_samples)
    reader = MemoryReader(SampleBatch(keys, np.arange(num_samples), np.zeros(num_samples, np.int64)))
    return window_of_trigger(reader, 0, num_samples, 100, KeySet(np.sort(deleted)) if deleted is not None else KeySet(keys[:0]))


def draw(strategy: str, window: SelectionWindow, steps: DueSteps, size: int, seed: int = 3) -> Int64Array:
    kind, options = load_policy(HISTORY, {"strategy": strategy, **STRATEGIES[strategy]}, "strategy", "online.history")
    return kind(options).draw(window, steps, size, context(seed))


def test_every_strategy_is_tested() -> None:
    assert set(STRATEGIES) == set(HISTORY.builtin)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(first=st.integers(1, 60), new=st.integers(1, 40), step=st.integers(1, 15), size=st.integers(1, 20), seed=st.integers(0, 5))
def test_each_step_draws_from_before_its_new_samples(
    strategy: str, first: int, new: int, step: int, size: int, seed: int
) -> None:
    window, steps = stream(first + new), DueSteps.over(first, first + new, step)
    drawn = draw(strategy, window, steps, size, seed)
    assert drawn.shape == (len(steps), size)
    assert drawn.dtype == np.int64
    assert (drawn >= 0).all()
    assert (drawn < steps.begins[:-1, None]).all()
    np.testing.assert_array_equal(drawn, draw(strategy, window, steps, size, seed))
    if strategy == "Window":
        assert (drawn >= steps.begins[:-1, None] - 9).all()
    if strategy != "TimeWeighted":
        available = np.minimum(steps.begins[:-1], {"Uniform": 100, "Window": 9, "Reservoir": 12}[strategy])
        distinct = np.array([len(np.unique(row)) for row in drawn])
        assert (distinct[available >= size] == size).all()


@given(
    first=st.integers(0, 50),
    new=st.integers(0, 40),
    step=st.integers(1, 15),
    size=st.integers(0, 20),
    strategy=st.sampled_from(sorted(STRATEGIES)),
    gone=st.sets(st.integers(0, 89), max_size=30),
    update=st.none() | st.integers(1, 15),
)
def test_a_trigger_set_is_the_sequence_of_its_steps(
    first: int, new: int, step: int, size: int, strategy: str, gone: set[int], update: int | None
) -> None:
    """Deleted samples are in none, and every other new one is in one step, or in one update, which the step after it may draw."""
    update = min(update, step) if update and size else None
    num_samples = first + new
    deleted = 1000 - np.array(sorted(gone & set(range(num_samples))), np.int64)
    window, live = stream(num_samples, deleted), [n for n in range(num_samples) if n not in gone]
    num_new = sum(n >= first for n in live)
    section = {
        "trigger": {},
        "step_samples": step,
        "history_samples": size,
        "update_samples": update,
        "history": {"strategy": strategy, **STRATEGIES[strategy]},
    }
    selection = select_online(section, window, len(live) - num_new, context())
    keys = np.concatenate([chunk.keys for chunk in selection.chunks]).tolist()
    assert len(keys) == selection.num_keys
    order = {1000 - n: at for at, n in enumerate(live)}
    done = len(live) - num_new
    while keys:
        count = min(step, len(live) - done)
        assert [order[key] for key in keys[:count]] == list(range(done, done + count))
        assert len(keys) >= count + size
        # The very first sample of a stream has no history but itself.
        end = done if update is None else done + count
        assert all(order[key] < max(end, 1) for key in keys[count : count + size])
        done, keys = done + count, keys[count + size :]
    assert done == len(live)


@pytest.mark.slow
def test_uniform_draws_all_alike() -> None:
    """Each of 50 samples before one step, over many triggers: a chi-squared test."""
    window, steps, counts = stream(51), DueSteps.over(50, 51, 1), np.zeros(50)
    for seed in range(400):
        counts += np.bincount(draw("Uniform", window, steps, 10, seed)[0], minlength=50)
    expected = 400 * 10 / 50
    assert ((counts - expected) ** 2 / expected).sum() < 85  # 99.9 % of chi-squared with 49 degrees of freedom


@pytest.mark.slow
def test_time_weighted_halves_with_each_half_life() -> None:
    window, steps = stream(101), DueSteps.over(100, 101, 1)
    drawn = np.concatenate([draw("TimeWeighted", window, steps, 500, seed)[0] for seed in range(40)])
    share = np.bincount(drawn // 10, minlength=10) / len(drawn)
    weights = 2.0 ** -np.arange(9, -1, -1)
    np.testing.assert_allclose(share, weights / weights.sum(), atol=0.015)


def test_time_weighted_draws_alike_for_each_step_of_a_trigger_however_far_they_are_apart() -> None:
    """A gap of many half-lives is between the history of the first step and that of the last."""
    times = np.append(np.arange(100), 10**6 + np.arange(20))
    reader = MemoryReader(SampleBatch(np.arange(120), times, np.zeros(120, np.int64)))
    window = window_of_trigger(reader, 0, 120, 100)
    together = np.concatenate([draw("TimeWeighted", window, DueSteps.over(100, 120, 10), 300, seed)[:1] for seed in range(20)])
    alone = np.concatenate([draw("TimeWeighted", window, DueSteps.over(100, 110, 10), 300, seed) for seed in range(20)])
    assert abs(together.mean() - alone.mean()) < 1
    assert together.mean() > 80


def test_time_weighted_sees_late_samples_and_odd_times() -> None:
    """Timestamps at both ends of int64, out of order."""
    times = np.array([2**63 - 1, -(2**63), 5, 2**63 - 2, 7])
    reader = MemoryReader(SampleBatch(np.arange(5), times, np.zeros(5, np.int64)))
    window = window_of_trigger(reader, 0, 5, 100)
    drawn = draw("TimeWeighted", window, DueSteps.over(4, 5, 1), 200)
    assert set(np.unique(drawn).tolist()) == {0, 3}


@pytest.mark.slow
def test_a_reservoir_is_uniform_and_changes_slowly() -> None:
    counts, kept = np.zeros(60), 0
    for seed in range(300):
        window = stream(61)
        before, after = draw("Reservoir", window, DueSteps.over(59, 61, 1), 12, seed)
        counts += np.bincount(after, minlength=60)
        kept += len(np.intersect1d(before, after))
    expected = 300 * 12 / 60
    assert ((counts - expected) ** 2 / expected).sum() < 98  # 99.9 % with 59 degrees of freedom
    assert kept / 300 > 11.5


def test_ranks_differ_by_position_and_seed() -> None:
    ranks = ranks_of(np.arange(10_000), 1)
    assert len(np.unique(ranks)) == 10_000
    assert not np.isin(ranks, ranks_of(np.arange(10_000), 2)).any()
    assert abs(np.corrcoef(ranks[:-1].astype(float), ranks[1:].astype(float))[0, 1]) < 0.05


@given(numbers=st.lists(st.integers(0, 30_000), max_size=40))
def test_keys_are_read_in_the_order_that_is_asked_for(numbers: list[int]) -> None:
    window = stream(30_001)
    assert keys_of(window, np.array(numbers, np.int64)).tolist() == [1000 - n for n in numbers]


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ({}, "online.history.strategy: is required"),
        ({"strategy": "Unifrom"}, "did you mean 'Uniform'"),
        ({"strategy": "Window"}, "online.history.num_samples: is required"),
        ({"strategy": "TimeWeighted", "half_life": "soon"}, "online.history.half_life"),
    ],
)
def test_what_is_wrong_is_said(history: dict[str, Any], said: str) -> None:
    online = {"trigger": {}, "step_samples": 1, "history_samples": 1, "history": history}
    assert said in str(check_history({"online": online})[0])
    with pytest.raises(ConfigError):
        select_online(online, stream(5), 2, context())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("selection_strategy.warmup_triggers", 2),
        ("selection_strategy.downsampling_config.downsampling_list", [{"strategy": "Loss", "ratio": 50}]),
        ("training.num_samples_to_pass", [10, 20]),
    ],
)
def test_what_counts_triggers_is_refused(path: str, value: Any) -> None:
    section: Any = value
    for name in reversed(path.split(".")):
        section = {name: section}
    (problem,) = check_history({"online": {"trigger": {}, "step_samples": 1}, **section})
    assert problem.path == path
    assert "counts triggers" in problem.message


def test_selections_that_need_scores_are_refused() -> None:
    selection = {"name": "NewDataStrategy", "maximum_keys_in_memory": 5, "keep_scores": True}
    (problem,) = check_history({"online": {"trigger": {}, "step_samples": 1}, "selection_strategy": selection})
    assert "asks trainings for scores of samples (loss)" in problem.message
