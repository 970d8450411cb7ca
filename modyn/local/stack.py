"""All services on this machine, supervised by one small process: `python -m modyn.local.stack`.

It starts what the system file does not point elsewhere: PostgreSQL and Redis unless their URLs are set, then the six services and replicas of
storage's payload server. What dies is started again, with a pause that grows; what is there when it ends, ends with it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

from modyn.config.system import SERVICES, SystemConfig, load_system_config
from modyn.errors import ConflictError, ModynError, UnavailableError
from modyn.local.postgres import PostgresServer
from modyn.local.process import alive, become_subreaper, is_locked, reap_orphans, spawn, stop_process
from modyn.local.redis import RedisServer

State = Literal["starting", "ready", "failed", "stopping", "stopped"]

START_PATIENCE_S = 90.0
_LOOK_EVERY_S = 0.05
_LEFTOVER_PATIENCE_S = 10.0
_PAUSES_S = (0.0, 0.2, 1.0, 3.0, 10.0)
"""Before the first, second, … restart of a part that keeps dying; one that has lived for a minute starts over at the first."""
_LONGEST_PAUSE_WHEN_HEALTHY = 1
"""Index of the longest pause before the restart of a part that was healthy when it died: runs wait for it. It can be short: to become
healthy takes a second and more, so that even one that dies again and again is not started all the time."""


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One process of the stack."""

    name: str
    pid: int | None
    address: str
    healthy: bool
    restarts: int


@dataclass(frozen=True, slots=True)
class StackStatus:
    """What the stack's process last wrote down. `stopped` when there is none, or when it was killed."""

    state: State
    pid: int | None = None
    error: str = ""
    parts: tuple[PartStatus, ...] = ()


class _Server(Protocol):
    @property
    def url(self) -> str: ...
    @property
    def pid(self) -> int | None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


class _ServiceProcess:
    """A service as a child process; a `_Server` like the databases."""

    def __init__(self, name: str, config: SystemConfig, config_file: Path | None) -> None:
        self._name = name
        self._config = config
        self._command = [sys.executable, "-m", *_program(name), *(["--config", str(config_file)] if config_file else [])]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = config.replicas.get(name, config.endpoint(name)).address

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        self._end_descendants()
        self._end_leftover()
        # State is where the stack says it is, whatever folder the service is started in.
        environment = {"MODYN_STATE_DIR": str(self._config.state_dir)}
        self._process = spawn(self._command, log_file(self._config, self._name), environment=environment)

    def _end_leftover(self) -> None:
        """A service whose stack was killed is on its way out: its death signal was sent. It must have let go of its folder before this one."""
        lock = self._config.service_dir(self._name) / "lock"
        asked_at = time.monotonic()
        first = True
        while is_locked(lock):
            pid = _service_pid(lock, self._name)
            waited = time.monotonic() - asked_at
            if pid is not None and (first or waited > _LEFTOVER_PATIENCE_S):
                os.kill(pid, signal.SIGTERM if first else signal.SIGKILL)
                first = False
            if waited > 2 * _LEFTOVER_PATIENCE_S:
                raise UnavailableError(
                    f"an old {self._name} service (process {pid}) still works on {lock.parent}; end it and try again"
                )
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            if stop_process(self._process) == -signal.SIGKILL:
                sys.stderr.write(f"{self._name} did not stop when it was asked to, and was killed\n")
            self._end_descendants()
            self._process = None

    def _end_descendants(self) -> None:
        """Workers end with their service by themselves, but one that is in the middle of its imports takes seconds to notice."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def ask_to_stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


@dataclass
class _Part:
    name: str
    server: _Server
    healthy: bool = False
    restarts: int = 0
    started_at: float = 0.0
    recent_deaths: int = 0
    restart_at: float = field(default=0.0)


class Stack:
    """The supervising loop. `run` returns the exit code of the process."""

    def __init__(self, config: SystemConfig, config_file: Path | None) -> None:
        self._config = config
        self._databases = _databases(config)
        names = (SERVICES[0], *config.replicas, *SERVICES[1:])
        self._services = [_Part(name, _ServiceProcess(name, config, config_file)) for name in names]
        self._stopping = False

    def run(self) -> int:
        become_subreaper()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)
        try:
            self._start()
        except ModynError as error:
            self._stop()
            self._write("failed", error.message)
            return 1
        while not self._stopping:
            self._look_after()
            time.sleep(_LOOK_EVERY_S)
        self._write("stopping")
        self._stop()
        self._write("stopped")
        return 0

    def _start(self) -> None:
        from modyn.rpc.server import prepare_run_dir

        self._write("starting")
        prepare_run_dir(self._config.run_dir)
        for part in self._databases:
            self._start_part(part)
            part.healthy = True
        for part in self._services:
            self._start_part(part)
        deadline = time.monotonic() + START_PATIENCE_S
        while not all(part.healthy for part in self._services):
            if self._stopping:
                return
            for part in self._services:
                self._check_start(part, deadline)
            time.sleep(_LOOK_EVERY_S)
        self._write("ready")

    def _check_start(self, part: _Part, deadline: float) -> None:
        if part.server.pid is None:
            raise UnavailableError(f"{part.name} did not start: {_last_words(self._config, part.name)}")
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"{part.name} did not become healthy in {START_PATIENCE_S:.0f} s; see {log_file(self._config, part.name)}"
            )
        if not part.healthy and _is_serving(self._config, part.name):
            part.healthy = True
            self._write("starting")

    def _look_after(self) -> None:
        """Starts again what has died, and notes what has become healthy."""
        now = time.monotonic()
        changed = False
        for part in (*self._databases, *self._services):
            if part.server.pid is None:
                changed |= self._bring_back(part, now)
            elif not part.healthy and (part in self._databases or _is_serving(self._config, part.name)):
                part.healthy = changed = True
        if changed:
            self._write("ready")
        reap_orphans(own=[part.server.pid or 0 for part in (*self._databases, *self._services)])

    def _bring_back(self, part: _Part, now: float) -> bool:
        if part.restart_at == 0.0:
            most = _LONGEST_PAUSE_WHEN_HEALTHY if part.healthy else len(_PAUSES_S) - 1
            part.recent_deaths = 0 if now - part.started_at > 60 else min(part.recent_deaths + 1, most)
            part.restart_at = now + _PAUSES_S[part.recent_deaths]
            part.healthy = False
        if now < part.restart_at:
            return False
        part.restarts += 1
        try:
            self._start_part(part)
        except UnavailableError as error:
            sys.stderr.write(f"{part.name} could not be started again: {error.message}\n")
            part.started_at, part.restart_at = now, 0.0
        return True

    def _start_part(self, part: _Part) -> None:
        part.started_at, part.restart_at = time.monotonic(), 0.0
        part.server.start()

    def _stop(self) -> None:
        for part in self._services:
            assert isinstance(part.server, _ServiceProcess)
            part.server.ask_to_stop()
        for part in reversed((*self._databases, *self._services)):
            part.server.stop()

    def _ask_to_stop(self, *_: object) -> None:
        self._stopping = True

    def _write(self, state: State, error: str = "") -> None:
        parts = [
            {"name": p.name, "pid": p.server.pid, "address": p.server.url, "healthy": p.healthy, "restarts": p.restarts}
            for p in (*self._databases, *self._services)
        ]
        path = _status_file(self._config)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".tmp")
        fresh.write_text(json.dumps({"state": state, "pid": os.getpid(), "error": error, "parts": parts}))
        fresh.replace(path)


def log_file(config: SystemConfig, part: str) -> Path:
    """Where a part of the stack logs to; `stack` is the supervising process itself."""
    if part in ("postgres", "redis"):
        return config.state_dir / part / "log"
    return config.log_dir / f"{part}.log"


def stack_status(config: SystemConfig) -> StackStatus:
    """The stack of this state folder as it is now."""
    return _read_status(config)[0]


def _read_status(config: SystemConfig) -> tuple[StackStatus, int | None]:
    """With the process that wrote it, which may be gone."""
    try:
        written: dict[str, Any] = json.loads(_status_file(config).read_text())
    except (OSError, ValueError):
        return StackStatus("stopped"), None
    parts = tuple(PartStatus(**part) for part in written["parts"])
    state, pid = written["state"], written["pid"]
    if state in ("failed", "stopped") or not _is_running(pid, "modyn.local.stack"):
        return StackStatus("failed" if state == "failed" else "stopped", None, written["error"], parts), pid
    return StackStatus(state, pid, written["error"], parts), pid


def start_stack(
    config: SystemConfig, config_file: Path | None = None, progress: Callable[[StackStatus], None] | None = None
) -> StackStatus:
    """Starts the stack unless it runs, and waits until every part is healthy. A stack that runs is left alone, but waited for.

    Raises UnavailableError with the last words of the part that failed.
    """
    try:
        config.log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(
            f"the state folder {config.state_dir} cannot be written: {error.strerror}; set state_dir or MODYN_STATE_DIR"
        ) from error
    process = None if stack_status(config).pid is not None else _launch(config, config_file)
    deadline = time.monotonic() + START_PATIENCE_S + 60
    while time.monotonic() < deadline:
        status, writer = _read_status(config)
        # What an earlier stack left behind says nothing about the one that was just launched.
        if process is None or writer == process.pid:
            if progress is not None:
                progress(status)
            if status.state == "ready" and all(part.healthy for part in status.parts):
                return status
            if status.state == "failed":
                raise UnavailableError(f"the services could not be started: {status.error}")
        if process is not None and process.poll() is not None:
            if not is_locked(_lock_file(config)):
                raise UnavailableError(f"the services could not be started: {_last_words(config, 'stack')}")
            # Somebody else was a moment faster: their stack is ours as well, once it has written something down.
            process = None
            time.sleep(0.2)
        elif process is None and status.pid is None:
            process = _launch(config, config_file)
        time.sleep(0.03)
    raise UnavailableError(f"the services did not become healthy; see the logs in {config.log_dir}")


def _launch(config: SystemConfig, config_file: Path | None) -> subprocess.Popen[bytes]:
    """A stack of its own session, which outlives this process."""
    command = [sys.executable, "-m", "modyn.local.stack", *(["--config", str(config_file.absolute())] if config_file else [])]
    with log_file(config, "stack").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "MODYN_STATE_DIR": str(config.state_dir)},
        )
    # Whoever starts a stack may live longer than it: somebody has to collect its exit.
    threading.Thread(target=process.wait, daemon=True, name="stack").start()
    return process


def stop_stack(config: SystemConfig, patience_s: float = 40.0) -> bool:
    """Stops the stack and waits for its end. Returns whether one was running."""
    status = stack_status(config)
    if status.pid is None:
        return False
    os.kill(status.pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while alive(status.pid):
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the stack (process {status.pid}) did not stop within {patience_s:.0f} s; `kill -9 {status.pid}` ends it"
            )
        time.sleep(0.03)
    return True


def _databases(config: SystemConfig) -> list[_Part]:
    parts = []
    if config.database_url is None:
        parts.append(_Part("postgres", PostgresServer(config.state_dir / "postgres")))
    if config.redis_url is None:
        parts.append(_Part("redis", RedisServer(config.state_dir / "redis", config.run_dir)))
    return parts


def _is_serving(config: SystemConfig, name: str) -> bool:
    from modyn.rpc.channel import is_serving

    return is_serving(config.endpoint(name), timeout_s=0.5)


def _status_file(config: SystemConfig) -> Path:
    return config.state_dir / "stack.json"


def _last_words(config: SystemConfig, part: str) -> str:
    path = log_file(config, part)
    try:
        lines = [line for line in path.read_text(errors="replace").splitlines() if line and not line.startswith("{")]
    except OSError:
        return f"it left no log in {path}"
    return f"{lines[-1] if lines else 'it ended without a word'} (log: {path})"


def _lock_file(config: SystemConfig) -> Path:
    return config.state_dir / "stack.lock"


def _lock(config: SystemConfig) -> TextIO:
    config.state_dir.mkdir(parents=True, exist_ok=True)
    handle = _lock_file(config).open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise ConflictError(f"another stack runs on {config.state_dir}; `modyn down` stops it") from None
    return handle


def _service_pid(lock: Path, name: str) -> int | None:
    """The process that wrote itself into a service's lock file, if it is one."""
    try:
        pid = int(lock.read_text())
    except (OSError, ValueError):
        return None
    return pid if _is_running(pid, _program(name)[0]) else None


def _program(name: str) -> list[str]:
    """Module and arguments that make the process of a service."""
    kind, _, number = name.partition("-")
    return ["modyn.storage.replica", "--number", number] if kind == "replica" else [f"modyn.{name}"]


def _is_running(pid: int, module: str) -> bool:
    """Whether the process still is the one that was started as `python -m module`: numbers of processes are used again."""
    try:
        return alive(pid) and module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description="Run all services of Modyn on this machine until SIGTERM.")
    parser.add_argument("--config", type=Path, help="system configuration file")
    config_file = parser.parse_args().config
    try:
        config = load_system_config(config_file)
        lock = _lock(config)
    except ModynError as error:
        sys.stderr.write(f"modyn: {error.message}\n")
        return 1
    with lock:
        return Stack(config, config_file).run()


if __name__ == "__main__":
    raise SystemExit(main())
