"""GPUs of this machine, without an import of torch."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Final

from modyn.errors import UnavailableError

ASK_S: Final = 40.0
"""Seconds that the counting process may take to import PyTorch, which is slow on a cold disk. The value is less than the deadline of the call that
waits for the process.
"""


def missing_device(device: str) -> str | None:
    """Return why `device` (cpu, cuda or cuda:N) cannot be used on this machine, and which devices can be used; None: the device can be used."""
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
    """Return the number of CUDA devices that PyTorch finds. If this process has not imported PyTorch, another process counts the devices, once."""
    torch = sys.modules.get("torch")
    if torch is None:
        return len(gpu_bytes())
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


@cache
def gpu_bytes() -> tuple[int, ...]:
    """Return the memory of each CUDA device in bytes, in PyTorch's order. Another process asks the driver, once. A driver that this process starts
    would not work in workers that are forked from this process. Raises UnavailableError: the driver does not answer.
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
