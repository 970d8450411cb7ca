"""The process that supervises all services on this machine: `python -m modyn.local.stack`.

This process starts PostgreSQL and Redis, unless the system file has their URLs. Then it starts the six services and the replicas of storage's payload
server as forks (`preloaded.py`). The process restarts a part that dies, with increasing pauses. When the process ends, all parts end, and the memory
of the cache is freed.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from modyn.atomic_write import write_atomically
from modyn.config.system import SERVICES, SystemConfig, load_system_config
from modyn.errors import ModynError, UnavailableError
from modyn.local.control import START_PATIENCE_S, State, check_folders, last_words, lock_file, status_file
from modyn.local.databases import PostgresServer, RedisServer
from modyn.local.preloaded import fork_program, preload
from modyn.local.service_process import ChildProcess, become_subreaper, reap_orphans, running_pid
from modyn.log_files import is_output, keep_output, rotate
from modyn.rpc.environment import look_here_last
from modyn.state_folders import (
    SERVING_FILE,
    claim_state,
    hold_lock,
    is_locked,
    keep_private,
    prepare_run_dir,
    release_shared_memory,
)

_POLL_WHEN_STARTING_S = 0.05
"""Seconds between two polls while parts start. The end of a part also wakes this process."""
_POLL_WHEN_WELL_S = 1.0
"""Seconds between two polls while all parts are healthy. These polls check the sizes of logs."""
_PAUSES_S = (0.0, 0.2, 1.0, 3.0, 10.0)
"""Seconds before the first, second, … restart of a part that keeps dying. After a minute without a death, the first pause is used again."""
_LONGEST_PAUSE_WHEN_HEALTHY = 1
"""Index of the longest pause before the restart of a part that was healthy when it died. This pause is short, because runs wait for the part. The
rate of restarts is still bounded, because a part takes longer than this pause to become healthy.
"""


class ServiceProcess(ChildProcess):
    """A service, or a replica of storage's payload server, as a fork of this process."""

    def __init__(self, name: str, config: SystemConfig, config_file: Path | None) -> None:
        """Args: config_file: file that is passed to the service; None: the service finds the configuration as this process does."""
        self._name = name
        self._config = config
        kind, _, number = name.partition("-")
        self._program = ["modyn.storage.replica", "--number", number] if kind == "replica" else ["modyn.rpc", name]
        self._arguments = ["--config", str(config_file)] if config_file else []
        self.url = config.replicas.get(name, config.endpoint(name)).address

    def start(self) -> None:
        """End leftover processes of an earlier start, then start the service. Raises UnavailableError: an old process keeps the service's folder."""
        if self._process is not None:
            _end_group(self._process.pid)
        self._end_leftover()
        with suppress(FileNotFoundError, NotADirectoryError):
            self._serving_file.unlink()
        # With this variable, the state folder does not depend on the folder in which the service is started.
        environment = {"MODYN_STATE_DIR": str(self._config.state_dir)}
        self._process = fork_program([*self._program, *self._arguments], self._config.log_file(self._name), environment)

    @property
    def is_serving(self) -> bool:
        """Whether the service has written its file since `start`. The check uses a file and not gRPC, because later forks could not use gRPC if this
        process had used it.
        """
        return self._serving_file.exists()

    @property
    def _serving_file(self) -> Path:
        """Return the file that the service writes when it answers calls."""
        return self._config.service_dir(self._name) / SERVING_FILE

    def stop(self) -> int | None:
        """Stop the service and its workers. Returns the exit code; None: the service was not started. If the service must be killed, this is
        reported on standard error.
        """
        group = self._process.pid if self._process is not None else None
        code = super().stop()
        if code == -signal.SIGKILL:
            sys.stderr.write(f"{self._name} did not stop after the stop signal, and was killed\n")
        if group is not None:
            _end_group(group)
        return code

    def _end_leftover(self) -> None:
        """End a service whose stack was killed, and wait until it has released its folder for the new service. The kernel has already sent the death
        signal.
        """
        lock = self._config.service_dir(self._name) / "lock"
        asked_at = time.monotonic()
        first = True
        while is_locked(lock):
            pid = running_pid(lock, *self._program)
            waited = time.monotonic() - asked_at
            if pid is not None and (first or waited > self.stop_patience_s):
                os.kill(pid, signal.SIGTERM if first else signal.SIGKILL)
                first = False
            if waited > 2 * self.stop_patience_s:
                # The owner may be another version with another command line. Such a process is not ended here.
                owner = lock.read_text()
                raise UnavailableError(
                    f"an old {self._name} service (process {owner}) still works on {lock.parent}; end it and try again"
                )
            time.sleep(0.02)  # The old service is no child of this process, so only its lock shows that it has ended.


def _end_group(pid: int) -> None:
    """Kill the processes that a service left. Workers also end by themselves, but a worker that imports modules ends only after seconds."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


@dataclass
class Part:
    """One process of the stack, and the time of its next start, by `time.monotonic`."""

    name: str
    server: ChildProcess
    healthy: bool = False
    restarts: int = 0
    started_at: float = 0.0
    restart_at: float | None = None
    _recent_deaths: int = 0

    def start(self) -> None:
        """Start the process, and clear the planned restart."""
        self.started_at, self.restart_at = time.monotonic(), None
        self.server.start()

    def plan_restart(self, now: float) -> float:
        """Plan the restart of a dead process, unless the restart is planned already. Returns the time of the restart."""
        if self.restart_at is None:
            most = _LONGEST_PAUSE_WHEN_HEALTHY if self.healthy else len(_PAUSES_S) - 1
            self._recent_deaths = 0 if now - self.started_at > 60 else min(self._recent_deaths + 1, most)
            self.restart_at = now + _PAUSES_S[self._recent_deaths]
            self.healthy = False
        return self.restart_at


class Stack:
    """Supervisor of the parts."""

    def __init__(self, config: SystemConfig, config_file: Path | None) -> None:
        """Args: config_file: see `ServiceProcess`."""
        self._config = config
        self._databases: list[Part] = []
        if config.database_url is None:
            self._databases.append(Part("postgres", PostgresServer(config.state_dir / "postgres")))
        if config.redis_url is None:
            self._databases.append(Part("redis", RedisServer(config.state_dir / "redis", config.run_dir)))
        names = (SERVICES[0], *config.replicas, *SERVICES[1:])
        self._services = [Part(name, ServiceProcess(name, config, config_file)) for name in names]
        self._parts = (*self._databases, *self._services)
        log = config.log_file("stack")
        self._log = log if is_output(log) else None
        self._stopping = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """Pipe that gets a byte for each signal. The byte wakes `_wait`."""

    def run(self) -> int:
        """Start all parts, restart dead parts until SIGTERM or SIGINT, then stop all parts. Returns the exit code."""
        become_subreaper()
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler, the signal would not write to the pipe
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)
        try:
            self._start()
        except ModynError as error:
            self._stop()
            self._write("failed", error.message)
            return 1
        while not self._stopping:
            self._keep_running()
            self._wait()
        self._write("stopping")
        self._stop()
        self._write("stopped")
        return 0

    def _start(self) -> None:
        self._write("starting")
        prepare_run_dir(self._config.run_dir)
        # A killed stack leaves its cache in memory. The cache is removed, because the configured budgets may have changed since.
        release_shared_memory(self._config.state_dir)
        if self._config.database_url is None:
            claim_state(self._config.state_dir / "postgres")
        for part in self._databases:
            part.start()
            part.healthy = True
        preload()
        for part in self._services:
            part.start()
        deadline = time.monotonic() + START_PATIENCE_S
        while not self._stopping:
            for part in self._services:
                self._check_start(part, deadline)
            if all(part.healthy for part in self._services):
                self._write("ready")
                return
            self._wait()

    def _check_start(self, part: Part, deadline: float) -> None:
        log = self._config.log_file(part.name)
        if part.server.pid is None:
            raise UnavailableError(f"{part.name} did not start: {last_words(log)}")
        if time.monotonic() > deadline:
            raise UnavailableError(f"{part.name} did not become healthy in {START_PATIENCE_S:.0f} s; see {log}")
        if not part.healthy and part.server.is_serving:
            part.healthy = True
            self._write("starting")

    def _keep_running(self) -> None:
        """Restart dead parts, mark healthy parts, and rotate logs."""
        now = time.monotonic()
        changed = False
        for part in self._parts:
            if part.server.pid is None:
                changed |= self._restart(part, now)
            elif not part.healthy and part.server.is_serving:
                part.healthy = changed = True
        for part in self._databases:  # services rotate their logs themselves
            with suppress(OSError):
                rotate(self._config.log_file(part.name), self._config.logs.limits, copy=True)
        if self._log is not None:
            keep_output(self._log, self._config.logs.limits)
        if changed:
            self._write("ready")
        reap_orphans(own=[part.server.pid or 0 for part in self._parts])

    def _restart(self, part: Part, now: float) -> bool:
        """Restart a dead part if the restart is due. Returns whether the part was restarted."""
        if now < part.plan_restart(now):
            return False
        part.restarts += 1
        try:
            part.start()
        except UnavailableError as error:
            sys.stderr.write(f"{part.name} could not be started again: {error.message}\n")
            part.started_at, part.restart_at = now, None
        return True

    def _stop(self) -> None:
        # All services are asked to stop first, so that they end concurrently. Databases end last, because services may still write to them.
        for part in self._services:
            part.server.ask_to_stop()
        for part in reversed(self._parts):
            part.server.stop()
        release_shared_memory(self._config.state_dir)  # trainings have ended with the trainer server

    def _ask_to_stop(self, *_: object) -> None:
        self._stopping = True

    def _wait(self) -> None:
        """Wait until the next poll is due, or until a signal arrives: a process of the stack has ended, or this process should stop."""
        well = all(part.healthy and part.server.pid is not None for part in self._parts)
        select.select([self._reader], [], [], _POLL_WHEN_WELL_S if well else _POLL_WHEN_STARTING_S)
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def _write(self, state: State, error: str = "") -> None:
        parts = [
            {"name": p.name, "pid": p.server.pid, "address": p.server.url, "healthy": p.healthy, "restarts": p.restarts}
            for p in self._parts
        ]
        path = status_file(self._config)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [json.dumps({"state": state, "pid": os.getpid(), "error": error, "parts": parts}).encode()])


def main() -> int:
    """Run the stack with the configuration of the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Run all services of Modyn on this machine until SIGTERM.")
    parser.add_argument("--config", type=Path, help="system configuration file")
    config_file = parser.parse_args().config
    keep_private()
    look_here_last()
    try:
        config = load_system_config(config_file)
        check_folders(config)
        config.state_dir.mkdir(parents=True, exist_ok=True)
        lock = hold_lock(lock_file(config), f"another stack runs on {config.state_dir}; `modyn down` stops it")
    except ModynError as error:
        sys.stderr.write(f"modyn: {error.message}\n")
        return 1
    with lock:
        return Stack(config, config_file).run()


if __name__ == "__main__":
    raise SystemExit(main())
