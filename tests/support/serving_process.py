"""`modyn serve` as a process of its own, on a stack that runs."""

from __future__ import annotations

import subprocess
import threading

from modyn.testing.stack import RunningStack, clean_environment
from modyn.testing.waiting import PATIENCE_S, eventually


class Serving:
    """A process of `modyn serve`, or of another command that serves, and its addresses."""

    def __init__(self, stack: RunningStack, *arguments: str, name: str = "serve") -> None:
        command = stack.command(name, *arguments)
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=stack.folder, env=clean_environment(None)
        )
        assert self.process.stderr is not None
        self.lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()), daemon=True)
        self._reader.start()
        eventually(lambda: any("metrics" in line for line in self.lines) or self.process.poll() is not None)
        assert self.process.poll() is None, "".join(self.lines)

    def field(self, name: str) -> str:
        return next(line.split()[1] for line in self.lines if line.split()[:1] == [name])

    @property
    def address(self) -> str:
        return self.field("http").split("/")[2]

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return self.process.returncode
