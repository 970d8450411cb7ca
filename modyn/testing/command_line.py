"""Commands of `modyn` in the process of a test: a process for each costs half a second of imports."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def run_command(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `modyn` as its program does, in this process, without a terminal.

    Args: arguments: what stands behind `modyn`. folder: the working folder. environment: all variables.
    Raises: what no command may raise; a process would print its traceback.
    """
    from modyn.cli.main import main

    command = ["modyn", *arguments]
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(folder),
        open(os.devnull) as nothing,
        _program(command, environment, nothing),
    ):
        try:
            main()
            code = 0
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _program(command: list[str], environment: Mapping[str, str], stdin: io.TextIOWrapper) -> Iterator[None]:
    """Give this process the arguments, the variables and the standard input of a program for the block."""
    argv, variables, terminal = sys.argv, dict(os.environ), sys.stdin
    _set_variables(environment)
    sys.argv, sys.stdin = command, stdin
    try:
        yield
    finally:
        sys.argv, sys.stdin = argv, terminal
        _set_variables(variables)


def _set_variables(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)
