"""What a metric holds beside both sets, measured in a process of its own: 50,000 × 512 against the same must fit into 1 GB."""

from __future__ import annotations

import subprocess
import sys

import pytest

from modyn.evaluator.drift import DRIFT_METRICS, missing_modules

MEASURED = """
import re, sys
from pathlib import Path
import torch
from modyn.evaluator.drift import DRIFT_METRICS, compare

def held(key):  # not by ru_maxrss, which a process takes over from the one that starts it
    return 1024 * int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

kind = DRIFT_METRICS.get(sys.argv[1])
metric = kind(kind.Config(), 0)
compare(metric, torch.randn(30, 2), torch.randn(30, 2))  # which imports
x, y = torch.randn(20_000, 256), torch.randn(20_000, 256)
before = held("VmRSS")
compare(metric, x, y)
print(held("VmHWM") - before)
"""
INPUTS_BYTES = 2 * 20_000 * 256 * 4
OWN = [
    id_
    for id_ in DRIFT_METRICS.builtin
    if not id_.startswith(("Alibi", "Evidently")) and not missing_modules(DRIFT_METRICS.get(id_))
]


@pytest.mark.slow
@pytest.mark.parametrize("id_", OWN)
def test_a_metric_holds_little_beside_what_it_compares(id_: str) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURED, id_], capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) < 5 * INPUTS_BYTES
