"""The programs of `benchmark`, as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def measured(*arguments: str) -> str:
    """The output of `python -m ARGUMENTS`. Where it fails, what it says is in the failure."""
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    )
    return done.stdout
