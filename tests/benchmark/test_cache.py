"""The programs that measure the cache, on few samples."""

from __future__ import annotations

import re

import numpy as np
import pytest

from benchmark.cache.job_clock import Setting, simulate
from tests.support.measuring import measured

pytestmark = pytest.mark.timeout(900)


@pytest.mark.slow
def test_samplers_are_simulated() -> None:
    small = ["--samples", "6000", "--grid-samples", "1000", "--batch-size", "20", "--grid-batch-size", "20", "--most-jobs", "2"]
    lines = measured("benchmark.cache", "simulate", *small).splitlines()
    found = re.fullmatch(r"simulate: (\S+) % hits, (\S+) prepared", lines[-1].replace("%", " %"))
    assert found is not None
    assert float(found[1]) == pytest.approx(66.7, abs=2)
    assert float(found[2]) == pytest.approx(1 / 3, abs=0.02)


def test_jobs_of_different_speed_are_served_at_their_own() -> None:
    found = simulate("coordinated", Setting(1000, 0.2, (0.0, 0.5), (1.0, 2.0), epochs=4, batch_size=20))
    assert found.pace == pytest.approx(1, abs=0.02)
    # Each job needs a value of its own for each of its servings: a third of all can be hits.
    assert 0.2 < found.hits <= 0.36
    assert found.prepared == pytest.approx(1 - found.hits)


def test_a_shared_loader_is_as_fast_as_its_slowest_job() -> None:
    found = simulate("shared_loader", Setting(1000, 0.2, (0.0, 0.0), (1.0, 2.0), epochs=4, batch_size=20))
    assert found.pace == pytest.approx(2 / 3, abs=0.1)


def test_hits_are_counted_by_their_position() -> None:
    found = simulate("static", Setting.in_step(2000, 0.25, 2, batch_size=20))
    assert found.hits == pytest.approx(0.25, abs=0.01)
    assert np.mean(found.by_position) == pytest.approx(found.hits)
    assert found.position == pytest.approx(0.5, abs=0.05)


@pytest.mark.exhaustive
def test_a_broken_redis_is_measured() -> None:
    small = ["--samples", "200", "--rounds", "1", "--workers", "1", "--ways", "local", "shared", "--faults", "none", "killed"]
    lines = measured("benchmark.cache", "faults", *small).splitlines()
    rows = [line.removeprefix("| ").split(" | ")[:2] for line in lines if line.startswith("|")]
    assert rows == [["local", "none"], ["local", "killed"], ["shared", "none"], ["shared", "killed"]]
    assert re.fullmatch(r"faults: \S+, longest stall \d+ ms", lines[-1])
