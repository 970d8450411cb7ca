"""One service as a process of its own, which may be killed and started again, and which never outlives its test.

with ServiceProcess("selector", config, tmp_path) as process:
    process.kill()
    process.start()
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from modyn.config.system import SystemConfig
from modyn.rpc.channel import is_serving
from modyn.testing.waiting import PATIENCE_S, eventually


def write_config(config: SystemConfig, folder: Path) -> Path:
    """Write all of a configuration, defaults too, to a system file for a process."""
    path = folder / "system.yaml"
    path.write_text(config.model_dump_json())
    return path


class ServiceProcess:
    """`name` is a service or replica-1, replica-2, … `folder` gets the system file and what the process writes."""

    def __init__(self, name: str, config: SystemConfig, folder: Path) -> None:
        self._endpoint = config.endpoint(name)
        self._log = folder / f"{name}.log"
        file = write_config(config, folder)
        module, *number = name.split("-")
        arguments = ["modyn.storage.replica", "--number", *number] if number else ["modyn.rpc", module]
        self.command = [sys.executable, "-X", "faulthandler", "-m", *arguments, "--config", str(file)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Returns once it serves, unless it is not to be waited for."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log)
        if wait:
            eventually(self._serves, self.said)

    def kill(self) -> None:
        """`kill -9`; returns when it is dead. Does nothing to one that is dead already."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self) -> int:
        """SIGTERM. The exit code. AssertionError with all that it wrote, and at last where its threads were, if it does not end."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)
            self._process.wait()
            raise AssertionError(f"it did not end within {PATIENCE_S:g} s:\n{self.said()}") from None

    def said(self) -> str:
        """All output of the process since its first start."""
        return self._log.read_text()

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.said()
        return is_serving(self._endpoint)
