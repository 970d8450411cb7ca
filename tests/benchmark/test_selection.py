"""The programs that measure data selection, on few samples."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.selection.sides import PEERS

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    """The output of a figure."""
    command = [sys.executable, "-m", "benchmark.selection", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_presampling_is_measured() -> None:
    lines = run("presample", "--samples", "200000", "--classes", "50", "--pairs", "1").splitlines()
    assert float(lines[-1].removeprefix("presample: ")) > 0


@pytest.mark.slow
def test_facility_location_is_compared_with_libraries() -> None:
    if not PEERS.exists() and not os.environ.get("MODYN_TESTS_NO_SKIP"):
        pytest.skip("`make peers` installs the libraries")
    lines = run("greedy", "--samples", "600", "--repetitions", "1").splitlines()
    assert float(lines[-1].removeprefix("greedy: ")) > 0
    assert [line.split()[1] for line in lines if line.startswith("| ")] == ["side", "ours", "apricot", "submodlib"]


@pytest.mark.slow
def test_k_center_is_compared_with_another_way() -> None:
    assert float(run("k_center", "--samples", "600", "--repetitions", "1").splitlines()[-1].removeprefix("k_center: ")) > 0


@pytest.mark.slow
def test_many_candidates_are_chosen_from_on_disk() -> None:
    lines = run("many", "--samples", "30000", "--share", "0.01").splitlines()
    assert float(lines[-1].removeprefix("many: ")) < 1
    assert sum("| 300 |" in line for line in lines) == 3
