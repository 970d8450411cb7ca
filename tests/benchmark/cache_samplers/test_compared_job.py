"""Trainings with the samplers that the cache figures compare."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from benchmark.cache.samplers.compared_loader import MANAGED, ComparedLoader, ComparedSource
from modyn.cache.tiers.tier import TierPlace
from tests.support.sampled_jobs import NUM_KEYS, Job

pytestmark = pytest.mark.usefixtures("preloaded_fakes")


def source(folder: Path, name: str) -> ComparedSource:
    return ComparedSource(
        "memory", str(folder), {MANAGED[name]: TierPlace(MANAGED[name], b"twelve bytes", 1 << 22)}, compared=name
    )


@pytest.mark.parametrize(
    ("name", "short_cut"),
    [
        pytest.param(name, way, marks=[] if number % 2 == way else pytest.mark.slow)
        for number, name in enumerate(MANAGED)
        for way in (False, True)
    ],
)
def test_each_epoch_serves_every_sample_once_but_by_shade(name: str, short_cut: bool, tmp_path: Path) -> None:
    """Each job has its own thread: in one thread, the shared loader would wait forever."""
    cache = source(tmp_path, name)
    jobs = [Job(cache, seed, size=size, short_cut=short_cut, loader=ComparedLoader) for seed, size in enumerate((7, 7, 11))]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(Job.read, jobs))
    for job in jobs:
        assert [len(of_epoch) for of_epoch in job.served.values()] == [NUM_KEYS] * 3
        if name != "shade":
            job.check(is_one_thread=False)
    assert sum(getattr(batch.cached, MANAGED[name]) for job in jobs for batch in job.batches) > 0


def test_shade_serves_samples_by_their_losses(tmp_path: Path) -> None:
    """Half of them have larger losses than the others: of n ranks these are three quarters. What is no longer important leaves the tier."""
    job = Job(source(tmp_path, "shade"), 1, loader=ComparedLoader)
    assert isinstance(job.loader, ComparedLoader)
    assert job.loader.needs_losses
    while not job.is_over:
        job.read(1)
        if not job.is_over:
            keys = job.batches[-1].keys.numpy()
            job.loader.rank(keys, (keys >= 30).astype(np.float32))
    served = np.array([key for epoch in (1, 2) for key in job.served[epoch]])
    assert 0.6 < np.mean(served >= 30) < 0.9
