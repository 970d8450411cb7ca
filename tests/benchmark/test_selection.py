"""The programs that measure data selection, on few samples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    """The output of a figure."""
    command = [sys.executable, "-m", "benchmark.selection", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_presampling_is_measured() -> None:
    lines = run("presample", "--samples", "200000", "--classes", "50", "--pairs", "1").splitlines()
    assert float(lines[-1].removeprefix("presample: ")) > 0
