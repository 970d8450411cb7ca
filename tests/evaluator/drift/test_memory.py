"""Memory of a check, measured in its own process on a worker's code path: 50,000 × 512 against the same must fit into 1 GB."""

from __future__ import annotations

import subprocess
import sys

import pytest

from modyn.evaluator.drift import DRIFT_METRICS, missing_modules

LIMIT_BYTES = 10**9
FEWER = dict.fromkeys(("MMDDriftMetric", "EnergyDriftMetric"), 20_000)
"""Metrics of all pairs take nine minutes for 50,000 samples. They are tested with this number of samples, and proportionally less memory."""
SOONEST = ("MeanDistanceDriftMetric", "PSIDriftMetric")
"""Metrics that take less than a minute. Only `make test-all` measures the other metrics."""
OWN = [
    id_
    for id_ in DRIFT_METRICS.builtin
    if not id_.startswith(("Alibi", "Evidently")) and not missing_modules(DRIFT_METRICS.get(id_))
]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "id_", [pytest.param(id_, marks=[pytest.mark.slow if id_ in SOONEST else pytest.mark.exhaustive]) for id_ in OWN]
)
def test_windows_of_50_000_samples_fit_into_a_gigabyte(id_: str) -> None:
    """The stored values of the samples (205 MB) and the compared copies count; the imported libraries do not count."""
    size = FEWER.get(id_, 50_000)
    command = [sys.executable, "-m", "tests.support.large_windows", id_, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < LIMIT_BYTES * size // 50_000
