"""`modyn serve` as a process of its own, on a running stack."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from signal import SIGTERM
from typing import Any, Self

from modyn.testing.stack import RunningStack, clean_environment
from modyn.testing.waiting import PATIENCE_S, eventually
from modyn.workers.fork_server import PROCESS_TABLE


class Serving:
    """A process of `modyn serve`, or of another command that serves. As a context it ends with the block.

    Args: name: name of the command. own_interpreter: start the command as a shell does. Otherwise it is forked from the tests' fork server, which has
    imported PyTorch if the test uses `preloaded_fakes`.
    """

    def __init__(self, stack: RunningStack, *arguments: str, name: str = "serve", own_interpreter: bool = False) -> None:
        self._process: _Command = (_Typed if own_interpreter else _Forked)(stack, name, *arguments)
        eventually(
            lambda: any("metrics" in line for line in self.lines) or self.returncode is not None, lambda: "".join(self.lines)
        )
        assert self.returncode is None, "".join(self.lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.returncode is None:
            self.end(SIGTERM)

    @property
    def returncode(self) -> int | None:
        """Exit code of the process, or the negative number of the signal that ended it; None: it runs."""
        return self._process.returncode

    @property
    def lines(self) -> list[str]:
        """What the process has written to standard error."""
        return self._process.said().splitlines(keepends=True)

    def field(self, name: str) -> str:
        return next(line.split()[1] for line in self.lines if line.split()[:1] == [name])

    @property
    def address(self) -> str:
        return self.field("http").split("/")[2]

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request on a connection of its own; return the status and the JSON of the answer."""
        with closing(connect(self.address)) as connection:
            return call(connection, method, path, body)

    def end(self, number: int) -> int:
        os.kill(self._process.pid, number)
        return self._process.wait()


class _Command(ABC):
    """A command of `modyn` that runs."""

    pid: int

    def __init__(self, stack: RunningStack) -> None:
        descriptor, path = tempfile.mkstemp(prefix="said-", dir=stack.folder)
        os.close(descriptor)
        self._said = Path(path)

    @property
    @abstractmethod
    def returncode(self) -> int | None: ...

    def said(self) -> str:
        return self._said.read_text()

    def wait(self) -> int:
        eventually(lambda: self.returncode is not None, self.said)
        assert self.returncode is not None
        return self.returncode


class _Typed(_Command):
    """A command as a user types it."""

    def __init__(self, stack: RunningStack, *arguments: str) -> None:
        super().__init__(stack)
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                stack.command(*arguments), stdin=subprocess.DEVNULL, stderr=said, cwd=stack.folder, env=clean_environment()
            )
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()


class _Forked(_Command):
    """A command in a fork of the fork server."""

    def __init__(self, stack: RunningStack, *arguments: str) -> None:
        super().__init__(stack)
        what = (stack.command(*arguments)[3:], stack.folder, self._said, clean_environment())
        self._process: ForkServerProcess = get_context("forkserver").Process(target=_run, args=what, daemon=True)
        with PROCESS_TABLE:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        with PROCESS_TABLE:
            return self._process.exitcode


def run_to_end(stack: RunningStack, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `modyn` that ends by itself, in a fork as that of `Serving`."""
    process = _Forked(stack, *arguments)
    return subprocess.CompletedProcess(arguments, process.wait(), "", process.said())


def _run(command: Sequence[str], folder: Path, said: Path, environment: Mapping[str, str]) -> None:
    """Run a command as a shell does."""
    from modyn.cli.main import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND), sys.stderr.fileno())
    sys.argv = ["modyn", *command]
    main()


def connect(address: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(address, timeout=PATIENCE_S)


def call(connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Send a request; return the status and the JSON of the answer."""
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())
