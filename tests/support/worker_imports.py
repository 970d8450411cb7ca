"""What a worker process still imports after the fork: nothing of Modyn, if everything that it uses is preloaded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from modyn.registry import load_object
from modyn.workers import JobConnection, JobSpec, WorkerPool

PRELOADED: Final = frozenset(sys.modules)
"""What was imported before this module. In a worker: by the fork server, which imports this module last."""


Imports = Callable[[str, object, Path], list[str]]
"""Runs a task with a request in a worker, whose log is at a path. Returns the modules that the worker imported."""


@contextmanager
def new_fork_server(preload: Sequence[str]) -> Iterator[Imports]:
    """Run a fork server that imports `preload` within the block."""
    from tests.support.preloaded import other_fork_server  # this module imports nothing in the fork server

    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")  # each child imports the main module: here it would be that of pytest
    modules = [*preload, __name__]
    pool = WorkerPool(1, preload=modules)

    def imports(task: str, request: object, log_path: Path) -> list[str]:
        name = f"{__name__}:run_and_list_imports"
        found: list[str] = pool.submit(JobSpec(name, (task, request), name="imports", log_path=log_path)).result(120)
        return found

    with other_fork_server(modules):
        try:
            yield imports
        finally:
            pool.close()
            sys.modules["__main__"] = main


def run_and_list_imports(request: tuple[str, object], connection: JobConnection) -> list[str]:
    """Task of a worker process."""
    task, inner = request
    function: Any = load_object(task)
    function(inner, connection)
    return sorted(set(sys.modules) - PRELOADED - {__name__, "modyn.workers.collector_on"})
