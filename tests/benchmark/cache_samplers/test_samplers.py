"""Guarantees of the samplers that the cache figures compare. `SharedJob`, which trainings use, has its own tests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from benchmark.cache.samplers import SAMPLERS, CacheJob, Shade
from modyn.errors import ConflictError, InvalidArgumentError

NUM_SAMPLES, BATCH_SIZE = 20_000, 125


class Epochs(NamedTuple):
    """Epochs of one job."""

    orders: npt.NDArray[np.int64]
    """(epochs, NUM_SAMPLES), the samples as they were served."""
    hits: npt.NDArray[np.bool_]
    """(epochs, NUM_SAMPLES)."""
    prepared: float
    """For each sample that any job was served."""


def in_step(name: str, num_jobs: int, share: float, epochs: int = 2) -> Epochs:
    """Serve jobs in turn; all jobs join at the same time. Returns the epochs of the last job."""
    sampler = SAMPLERS[name](NUM_SAMPLES, int(share * NUM_SAMPLES), 0, augmented=True)
    jobs: list[CacheJob] = [sampler.join(np.arange(NUM_SAMPLES), seed) for seed in range(num_jobs)]
    batches = [[sampler.next_batch(job, BATCH_SIZE) for job in jobs] for _ in range(epochs * NUM_SAMPLES // BATCH_SIZE)]
    samples, hits = (
        np.concatenate([getattr(turn[-1], part) for turn in batches]).reshape(epochs, -1) for part in ("samples", "hits")
    )
    prepared = sum(batch.num_prepared for turn in batches for batch in turn)
    return Epochs(samples, hits, prepared / (epochs * NUM_SAMPLES * num_jobs))


@pytest.mark.parametrize(("num_jobs", "share"), [(2, 0.2), (3, 0.2), (3, 1.0), (8, 0.2)])
def test_coordinated_jobs_in_step_prepare_each_sample_once(num_jobs: int, share: float) -> None:
    found = in_step("coordinated", num_jobs, share)
    assert found.hits.mean() == pytest.approx(1 - 1 / num_jobs, abs=0.02)
    assert found.prepared == pytest.approx(1 / num_jobs, abs=0.01)


def test_hits_of_coordinated_jobs_are_spread_over_the_epoch() -> None:
    tenths = in_step("coordinated", 3, 0.2).hits.reshape(2, 10, -1).mean(2)
    assert tenths == pytest.approx(np.full((2, 10), 2 / 3), abs=0.15)


def test_opportunistic_jobs_meet_cached_samples_first_and_prepare_others_in_the_background() -> None:
    found = in_step("opportunistic", 3, 0.2, 3)
    assert found.hits[1:].mean() == pytest.approx(0.63, abs=0.03)
    assert found.hits[:, : NUM_SAMPLES // 2].mean() > 0.97
    assert found.hits[:, -NUM_SAMPLES // 5 :].mean() < 0.05
    # A third of the hits in the background, and the first fill.
    misses = 1 - found.hits.mean()
    assert found.prepared - misses == pytest.approx(found.hits.mean() / 3 + 0.2 / 9, abs=0.01)


@pytest.mark.parametrize("name", sorted(SAMPLERS.keys() - {"shade"}))
@pytest.mark.parametrize("capacity", [0, 5, 24])
def test_each_epoch_serves_each_sample_once_the_same_by_the_same_seeds(name: str, capacity: int) -> None:
    """Jobs of different trigger sets and sizes of batches, of which one leaves; no cache holds more than its capacity."""
    sets = [np.arange(24), np.arange(0, 24, 2), np.arange(24)]
    runs = []
    for _ in range(2):
        sampler = SAMPLERS[name](24, capacity, 5, augmented=not SAMPLERS[name].serves_again)
        jobs = [sampler.join(samples, seed) for seed, samples in enumerate(sets)]
        served: dict[tuple[int, int], list[int]] = {}
        for turn in range(60):
            for seed, job in enumerate(jobs):
                if seed == 2 and turn >= 20:
                    if turn == 20:
                        sampler.leave(job)
                    continue
                batch = sampler.next_batch(job, seed + 3)
                served.setdefault((seed, job.epoch), []).extend(batch.samples.tolist())
                assert len(sampler.values) <= capacity
        runs.append(served)
    assert runs[0] == runs[1]
    for (seed, epoch), samples in runs[0].items():
        assert len(set(samples)) == len(samples)
        if (seed, epoch + 1) in runs[0]:
            assert sorted(samples) == sets[seed].tolist()
    assert all((seed, 1) in runs[0] for seed in range(2))


def test_a_cache_is_empty_when_all_jobs_have_left() -> None:
    for name in ("coordinated", "opportunistic", "shared_loader"):
        sampler = SAMPLERS[name](100, 50, 0, augmented=True)
        jobs = [sampler.join(np.arange(100), seed) for seed in range(3)]
        for job in jobs[:2]:
            sampler.next_batch(job, 10)
        assert len(sampler.values)
        for job in jobs:
            sampler.leave(job)
        assert len(sampler.values) == 0


def test_jobs_share_what_both_train_on_and_keep_nothing_else() -> None:
    sampler = SAMPLERS["coordinated"](1000, 300, 0, augmented=True)
    jobs = [sampler.join(np.arange(600), 1), sampler.join(np.arange(400, 1000), 2)]
    batches = [sampler.next_batch(job, 10) for _ in range(60) for job in jobs]
    assert {sample for batch in batches for sample in batch.admitted.tolist()} <= set(range(400, 600))
    assert 150 < sum(int(batch.hits.sum()) for batch in batches) <= 200


def test_a_shared_loader_makes_fast_jobs_wait_and_late_ones_begin_with_the_next_pass() -> None:
    sampler = SAMPLERS["shared_loader"](100, 30, 0, augmented=True)
    fast, slow = (sampler.join(np.arange(100), seed) for seed in (1, 2))
    ahead = [sampler.next_batch(fast, 10).samples for _ in range(4)]
    assert [len(samples) for samples in ahead] == [10, 10, 10, 0]
    late = sampler.join(np.arange(100), 3)
    assert len(sampler.next_batch(late, 10).samples) == 0
    assert np.array_equal(np.concatenate([sampler.next_batch(slow, 10).samples for _ in range(3)]), np.concatenate(ahead))
    sampler.leave(slow)
    while fast.num_left:
        sampler.next_batch(fast, 10)
    assert len(sampler.next_batch(late, 10).samples) == 10


def test_shade_draws_important_samples_more_often_and_keeps_them() -> None:
    sampler = Shade(1000, 200)
    job = sampler.join(np.arange(1000), 0)
    sampler.rank(np.arange(1000.0))
    batches = [sampler.next_batch(job, 50) for _ in range(200)]
    served = np.concatenate([batch.samples for batch in batches])
    assert job.epoch == 9
    assert np.mean(served >= 500) == pytest.approx(0.75, abs=0.02)
    assert set(sampler.values.samples.tolist()) <= set(range(800, 1000))
    last = np.concatenate([batch.hits for batch in batches[100:]])
    assert last.mean() == pytest.approx(0.36, abs=0.03)
    sampler.rank(-np.arange(1000.0))
    assert len(sampler.values) == 0


def test_shade_learns_losses() -> None:
    """Samples that no job trains on take no space in the cache; unknown and infinite losses count as the mean of the known losses."""
    sampler = Shade(128, 20)
    job = sampler.join(np.arange(100), 0)
    while len(sampler.values) < 20:
        sampler.next_batch(job, 10)
    before = set(sampler.values.samples.tolist())
    samples = np.arange(98)
    dropped = sampler.learn(samples, samples.astype(np.float32))
    assert set(dropped.tolist()) == before - set(range(78, 98))
    while len(sampler.values) < 20:
        sampler.next_batch(job, 10)
    assert set(sampler.values.samples.tolist()) == set(range(78, 98))
    assert len(sampler.learn(np.arange(100), np.full(100, np.nan, np.float32))) == 0
    dropped = sampler.learn(np.array([97]), np.array([-1], np.float32))
    assert dropped.tolist() == [97]


@pytest.mark.parametrize("trigger_set", [[], [1, 1], [-1], [10]])
def test_a_trigger_set_that_is_none_is_refused(trigger_set: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match="no trigger set"):
        SAMPLERS["coordinated"](10, 5).join(np.array(trigger_set, np.int64), 0)


@pytest.mark.parametrize("name", [name for name, kind in SAMPLERS.items() if kind.serves_again])
def test_samplers_that_serve_values_again_refuse_augmented_ones(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="decoded values"):
        SAMPLERS[name](10, 5, augmented=True)


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least 0"):
        SAMPLERS["none"](10, -1)
    with pytest.raises(InvalidArgumentError, match="at least 0"):
        SAMPLERS["none"](-1, 0)
    for sampler in (kind(10, 5) for kind in SAMPLERS.values()):
        job = sampler.join(np.arange(10), 0)
        with pytest.raises(InvalidArgumentError, match="at least 1"):
            sampler.next_batch(job, 0)
        sampler.leave(job)
        with pytest.raises(InvalidArgumentError, match="has joined"):
            sampler.next_batch(job, 1)


def test_a_cache_has_places_for_64_jobs() -> None:
    sampler = SAMPLERS["coordinated"](10, 5)
    for seed in range(64):
        sampler.join(np.arange(10), seed)
    with pytest.raises(ConflictError, match="64 jobs"):
        sampler.join(np.arange(10), 64)
