"""Orders stay random, hits are as many as promised and where, and a checkpoint resumes an order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.cache.samplers import SAMPLERS, CacheJob, Sampler
from modyn.errors import InvalidArgumentError

NUM_SAMPLES, BATCH_SIZE = 20_000, 125


class Epochs(NamedTuple):
    """Of one job."""

    orders: npt.NDArray[np.int64]
    """(epochs, NUM_SAMPLES), the samples as they were served."""
    hits: npt.NDArray[np.bool_]
    """(epochs, NUM_SAMPLES)."""
    prepared: float
    """For each sample that any job was served."""


def in_step(name: str, num_jobs: int, share: float, epochs: int = 2, augmented: bool = True, apart: float = 0.0) -> Epochs:
    """Serve jobs in turn, of which each joins so many epochs behind the one before. Returns those of the last job."""
    sampler = SAMPLERS[name](NUM_SAMPLES, int(share * NUM_SAMPLES), 0, augmented)
    jobs: list[CacheJob] = []
    while len(jobs) < num_jobs:
        for _ in range(int(apart * NUM_SAMPLES / BATCH_SIZE)):
            for job in jobs:
                sampler.next_batch(job, BATCH_SIZE)
        jobs.append(sampler.join(np.arange(NUM_SAMPLES), len(jobs)))
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
def test_orders_show_no_trace_of_keys_and_of_neighbours(name: str) -> None:
    orders = in_step(name, 3, 0.2, augmented=False).orders
    for order in orders:
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.03
        assert abs(np.corrcoef(order, np.arange(NUM_SAMPLES))[0, 1]) < 0.03
    first, second = np.argsort(orders)
    # How far apart neighbours of the first epoch are in the second: a third of it at random.
    apart = np.abs(np.diff(second[orders[0]])) / NUM_SAMPLES
    assert apart.mean() == pytest.approx(1 / 3, abs=0.07 if name == "opportunistic" else 0.02)
    assert np.mean(apart < 0.01) < 0.035
    if name != "opportunistic":
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("num_jobs", "share", "most"),
    [
        (2, 0.2, 0.5),
        (3, 1.0, 0.4),
        pytest.param(3, 0.2, 0.6, marks=pytest.mark.slow),
        pytest.param(4, 0.2, 0.65, marks=pytest.mark.slow),
    ],
)
def test_epochs_of_coordinated_jobs_that_are_apart_are_alike_to_a_bounded_degree(
    num_jobs: int, share: float, most: float
) -> None:
    """They pull each other along: `most` is the largest correlation of the places of samples in one epoch with those in the epoch before. Otherwise
    the order is as random as in step: it shows nothing of keys, and neighbours part."""
    found = in_step("coordinated", num_jobs, share, 5, apart=1 / num_jobs)
    assert found.hits[1:].mean() > 0.95 * (1 - 1 / num_jobs)
    for order in found.orders:
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.03
        assert abs(np.corrcoef(order, np.arange(NUM_SAMPLES))[0, 1]) < 0.03
    places = np.argsort(found.orders)
    for number in range(1, len(places)):
        assert np.corrcoef(places[number - 1], places[number])[0, 1] < most
        apart = np.abs(np.diff(places[number][found.orders[number - 1]])) / NUM_SAMPLES
        assert np.mean(apart < 0.01) < 0.05  # at random 0.02


@pytest.mark.parametrize("name", ["coordinated", "opportunistic"])
@given(st.integers(1, 30), st.integers(1, 7), st.integers(0, 12), st.integers(0, 2**40))
def test_a_job_that_was_killed_serves_after_its_checkpoint_what_was_left(
    name: str, count: int, size: int, batches: int, seed: int
) -> None:
    sampler = SAMPLERS[name](count, count // 2, 0, augmented=True)
    other, job = sampler.join(np.arange(count), 1), sampler.join(np.arange(count), seed)
    for _ in range(batches):
        sampler.next_batch(other, size)
        sampler.next_batch(job, size)
    state, seen, epoch = job.state_dict(), job.seen.copy(), job.epoch
    sampler.next_batch(job, size)
    sampler.leave(job)
    resumed = sampler.join(np.arange(count), seed, state)
    assert resumed.epoch == epoch
    assert served_until_the_end(sampler, resumed, size) == np.flatnonzero(~seen).tolist()


def served_until_the_end(sampler: Sampler, job: CacheJob, size: int) -> list[int]:
    """What is left of the epoch, ascending."""
    served: list[int] = []
    while job.num_left:
        served += sampler.next_batch(job, size).samples.tolist()
    return sorted(served)


def test_a_checkpoint_has_a_bit_for_each_sample() -> None:
    job = SAMPLERS["coordinated"](10_000, 100).join(np.arange(0, 10_000, 2), 0)
    assert job.state_dict()["seen"].nbytes == 5000 / 8


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"seed": 1}, {"num_samples": 9}, {"seen": np.zeros(3, np.uint8)}, {"epoch": None}]
)
def test_the_state_of_another_job_is_refused(change: dict[str, object]) -> None:
    sampler = SAMPLERS["coordinated"](10, 5)
    state = sampler.join(np.arange(10), 0).state_dict() | change
    state = {name: value for name, value in state.items() if value is not None}
    with pytest.raises(InvalidArgumentError, match="start it anew"):
        sampler.join(np.arange(10), 0, state)
    assert len(sampler.jobs) == 1
