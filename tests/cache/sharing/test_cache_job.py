"""The order of a job: random, and resumed from a bit for each sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.cache.sharing.cache_job import CacheJob
from modyn.errors import InvalidArgumentError


def new_job(trigger_set: range, seed: int = 0) -> CacheJob:
    return CacheJob(-1, np.array(trigger_set), trigger_set.stop, seed)


def test_orders_show_no_trace_of_keys_and_of_neighbours() -> None:
    count = 20_000
    job, orders = new_job(range(count)), []
    for epoch in range(2):
        job.begin_epoch(epoch)
        orders.append(job.ahead(count))
        assert abs(np.corrcoef(orders[-1][:-1], orders[-1][1:])[0, 1]) < 0.03
        assert abs(np.corrcoef(orders[-1], np.arange(count))[0, 1]) < 0.03
    first, second = np.argsort(orders)
    # At random, neighbours of one epoch are a third of the next epoch apart.
    assert np.abs(np.diff(second[orders[0]])).mean() / count == pytest.approx(1 / 3, abs=0.02)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


@given(st.integers(1, 30), st.integers(1, 7), st.integers(0, 12), st.integers(0, 2**40))
def test_a_job_that_was_killed_serves_after_its_checkpoint_what_was_left(count: int, size: int, batches: int, seed: int) -> None:
    job = new_job(range(count), seed)
    for _ in range(batches):
        if not job.num_left:
            job.begin_epoch(job.epoch + 1)
        job.mark(job.ahead(size))
    resumed = new_job(range(count), seed)
    resumed.load_state_dict(job.state_dict())
    assert resumed.epoch == job.epoch
    assert sorted(resumed.ahead(count).tolist()) == np.flatnonzero(~job.seen).tolist()


def test_a_checkpoint_has_a_bit_for_each_sample() -> None:
    assert new_job(range(0, 10_000, 2)).state_dict()["seen"].nbytes == 5000 / 8


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"seed": 1}, {"num_samples": 9}, {"seen": np.zeros(3, np.uint8)}, {"epoch": None}]
)
def test_the_state_of_another_job_is_refused(change: dict[str, object]) -> None:
    state = new_job(range(10)).state_dict() | change
    with pytest.raises(InvalidArgumentError, match="start it again"):
        new_job(range(10)).load_state_dict({name: value for name, value in state.items() if value is not None})
