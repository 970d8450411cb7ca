"""The libraries that figures c and d compare with. Each is one program; it runs in an environment of its own (`make peers`), or is missing.

A peer is set up as its documentation advises for speed. Where that leaves a choice (how many workers), every way is tried on a part of the
data before the first round, and the fastest is measured.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from time import perf_counter

from benchmark.data_path.figure import Missing
from benchmark.data_path.side_process import ROOT, Start

_FIRST = 4
"""Batches that two workers have ready before the first is taken: two each."""

PYTHON = ROOT / ".venv-peers" / "bin" / "python"


def missing(package: str, python: Path = PYTHON) -> Missing | None:
    """Why a peer cannot run, if it cannot."""
    if not python.exists():
        return Missing(f"{package} is not installed: make peers")
    found = subprocess.run([str(python), "-c", f"import {package}"], capture_output=True, text=True, check=False)
    return (
        None
        if found.returncode == 0
        else Missing(f"{package} cannot be imported ({found.stderr.strip().splitlines()[-1]}): make peers")
    )


def fastest(ways: Mapping[str, Start], num_batches: int | None) -> str:
    """Return the fastest way for a whole epoch (None), or for `num_batches` batches after the first ones: starting workers takes
    a large part of a small number of batches, and what they make meanwhile comes at once. Says on the error output which."""
    seconds = {}
    for name, start in ways.items():
        began = perf_counter()
        batches = iter(start())
        if num_batches is not None:
            for _ in islice(batches, _FIRST):
                pass
            began = perf_counter()
        for _ in islice(batches, num_batches):
            pass
        seconds[name] = perf_counter() - began
        del batches  # ends the workers
    best = min(seconds, key=lambda name: seconds[name])
    print(f"{', '.join(f'{name}: {s:.2f} s' for name, s in seconds.items())}; takes {best}", file=sys.stderr)
    return best
