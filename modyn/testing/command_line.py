"""Run commands of `modyn` in the process of a test, because a separate process takes half a second for imports."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

import modyn.rpc.logs  # noqa: F401 (which configures structlog)
from modyn.workers.process_state import ProcessState


def run_command(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of `modyn` in this process, without a terminal.

    Args: arguments: the words after `modyn`. folder: the working folder. environment: all environment variables. Raises: any unexpected exception,
    which a separate process would print as a traceback.
    """
    from modyn.cli.main import main

    command = ["modyn", *arguments]
    out, err = io.StringIO(), io.StringIO()
    state, logs, argv, stdin, code = ProcessState(), structlog.get_config(), sys.argv, sys.stdin, 0
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.chdir(folder),
            open(os.devnull) as nothing,
        ):
            os.environ.clear()
            os.environ.update(environment)
            sys.argv, sys.stdin = command, nothing
            main()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    finally:
        sys.argv, sys.stdin = argv, stdin
        state.restore()
    # A logger keeps the output that it used first. If a command configured logs, later tests would log to the output of the command.
    assert structlog.get_config() == logs, f"`modyn {' '.join(arguments)}` has configured logs: run it as a process of its own"
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())
