"""Comparison of two checkouts; here the same checkout twice, on few samples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmark.checkouts", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.exhaustive
def test_each_case_of_a_checkout_is_compared_with_the_other_one() -> None:
    done = run(str(ROOT), "b", "--samples", "20000", "--pairs", "2", "--only", "record_layout")
    lines = [line for line in done.stdout.splitlines() if line.startswith("b[")]
    assert len(lines) >= 2, done.stderr
    assert all(float(line.split("]: ")[1].split()[0]) > 0 for line in lines)


def test_a_folder_without_an_environment_is_refused_with_what_to_do(tmp_path: Path) -> None:
    done = run(str(tmp_path), "b")
    assert done.returncode == 2
    assert f"make -C {tmp_path} setup" in done.stderr
