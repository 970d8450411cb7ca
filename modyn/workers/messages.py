"""Messages between a worker process and its service."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Command:
    """Message to a worker: run `task` after the earlier commands. is_only: whether the session ends with this command. request: pickled request, so
    that an error of unpickling is an error of the command.
    """

    task: str
    request: bytes
    name: str
    log_path: Path
    device: str
    is_only: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """Message to a worker: stop the running command."""


@dataclass(frozen=True, slots=True)
class Begun:
    """Message from a worker: the worker has begun the newest command. A worker that ends without this message has not begun the command."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Message from a worker: progress that the running function reports."""

    message: Any


@dataclass(frozen=True, slots=True)
class Result:
    """Message from a worker: the function's result. continues: whether the process takes further commands. device_bytes: bytes of GPU memory that the
    process holds.
    """

    value: Any
    continues: bool = False
    device_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """Last message from a worker: the function's error. reason: reason of the error's class; empty: the class is not in `modyn.errors`."""

    reason: str
    message: str
