"""Placement of a job: the device, the session, and the idle sessions that end to free their places for the job. This module has pure functions
only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CONTEXT_BYTES: Final = 512 << 20
"""GPU memory that a process takes before its first tensor."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """The facts about a session of the pool that decide the placement. key: key of the session; None: the session has a single job. device_bytes:
    bytes of GPU memory that the session last reported. used: number of the session's last use; later uses have higher numbers.
    """

    key: str | None
    device: str
    busy: bool
    device_bytes: int = 0
    used: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Result of a placement. device: cpu or cuda:N. reuse: index of the idle session that takes the job; None: a new session takes the job. end:
    indices of idle sessions to end.
    """

    device: str
    reuse: int | None = None
    end: tuple[int, ...] = ()


def place(
    key: str | None, device: str, occupants: Sequence[Occupant], max_workers: int, gpu_bytes: Sequence[int] = ()
) -> Placement:
    """Place a job.

    Rule: the job gets the allowed device with the fewest running jobs. Ties are broken by an idle session of `key`, then by the most free memory,
    then by the order of the devices. The least recently used idle sessions end while there would be more than `max_workers` processes, or while less
    than half of the GPU's memory is free.

    Args: device: cpu, cuda:N, or cuda for any GPU. gpu_bytes: memory of each GPU. occupants: all sessions of the pool.

    >>> idle = Occupant("a", "cuda:1", busy=False)
    >>> place("a", "cuda", [Occupant("a", "cuda:0", busy=True), idle], 2, [1 << 34, 1 << 34])
    Placement(device='cuda:1', reuse=1, end=())
    >>> place("b", "cpu", [idle], 1)
    Placement(device='cpu', reuse=None, end=(0,))
    """
    idle = sorted((i for i, occupant in enumerate(occupants) if not occupant.busy), key=lambda i: occupants[i].used)
    fitting = [i for i in idle if key is not None and occupants[i].key == key]

    def preference(choice: str) -> tuple[int, bool, int]:
        running = sum(occupant.busy for occupant in occupants if occupant.device == choice)
        return running, all(occupants[i].device != choice for i in fitting), -_free_bytes(choice, occupants, gpu_bytes)

    choices = [f"cuda:{i}" for i in range(max(1, len(gpu_bytes)))] if device == "cuda" else [device]
    chosen = min(choices, key=preference)
    reuse = next((i for i in reversed(fitting) if occupants[i].device == chosen), None)
    end: list[int] = []
    for i in idle:
        staying = [occupant for j, occupant in enumerate(occupants) if j not in end and j != reuse]
        full = len(staying) >= max_workers
        total = _total_bytes(chosen, gpu_bytes)
        scarce = occupants[i].device == chosen and total > 0 and 2 * _free_bytes(chosen, staying, gpu_bytes) < total
        if i != reuse and (full or scarce):
            end.append(i)
    return Placement(chosen, reuse, tuple(end))


def _total_bytes(device: str, gpu_bytes: Sequence[int]) -> int:
    """Return the memory of a GPU; 0 for other devices."""
    kind, _, index = device.partition(":")
    return gpu_bytes[int(index or 0)] if kind == "cuda" and int(index or 0) < len(gpu_bytes) else 0


def _free_bytes(device: str, occupants: Sequence[Occupant], gpu_bytes: Sequence[int]) -> int:
    held = sum(CONTEXT_BYTES + occupant.device_bytes for occupant in occupants if occupant.device == device)
    return _total_bytes(device, gpu_bytes) - held
