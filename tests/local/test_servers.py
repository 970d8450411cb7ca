"""The embedded servers are real, restart on their folder, and end with their parent."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
import valkey

from modyn.errors import CorruptStateError, UnavailableError
from modyn.local.databases import PostgresServer, RedisServer, make_user
from modyn.local.service_process import is_alive
from modyn.testing.waiting import eventually


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that PostgreSQL's own user can reach: every pytest of this user that starts closes the parent of `tmp_path` to others."""
    with tempfile.TemporaryDirectory(prefix="modyn-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def query(url: str, statement: str) -> object:
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone() if cursor.description else None
    finally:
        connection.close()


def test_postgres_keeps_its_data_over_a_restart_and_a_kill(folder: Path) -> None:
    server = PostgresServer(folder / "deep folder with ünïcode" / "postgres")
    server.start()
    query(server.url, "CREATE TABLE kept (x int)")
    query(server.url, "INSERT INTO kept VALUES (7)")
    killed = server.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: server.pid != killed)
    again = PostgresServer(server.folder)
    again.start()
    assert query(again.url, "SELECT x FROM kept") == (7,)
    again.stop()
    server.stop()


def test_postgres_ends_with_its_parent(folder: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from modyn.local.databases import PostgresServer\n"
        f"server = PostgresServer(Path({str(folder)!r})); server.start(); print(server.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.communicate()
    eventually(lambda: not is_alive(pid))


def test_a_leftover_postgres_is_gone_before_the_next_starts(folder: Path) -> None:
    """This includes one that has removed its pid file already and still holds its memory."""
    pid_file = folder / "data" / "postmaster.pid"
    pid_file.parent.mkdir()
    program = (
        "import pathlib, signal, sys, time\n"
        "def end(*_): pathlib.Path(sys.argv[1], 'postmaster.pid').unlink(); time.sleep(0.5); sys.exit()\n"
        "signal.signal(signal.SIGINT, end); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(pid_file.parent)], stdout=subprocess.PIPE) as old:
        assert old.stdout is not None
        old.stdout.readline()
        pid_file.write_text(f"{old.pid}\n{pid_file.parent}\n")
        PostgresServer(folder)._end_leftover()
        assert not pid_file.exists()
        assert not is_alive(old.pid)


def test_a_first_start_that_was_killed_leaves_nothing_half_made(folder: Path) -> None:
    program = (
        "from pathlib import Path; from modyn.local.databases import PostgresServer\n"
        f"PostgresServer(Path({str(folder)!r})).start()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    eventually(lambda: any(folder.glob("data*/PG_VERSION")))
    parent.kill()
    parent.wait()
    assert not (folder / "data").exists(), "initdb was not done"
    # After a crash of the machine: initdb could not clean up, and has written the version.
    half_made = folder / "data.new-gone"
    half_made.mkdir()
    (half_made / "PG_VERSION").write_text("18\n")
    server = PostgresServer(folder)
    server.start()
    assert query(server.url, "SELECT 1") == (1,)
    server.stop()
    assert not half_made.exists()


def test_files_that_are_not_a_database_are_not_deleted(folder: Path) -> None:
    precious = folder / "data" / "base"
    precious.mkdir(parents=True)
    with pytest.raises(CorruptStateError, match="holds files but no PG_VERSION"):
        PostgresServer(folder).start()
    assert precious.exists()


def test_the_user_of_the_database_is_made_where_path_is_that_of_a_plain_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make users, and only root needs one")
    name = f"modyn-test-{os.getpid()}"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    try:
        make_user(name)
        assert pwd.getpwnam(name).pw_uid > 0
        make_user(name)
    finally:
        subprocess.run(["/usr/sbin/userdel", name], check=True, capture_output=True)
    with pytest.raises(
        UnavailableError, match="needs the user 'no:such', which .*useradd cannot make: .+; run Modyn as another user"
    ):
        make_user("no:such")


def test_where_no_user_can_be_made_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(UnavailableError, match="no program useradd, not even in /usr/sbin.*apt-get install passwd.*database_url"):
        make_user(f"modyn-test-{os.getpid()}")


def test_redis_answers(folder: Path) -> None:
    server = RedisServer(folder / "redis", folder)
    server.start()
    with valkey.Valkey.from_url(server.url) as client:
        client.set("a", b"1")
        assert client.get("a") == b"1"
        memory = client.info("memory")
        assert (memory["maxmemory"], memory["maxmemory_policy"]) == (0, "noeviction"), "the tiers keep to their budgets"
    assert (folder / "redis" / "url").read_text() == server.url
    assert server.stop() == 0
    assert server.pid is None
    assert not (folder / "redis" / "url").exists(), "no service takes it for one that runs"
