"""Functions with which other processes start and stop the stack of a state folder, and read its status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from modyn.atomic_write import make_folder
from modyn.config.system import SERVICES, SystemConfig
from modyn.errors import UnavailableError
from modyn.local.service_process import is_alive, runs_with
from modyn.state_folders import check_state, is_locked, make_private_folder, open_private, release_shared_memory

State = Literal["starting", "ready", "failed", "stopping", "stopped"]

START_PATIENCE_S = 90.0


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
    """The last status that the stack's process wrote. state: `stopped` if there is no stack, or if the stack was killed."""

    state: State
    pid: int | None = None
    error: str = ""
    parts: tuple[PartStatus, ...] = ()
    writer: int | None = None
    """Id of the process that wrote this status. If that process has ended, `pid` is None."""


def stack_status(config: SystemConfig) -> StackStatus:
    """Return the current status of the stack of the configuration's state folder."""
    try:
        written: dict[str, Any] = json.loads(status_file(config).read_text())
    except (OSError, ValueError):
        return StackStatus("stopped")
    state, writer = written["state"], written["pid"]
    runs = state not in ("failed", "stopped") and runs_with(writer, "modyn.local.stack")
    parts = tuple(PartStatus(**part) for part in written["parts"])
    return StackStatus(
        state if runs or state == "failed" else "stopped", writer if runs else None, written["error"], parts, writer
    )


def start_stack(
    config: SystemConfig, config_file: Path | None = None, progress: Callable[[StackStatus], None] | None = None
) -> StackStatus:
    """Start the stack unless the stack runs, and wait until each part is healthy.

    Args: config_file: file that is passed to the services; None: the services find the configuration as this process does. progress: function that is
    called with each status.
    Raises: UnavailableError: a part failed; the message has the end of the part's log. ConfigError: another version wrote the state folder.
    """
    check_folders(config)
    try:
        make_folder(config.state_dir, 0o700)
        make_private_folder(config.log_dir)
    except OSError as error:
        raise UnavailableError(
            f"the state folder {config.state_dir} cannot be written: {error.strerror}; set state_dir or MODYN_STATE_DIR"
        ) from error
    process = None if stack_status(config).pid is not None else _launch(config, config_file)
    deadline = time.monotonic() + START_PATIENCE_S + 60
    while time.monotonic() < deadline:
        status = stack_status(config)
        # The status of an earlier stack is ignored.
        if process is None or status.writer == process.pid:
            if progress is not None:
                progress(status)
            if status.state == "ready" and all(part.healthy for part in status.parts):
                return status
            if status.state == "failed":
                raise UnavailableError(f"the services could not be started: {status.error}")
        if process is not None and process.poll() is not None:
            if not is_locked(lock_file(config)):
                raise UnavailableError(f"the services could not be started: {last_words(config.log_file('stack'))}")
            # Another process has just started a stack, so this process waits for the status of that stack.
            process = None
            time.sleep(0.2)
        elif process is None and status.pid is None:
            process = _launch(config, config_file)
        time.sleep(0.03)  # The stack reports its state in a file, which is polled until `deadline`.
    raise UnavailableError(f"the services did not become healthy; see the logs in {config.log_dir}")


def _launch(config: SystemConfig, config_file: Path | None) -> subprocess.Popen[bytes]:
    """Start the stack in its own session, so that it outlives this process. With the option -P, files of the current folder do not shadow modules."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "modyn.local.stack",
        *(["--config", str(config_file.absolute())] if config_file else []),
    ]
    with open(config.log_file("stack"), "ab", opener=open_private) as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "MODYN_STATE_DIR": str(config.state_dir)},
        )
    # This process may outlive the stack. The thread collects the exit of the stack, so that no zombie stays.
    threading.Thread(target=process.wait, daemon=True, name="stack").start()
    return process


def stop_stack(config: SystemConfig, patience_s: float = 40.0) -> bool:
    """Stop the stack, and wait for its end. Returns whether a stack was running. Raises: UnavailableError: the stack did not end within `patience_s`
    seconds.
    """
    status = stack_status(config)
    if status.pid is None:
        # A killed stack leaves its cache in shared memory. The cache is kept if a stack is starting, or if a trainer server runs without a stack.
        if not any(map(is_locked, (lock_file(config), config.service_dir("trainer_server") / "lock"))):
            release_shared_memory(config.state_dir)
        return False
    os.kill(status.pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while is_alive(status.pid):  # polled, because the stack is not a child of this process
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the stack (process {status.pid}) did not stop within {patience_s:.0f} s; `kill -9 {status.pid}` ends it"
            )
        time.sleep(0.03)
    return True


def check_folders(config: SystemConfig) -> None:
    """Raise ConfigError if another version of Modyn wrote the state folder of a part of the stack."""
    for name in ("postgres", *SERVICES, *config.replicas):
        check_state(config.state_dir / name)


def status_file(config: SystemConfig) -> Path:
    """Return the file with the status of a running stack."""
    return config.state_dir / "stack.json"


def lock_file(config: SystemConfig) -> Path:
    """Return the file that a running stack locks, so that a state folder has at most one stack."""
    return config.state_dir / "stack.lock"


def last_words(log: Path) -> str:
    """Return the last unstructured line of a log, which gives the reason for the end of a process."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line and not line.startswith("{")]
    except OSError:
        return f"it left no log in {log}"
    return f"{lines[-1] if lines else 'it ended without a message'} (log: {log})"
