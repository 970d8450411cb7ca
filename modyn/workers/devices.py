"""The GPUs of this machine, without importing torch."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Final

ASK_S: Final = 40.0
"""Limit for the process that imports PyTorch, which takes seconds on a cold disk; below the deadline of the call that waits for it."""


def missing_device(device: str) -> str | None:
    """Why `device` (cpu, cuda or cuda:N) cannot be used on this machine, and what can; None: it can be used."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return None
    found = num_gpus()
    if found == 0:
        return f"'{device}' does not exist: PyTorch finds no CUDA device on this machine; use cpu"
    if index and int(index) >= found:
        there = ", ".join(f"cuda:{i}" for i in range(found))
        return f"'{device}' does not exist; this machine has {there}"
    return None


def num_gpus() -> int:
    """Number of CUDA devices that PyTorch finds. Where it is not imported, another process imports it, once."""
    torch = sys.modules.get("torch")
    if torch is None:
        return _num_gpus_by_process()
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


@cache
def _num_gpus_by_process() -> int:
    code = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=ASK_S, check=True)
    return int(done.stdout.split()[-1])
