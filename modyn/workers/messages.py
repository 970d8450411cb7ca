"""The messages between a worker process and its service."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Command:
    """To a worker: do this, after what was asked before. is_only: the session ends with it.

    request: pickled, so that it is read where errors belong to the command.
    """

    task: str
    request: bytes
    name: str
    log_path: Path
    device: str
    is_only: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """To a worker: end the command that runs."""


@dataclass(frozen=True, slots=True)
class Begun:
    """From a worker: it works on the newest command. A worker that ended without sending this has not begun it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """From a worker: a message of the function that runs."""

    message: Any


@dataclass(frozen=True, slots=True)
class Result:
    """From a worker: what the function returned. goes_on: whether the process takes further commands. device_bytes: held of its GPU."""

    value: Any
    goes_on: bool = False
    device_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """From a worker, which ends: the error of the function, by the reason of its class; empty: of a class that is not ours."""

    reason: str
    message: str
