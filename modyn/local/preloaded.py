"""Start services as forks of the stack's process. This process has imported the common modules of services. The modules are therefore in memory once,
and no service imports them again.

The stack's process must have one thread and must not have used gRPC. In a fork, locks of other threads would stay locked, and gRPC's threads would be
missing.
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

from modyn.local.service_process import ForkedProcess, fork

SHARED: Final = (
    "modyn.rpc.server",
    "modyn.rpc.client",
    "modyn.rpc.arrays",
    "modyn.db.engine",
    "sqlalchemy.dialects.postgresql.psycopg2",
)
"""Modules that all services, or all except one, import: gRPC, NumPy, SQLAlchemy. Modules of a single service must not be here, because the service's
metrics would then appear in all services.
"""


def preload() -> None:
    """Import the modules of `SHARED`, and exclude their objects from garbage collection. Otherwise the collector would write to the objects'
    memory pages, and each fork would copy these pages.
    """
    sys.modules["rich"] = None  # type: ignore[assignment]  # see modyn.rpc.__main__
    for name in SHARED:
        import_module(name)
    gc.collect()
    gc.freeze()


def fork_program(program: Sequence[str], log: Path, environment: Mapping[str, str]) -> ForkedProcess:
    """Start a program as `python -m` does, without a new interpreter. Args: program: module and arguments. log, environment: see `spawn`."""
    return fork(partial(_run, program), log, environment)


def _run(program: Sequence[str]) -> None:
    import numpy as np

    np.random.seed()  # a fork inherits NumPy's random state; the standard library's `random` gets a new seed by itself
    set_command_line(program)
    sys.argv = [*program]
    runpy.run_module(program[0], run_name="__main__", alter_sys=True)


def set_command_line(arguments: Sequence[str]) -> None:
    """Set the command line of this process. A longer command line is truncated to the length of the original command line."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
    # The last byte must be 0. Otherwise, tools would not read the command line as a list.
    ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)
