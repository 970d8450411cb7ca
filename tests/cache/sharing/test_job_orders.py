"""Orders of shared jobs: they show nothing of keys and of neighbours. Jobs apart make each other's epochs similar, to a bounded degree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from modyn.cache.sharing.memory_state import MemoryState
from modyn.cache.sharing.rules import RULES
from modyn.cache.sharing.shared_job import SharedJob
from modyn.cache.sharing.state import SharePlace
from modyn.records import Int64Array
from tests.support.shared_jobs import Training, Values

NUM_SAMPLES, BATCH_SIZE, NUM_JOBS = 4000, 50, 3


def orders(folder: Path, rule: str, share: float, epochs: int, apart: float = 0.0) -> Int64Array:
    """Serve three jobs in turn. Return the samples of the last job in their order: int64 (epochs, NUM_SAMPLES).

    Args: share: of all samples, for which the cache has room. apart: epochs between the starts of two jobs.
    """
    keys, tier, trainings = np.arange(NUM_SAMPLES) * 3, Values(), list[Training]()
    for seed in range(NUM_JOBS):
        for _ in range(int(apart * NUM_SAMPLES / BATCH_SIZE)):
            for training in trainings:
                training.step()
        state = MemoryState(SharePlace(b"twelve bytes", int(share * NUM_SAMPLES)), folder)
        trainings.append(Training(SharedJob(state, keys, seed, True, rule=RULES[rule]), keys, tier, BATCH_SIZE, 1))
    for _ in range(epochs * NUM_SAMPLES // BATCH_SIZE):
        for training in trainings:
            training.step()
    return np.concatenate([batch.keys for batch in trainings[-1].batches]).reshape(epochs, -1) // 3


def assert_random(order: Int64Array) -> None:
    """Assert that correlations are near 0. For random orders, their standard deviation is 0.016."""
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.06
    assert abs(np.corrcoef(order, np.arange(NUM_SAMPLES))[0, 1]) < 0.06


@pytest.mark.parametrize(("rule", "most"), [("coordinated", 0.06), ("opportunistic", 0.25)])
def test_orders_of_jobs_in_step_show_nothing_of_keys_and_neighbours(rule: str, most: float, tmp_path: Path) -> None:
    """`most`: the largest correlation of places in two epochs: the first samples of an opportunistic epoch are cached ones, the last are not."""
    found = orders(tmp_path, rule, 0.2, 2)
    for order in found:
        assert_random(order)
    first, second = np.argsort(found)
    assert abs(np.corrcoef(first, second)[0, 1]) < most
    # Distance in the second epoch of neighbours in the first: at random a third of the epoch, and below a hundredth for 2 %.
    apart = np.abs(np.diff(second[found[0]])) / NUM_SAMPLES
    assert apart.mean() == pytest.approx(1 / 3, abs=0.03)
    assert np.mean(apart < 0.01) < 0.035


@pytest.mark.parametrize(("share", "correlation"), [(0.2, 0.55), pytest.param(1.0, 0.31, marks=pytest.mark.slow)])
def test_epochs_of_coordinated_jobs_apart_are_as_similar_as_documented(share: float, correlation: float, tmp_path: Path) -> None:
    """benchmark/README.md documents these numbers for three jobs that are a third of an epoch apart."""
    found = orders(tmp_path, "coordinated", share, 3, apart=1 / 3)
    for order in found:
        assert_random(order)
    places = np.argsort(found)
    for before, after, order in zip(places, places[1:], found, strict=False):
        assert np.corrcoef(before, after)[0, 1] == pytest.approx(correlation, abs=0.09)
        assert np.mean(np.abs(np.diff(after[order])) / NUM_SAMPLES < 0.01) < 0.05
