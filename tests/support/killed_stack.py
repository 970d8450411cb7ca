"""An installation whose processes are killed with `kill -9`, all of it or one after the other, and what its selector then holds."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from modyn.client import Client
from modyn.local.service_process import is_alive
from modyn.records import RunId
from modyn.selector.client import SelectorClient
from modyn.supervisor.client import RunState
from modyn.testing.stack import RunningStack
from modyn.testing.waiting import eventually

WORKERS: Final = "workers"
"""Name of the processes that train at this moment, among the names of services."""


@dataclass
class KilledStack:
    """A running stack, and a client that survives its kills."""

    stack: RunningStack
    client: Client

    def pids(self) -> dict[str, int]:
        """Return the processes of the installation by part; `stack` is the one that restarts the others."""
        status = self.client.status()
        assert status.pid is not None
        return {"stack": status.pid, **{part.name: part.pid for part in status.parts if part.pid is not None}}

    def kill(self, name: str) -> None:
        """`kill -9`, and wait until the part is back; `WORKERS`, those of the trainer server, are not waited for."""
        if name == WORKERS:
            self.kill_workers("trainer_server")
            return
        old = self.pids()[name]
        os.kill(old, signal.SIGKILL)
        eventually(
            lambda: any(part.name == name and part.healthy and part.pid != old for part in self.client.status().parts),
            f"{name} was not started again",
        )

    def kill_at_once(self, names: Sequence[str]) -> None:
        """`kill` several parts at the same time."""
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(self.kill, names))

    def kill_workers(self, service: str) -> int:
        """`kill -9` all worker processes that the service has at this moment; returns how many there were."""
        killed = 0
        for worker in [worker for helper in children(self.pids()[service]) for worker in children(helper)]:
            with suppress(ProcessLookupError):  # it ended a moment before
                os.kill(worker, signal.SIGKILL)
                killed += 1
        return killed

    @contextmanager
    def configured(self, *services: str, **sections: object) -> Iterator[None]:
        """Add `sections` to the system file inside the block, for the commands that start there and for `services`, which are killed at both
        ends so that they start with what is in the file."""
        file = self.stack.config_file
        before = file.read_text()
        file.write_text(yaml.safe_dump({**yaml.safe_load(before), **sections}))
        try:
            for name in services:
                self.kill(name)
            yield
        finally:
            file.write_text(before)
            for name in services:
                self.kill(name)

    def runs_under_kills(self, pipeline: Path, names: Sequence[str], num_kills: int, seed: int) -> Iterator[str]:
        """Run a pipeline again and again, and kill meanwhile one of `names` after the other, at moments that follow from `seed`.

        Yields: the name of each run that has finished. Raises: AssertionError: one did not, though it was resumed.
        """
        chance, num_killed = random.Random(seed), 0
        while num_killed < num_kills:
            run_id = self.client.run(pipeline).run_id
            while not self.client.show(run_id).is_terminal and num_killed < num_kills:
                time.sleep(chance.uniform(0.1, 1.0))
                self.kill(names[num_killed % len(names)])
                num_killed += 1
            run = self.client.wait(run_id)
            if run.state is RunState.INTERRUPTED:
                self.client.resume(run_id)
                run = self.client.wait(run_id)
            assert run.state is RunState.FINISHED, run.error
            yield run_id

    def kill_all(self) -> None:
        """Kill all parts at once, so that none can end cleanly; then `modyn up`."""
        pids = self.pids()
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        gone(lambda: [name for name, pid in pids.items() if is_alive(pid)])
        self.stack.up()

    def kill_stack(self) -> None:
        """Kill the process that restarts the others; then `modyn up`."""
        pids = self.pids()
        os.kill(pids["stack"], signal.SIGKILL)
        eventually(lambda: not is_alive(pids["stack"]))
        self.stack.up()
        assert not [name for name, pid in pids.items() if is_alive(pid)]


def children(pid: int) -> list[int]:
    """Return child processes, started by any thread."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue
    return [child for child in found if is_alive(child)]


def trigger_set_keys(client: Client, run_id: str, trigger_id: int) -> list[int]:
    """Return the keys of one trigger set, partition by partition."""
    with SelectorClient(client.config.endpoint("selector")) as selector:
        info = selector.trigger_set(RunId(run_id), trigger_id)
        parts = [selector.keys(info.run_id, trigger_id, partition).keys.tolist() for partition in range(info.num_partitions)]
    return [key for part in parts for key in part]


def gone(find: Callable[[], list[str]]) -> None:
    """Wait until `find` returns nothing."""
    eventually(lambda: not find(), find)
