"""Services that begin as forks of the stack's process, which has imported what they share: their memory holds it once, and none waits for it.

Only while this process has no other thread and has not used gRPC: locks of threads stay locked in a fork, and gRPC's own threads are missing.
"""

from __future__ import annotations

import ctypes
import gc
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

from modyn.local.process import ForkedProcess, fork

SHARED: Final = (
    "modyn.rpc.server",
    "modyn.rpc.client",
    "modyn.rpc.columns",
    "modyn.db.engine",
    "sqlalchemy.dialects.postgresql.psycopg2",
)
"""What all services import, or all but one: gRPC, NumPy, SQLAlchemy. Modules of one service would bring its metrics to the others."""


def preload() -> None:
    """Import `SHARED`, and keep the garbage collector away from it, here and in forks: it would write to every page."""
    sys.modules["rich"] = None  # type: ignore[assignment]  # as in modyn.rpc.__main__
    for name in SHARED:
        import_module(name)
    gc.collect()
    gc.freeze()


def fork_program(program: Sequence[str], log: Path, environment: Mapping[str, str]) -> ForkedProcess:
    """Start what `python -m program` would, without a new interpreter. Args: program: module and arguments. Others: see `spawn`."""
    return fork(partial(_run, program), log, environment)


def _run(program: Sequence[str]) -> None:
    import numpy as np

    np.random.seed()  # what the standard library's `random` does by itself
    set_command_line(program)
    sys.argv = [*program]
    runpy.run_module(program[0], run_name="__main__", alter_sys=True)


def set_command_line(arguments: Sequence[str]) -> None:
    """Show these arguments as the command line of this process, cut off at the length of the one that it was started with."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
    # With another last byte than 0 it would not be read as a list.
    ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)
