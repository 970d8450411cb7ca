"""Tasks that the tests send to worker processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from modyn.errors import DataError
from modyn.workers import JobConnection, die_with_parent


def surroundings(_: object, connection: JobConnection) -> dict[str, Any]:
    torch = sys.modules.get("torch")
    return {
        "torch": torch is not None,
        "threads": torch.get_num_threads() if torch else 0,
        "fork_server": os.getppid(),
        "threads_of_fork_server": len(os.listdir(f"/proc/{os.getppid()}/task")),
        "name": connection.name,
    }


def with_child(_: object, connection: JobConnection) -> None:
    """Starts a process of its own and tells (its own pid, its parent's, the child's, the child's parent's), then waits."""
    ours, theirs = get_context("forkserver").Pipe()
    child = get_context("forkserver").Process(target=_child, args=(theirs,))
    child.start()
    connection.send((os.getpid(), os.getppid(), *ours.recv()))
    while True:
        time.sleep(1)


def _child(connection: Any) -> None:
    die_with_parent()
    connection.send((os.getpid(), os.getppid()))
    time.sleep(600)


def count(up_to: int, connection: JobConnection) -> int:
    for i in range(up_to):
        connection.send(i)
    print("counted to", up_to)
    return up_to


def our_error(_: object, connection: JobConnection) -> None:
    raise DataError(f"record 7 is short ({connection.name})")


def foreign_error(_: object, connection: JobConnection) -> None:
    raise ZeroDivisionError("of all things")


def end_by_signal(number: int, connection: JobConnection) -> None:
    os.kill(os.getpid(), number)


def leave(code: int, connection: JobConnection) -> None:
    sys.exit(code)


def not_picklable(_: object, connection: JobConnection) -> object:
    return lambda: None


def until_stopped(folder: str | None, connection: JobConnection) -> None:
    """Send the process id, mark the task as running in `folder`, and check for a stop request as a training does."""
    connection.send(os.getpid())
    mark = Path(folder) / str(os.getpid()) if folder else None
    if mark:
        mark.touch()
    try:
        while True:
            time.sleep(0.01)
            connection.check()
    finally:
        if mark:
            mark.unlink()


def deaf(also_to_sigterm: bool, connection: JobConnection) -> None:
    if also_to_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection.send(os.getpid())
    while True:
        time.sleep(1)


def while_marked(request: tuple[str, str], connection: JobConnection) -> int:
    """Mark the task as running by a file in a folder, and run until a test removes the file. Return how many ran when it began."""
    folder, name = request
    mark = Path(folder) / name
    mark.touch()
    running = len(os.listdir(folder))
    while mark.exists():
        time.sleep(0.01)
    return running
