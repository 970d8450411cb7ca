"""Which GPUs there are, for those who must know before a worker needs one. Imports no torch."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Final

ASK_S: Final = 40.0
"""Importing PyTorch takes seconds on a cold disk; the call that waits for the answer has a deadline beyond this."""


def missing_device(device: str) -> str | None:
    """Why `device` (cpu, cuda or cuda:N) cannot be used on this machine, and what is there; None: it can."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return None
    found = num_gpus()
    if found == 0:
        return f"'{device}' is not there: PyTorch finds no CUDA device on this machine; use cpu"
    if index and int(index) >= found:
        there = ", ".join(f"cuda:{i}" for i in range(found))
        return f"'{device}' is not there; this machine has {there}"
    return None


def num_gpus() -> int:
    """CUDA devices that PyTorch finds. Where it is not imported, a process is asked that imports it, once."""
    torch = sys.modules.get("torch")
    if torch is None:
        return _asked()
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


@cache
def _asked() -> int:
    code = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=ASK_S, check=True)
    return int(answer.stdout.split()[-1])
