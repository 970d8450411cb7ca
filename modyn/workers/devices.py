"""The GPUs of this machine, without importing torch."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Final

from modyn.errors import UnavailableError

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
        return len(gpu_bytes())
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


@cache
def gpu_bytes() -> tuple[int, ...]:
    """Memory of each CUDA device in bytes, in the order of PyTorch. Asked once, by another process: this one starts no driver, which would
    not survive in the workers that are forked from it. Raises UnavailableError if the driver does not answer.
    """
    code = (
        "import torch; n = torch.cuda.device_count() if torch.cuda.is_available() else 0; "
        "print('gpus', *(torch.cuda.get_device_properties(i).total_memory for i in range(n)))"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=ASK_S, check=True)
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or "").strip().splitlines()[-1:]
        raise UnavailableError(
            f"PyTorch could not count the GPUs of this machine: {' '.join(said) or error}; see what `nvidia-smi` says, and try again"
        ) from error
    return tuple(int(word) for word in done.stdout.splitlines()[-1].split()[1:])
