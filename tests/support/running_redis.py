"""A Redis of its own for a test, which may be killed, stopped and started again, and which never outlives it.

with running_redis() as server:
    server.kill()
    server.start()
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis import Redis

from modyn.local.databases import RedisServer


class BreakableRedis(RedisServer):
    """The embedded server, and what may happen to it."""

    def start(self) -> None:
        """Start it with what the cache needs: what is full refuses, and evicts nothing by itself."""
        super().start()
        self.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")

    def kill(self) -> None:
        """`kill -9`; returns when it is dead."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def suspend(self) -> None:
        """Stop it by SIGSTOP: it accepts connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End `suspend`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def ask(self, *command: Any, password: str | None = None) -> Any:
        """Send one command, over a connection of its own."""
        with Redis.from_url(self.url, password=password) as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]


@contextmanager
def running_redis() -> Iterator[BreakableRedis]:
    """Start one in a folder of its own, with a short name: that of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="modyn-") as name:
        server = BreakableRedis(Path(name) / "redis", Path(name))
        server.start()
        try:
            yield server
        finally:
            server.go_on()
            server.stop()
