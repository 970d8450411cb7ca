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
from modyn.workers import Report, die_with_parent


def surroundings(_: object, report: Report) -> dict[str, Any]:
    torch = sys.modules.get("torch")
    return {
        "torch": torch is not None,
        "threads": torch.get_num_threads() if torch else 0,
        "fork_server": os.getppid(),
        "threads_of_fork_server": len(os.listdir(f"/proc/{os.getppid()}/task")),
        "name": report.name,
    }


def with_child(_: object, report: Report) -> None:
    """Starts a process of its own and tells (its own pid, its parent's, the child's, the child's parent's), then waits."""
    ours, theirs = get_context("forkserver").Pipe()
    child = get_context("forkserver").Process(target=_child, args=(theirs,))
    child.start()
    report.send((os.getpid(), os.getppid(), *ours.recv()))
    while True:
        time.sleep(1)


def _child(connection: Any) -> None:
    die_with_parent()
    connection.send((os.getpid(), os.getppid()))
    time.sleep(600)


def count(up_to: int, report: Report) -> int:
    for i in range(up_to):
        report.send(i)
    print("counted to", up_to)
    return up_to


def our_error(_: object, report: Report) -> None:
    raise DataError(f"record 7 is short ({report.name})")


def foreign_error(_: object, report: Report) -> None:
    raise ZeroDivisionError("of all things")


def end_by_signal(number: int, report: Report) -> None:
    os.kill(os.getpid(), number)


def leave(code: int, report: Report) -> None:
    sys.exit(code)


def not_picklable(_: object, report: Report) -> object:
    return lambda: None


def until_stopped(folder: str | None, report: Report) -> None:
    """Writes down that it runs, and looks for a stop request as a training does."""
    report.send(os.getpid())
    mark = Path(folder) / str(os.getpid()) if folder else None
    if mark:
        mark.touch()
    try:
        while True:
            time.sleep(0.01)
            report.check()
    finally:
        if mark:
            mark.unlink()


def deaf(also_to_sigterm: bool, report: Report) -> None:
    if also_to_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report.send(os.getpid())
    while True:
        time.sleep(1)


def while_marked(request: tuple[str, str], report: Report) -> int:
    """Marks itself as running in a folder, until somebody removes the mark. Returns how many ran when it began."""
    folder, name = request
    mark = Path(folder) / name
    mark.touch()
    running = len(os.listdir(folder))
    while mark.exists():
        time.sleep(0.01)
    return running
