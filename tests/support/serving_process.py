"""`modyn serve` as a process of its own, on a running stack."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import threading
from contextlib import closing
from typing import Any, Self

from modyn.testing.stack import RunningStack, clean_environment
from modyn.testing.waiting import PATIENCE_S, eventually


class Serving:
    """A process of `modyn serve`, or of another command that serves. As a context it ends with the block."""

    def __init__(self, stack: RunningStack, *arguments: str, name: str = "serve") -> None:
        command = stack.command(name, *arguments)
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=stack.folder, env=clean_environment(None)
        )
        assert self.process.stderr is not None
        self.lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()), daemon=True)
        self._reader.start()
        eventually(
            lambda: any("metrics" in line for line in self.lines) or self.process.poll() is not None, lambda: "".join(self.lines)
        )
        assert self.process.poll() is None, "".join(self.lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGTERM)

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
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return self.process.returncode


def connect(address: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(address, timeout=PATIENCE_S)


def call(connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Send a request; return the status and the JSON of the answer."""
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())
