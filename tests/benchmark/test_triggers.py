"""The programs that measure and draw trigger policies, on few samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmark.triggers.pictures import PICTURES, POLICIES, picture
from benchmark.triggers.rare_classes import LEVEL, OTHERS, POWER, samples_for_shares, table
from modyn.evaluator.drift import DRIFT_METRICS, compare
from tests.support.measuring import measured

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("name", POLICIES)
def test_the_pictures_of_the_page_are_up_to_date(name: str) -> None:
    assert (PICTURES / f"{name}.svg").read_text() == picture(name), "run: python -m benchmark.triggers pictures"


def test_the_table_of_rare_classes_is_that_of_the_page() -> None:
    assert table() in (PICTURES.parent / "rare-classes.md").read_text(), "python -m benchmark.triggers rare_classes"


@pytest.mark.slow
@pytest.mark.parametrize(("share", "later"), [(0.1, 0.2), (0.01, 0.02)])
def test_the_chi_squared_test_finds_what_the_table_says(share: float, later: float) -> None:
    rng, size, found = np.random.default_rng(0), samples_for_shares(share, later), 0
    metric = DRIFT_METRICS.get("ChiSquaredDriftMetric")
    for _ in range(300):
        windows = (rng.choice(OTHERS + 1, size, p=[part, *[(1 - part) / OTHERS] * OTHERS]) for part in (share, later))
        p_value = compare(metric(metric.Config()), *map(torch.from_numpy, windows)).p_value
        found += p_value is not None and p_value < LEVEL
    assert found / 300 == pytest.approx(POWER, abs=0.05)


@pytest.mark.slow
def test_a_run_of_checks_is_measured() -> None:
    lines = measured("benchmark.triggers", "checks", "--checks", "30").splitlines()
    assert float(lines[-1].removeprefix("checks: ")) > 0


@pytest.mark.exhaustive
def test_policies_are_compared_on_a_stream() -> None:
    table = measured("benchmark.evidence", "triggers", "--stream", "digits", "--seeds", "1", "--policy", "MMD > 0.05")
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["| policy", "| every 0.5 y", "| MMD > 0.05"]
    assert rows[1][1].startswith("71.0")
