"""Sessions commit or leave nothing; migrations run once; a database that is gone is an UnavailableError, and comes back."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from sqlalchemy import NullPool, StaticPool, create_engine, make_url, text

from modyn.config.system import SystemConfig
from modyn.db.engine import Database, open_database, refuse_shared_sessions
from modyn.errors import ConfigError, ConflictError, UnavailableError
from modyn.local.databases import PostgresServer
from modyn.testing.waiting import PATIENCE_S

SO_ATTACH_FILTER = 26
"""An option of Linux that module socket lacks."""
MIGRATION = """
from alembic import op
import sqlalchemy as sa
revision = "{number}"
down_revision = {down}
def upgrade():
    op.create_table("{table}", sa.Column("x", sa.Integer, primary_key=True), schema="demo")
"""


@pytest.fixture
def migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    versions = tmp_path / "demo_migrations" / "versions"
    versions.mkdir(parents=True)
    (versions.parent / "__init__.py").touch()
    (versions / "0001_initial.py").write_text(MIGRATION.format(number="0001", down=None, table="first"))
    monkeypatch.syspath_prepend(tmp_path)
    yield versions
    sys.modules.pop("demo_migrations", None)


@pytest.fixture
def connect(system_config: SystemConfig, migrations: Path) -> Iterator[Callable[[], Database]]:
    """Open the database, which migrates it."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(open_database(system_config, "demo", "demo_migrations")))


@pytest.fixture
def database(connect: Callable[[], Database]) -> Database:
    return connect()


def tables(database: Database) -> set[str]:
    with database.session() as session:
        return set(session.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'demo'")))


def test_migrations_run_once_and_continue_where_they_stopped(connect: Callable[[], Database], migrations: Path) -> None:
    connect()
    assert tables(connect()) == {"first", "alembic_version"}
    (migrations / "0002_more.py").write_text(MIGRATION.format(number="0002", down='"0001"', table="second"))
    assert tables(connect()) == {"first", "second", "alembic_version"}


@pytest.mark.parametrize(
    ("url", "shown"), [("mysql://me:secret@host/name", "'mysql://…'"), ("me:secret@host/name", "what is there")]
)
def test_a_url_of_another_database_is_refused_without_its_password(tmp_path: Path, url: str, shown: str) -> None:
    with pytest.raises(
        ConfigError, match=f"database_url: {shown} is not a URL of PostgreSQL; begin it with postgresql://"
    ) as caught:
        open_database(SystemConfig(state_dir=tmp_path, database_url=url), "demo", "demo_migrations")
    assert "secret" not in str(caught.value)


def test_a_schema_of_another_release_is_refused_and_left_as_it_is(connect: Callable[[], Database], migrations: Path) -> None:
    connect()
    ours = migrations / "0001_initial.py"
    theirs = ours.rename(migrations / "2001_initial.py")
    theirs.write_text(MIGRATION.format(number="2001", down=None, table="second"))
    with pytest.raises(ConflictError, match="schema 'demo' of the database has revision 0001, which this release does not know"):
        connect()
    theirs.rename(ours).write_text(MIGRATION.format(number="0001", down=None, table="first"))
    assert tables(connect()) == {"first", "alembic_version"}


def test_two_starts_at_once_migrate_once(connect: Callable[[], Database]) -> None:
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda _: connect(), range(4)))
    assert all(tables(database) == {"first", "alembic_version"} for database in opened)


def test_a_block_that_raises_leaves_nothing(database: Database) -> None:
    with pytest.raises(RuntimeError), database.session() as session:
        session.execute(text("INSERT INTO demo.first VALUES (1)"))
        raise RuntimeError
    with pytest.raises(RuntimeError), database.raw() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO demo.first VALUES (2)")
        raise RuntimeError
    with database.raw() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO demo.first VALUES (3)")
    with database.session() as session:
        assert list(session.scalars(text("SELECT x FROM demo.first"))) == [3]


def test_one_holder_of_an_advisory_lock(database: Database) -> None:
    with database.advisory_lock("a") as first, database.advisory_lock("a") as second, database.advisory_lock("b") as other:
        assert (first, second, other) == (True, False, True)
    with database.advisory_lock("a") as later:
        assert later


def test_an_advisory_lock_is_waited_for(connect: Callable[[], Database]) -> None:
    ours, theirs = connect(), connect()
    with ExitStack() as holder:
        assert holder.enter_context(theirs.advisory_lock("a"))
        with ours.advisory_lock("a", wait_s=0.1) as in_vain:
            assert not in_vain
        release = threading.Timer(0.1, holder.close)
        release.start()
        with ours.advisory_lock("a", wait_s=PATIENCE_S) as held:
            assert held
        release.join()


ADVISORY = (
    "FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def test_a_hundred_locks_take_one_connection(database: Database) -> None:
    """There are more locks than connections in the pool, and sessions still get a connection."""
    with ExitStack() as locks:
        assert all(locks.enter_context(database.advisory_lock(f"run/{number}")) for number in range(100))
        with database.session() as session:
            assert session.scalar(text(f"SELECT count(DISTINCT pid) {ADVISORY}")) == 1
            assert session.scalar(text(f"SELECT count(*) {ADVISORY}")) == 100
    with database.session() as session:
        assert session.scalar(text(f"SELECT count(*) {ADVISORY}")) == 0


def test_locks_are_taken_again_after_their_connection_was_cut(connect: Callable[[], Database]) -> None:
    ours, theirs = connect(), connect()
    with ours.advisory_lock("a") as held:
        assert held
        with theirs.session() as session:
            assert list(session.scalars(text(f"SELECT pg_terminate_backend(pid, 10000) {ADVISORY}"))) == [True]
        with ours.advisory_lock("b") as other, theirs.advisory_lock("a") as again:
            assert (other, again) == (True, False)
    with theirs.advisory_lock("a") as later:
        assert later


def test_locks_are_kept_without_a_call_for_one_of_them(connect: Callable[[], Database]) -> None:
    ours, theirs = connect(), connect()
    ours.keep_locks()
    assert not theirs.is_locked("a")
    with ours.advisory_lock("a"):
        assert theirs.is_locked("a")
        assert not theirs.is_locked("b")
        with theirs.session() as session:
            assert list(session.scalars(text(f"SELECT pg_terminate_backend(pid, 10000) {ADVISORY}"))) == [True]
        assert not theirs.is_locked("a")
        ours.keep_locks()
        assert theirs.is_locked("a")
    assert not theirs.is_locked("a")


class Network:
    """A TCP connection to a server on a Unix socket. The network can fail silently."""

    DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0

    def __init__(self, target: Path) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, server = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
                server.connect(str(self._target))
                self._sockets += [client, server]
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    def lose(self) -> None:
        """Accept no connections, and neither answer nor acknowledge packets of existing connections."""
        self._stop_listening()
        program = struct.pack("HP", 1, ctypes.addressof(self.DROP_ALL))
        for client in self._sockets[::2]:
            client.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def _stop_listening(self) -> None:
        with suppress(OSError):  # it is closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def close(self) -> None:
        self._stop_listening()
        for end in self._sockets:
            end.close()


@pytest.fixture
def over_network(system_config: SystemConfig) -> Iterator[tuple[Network, SystemConfig]]:
    url = make_url(system_config.resolved_database_url())
    with closing(Network(Path(str(url.query["host"]), ".s.PGSQL.5432"))) as network:
        there = url.difference_update_query(["host"]).set(host="127.0.0.1", port=network.port)
        shown = there.render_as_string(hide_password=False)
        yield network, system_config.model_copy(update={"database_url": shown})


def test_connections_notice_a_network_that_is_gone(over_network: tuple[Network, SystemConfig], migrations: Path) -> None:
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    with (
        closing(open_database(over_network[1], "demo", "demo_migrations")) as database,
        database.raw() as connection,
        socket.socket(fileno=os.dup(connection.fileno())) as used,
    ):
        assert [used.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [30, 10, 3, 30000]


def test_a_network_that_is_lost_in_silence_hangs_no_lock(over_network: tuple[Network, SystemConfig], migrations: Path) -> None:
    """The options of the URL come before ours, so that the test need not wait for half a minute."""
    network, config = over_network
    config = config.model_copy(update={"database_url": f"{config.database_url}?tcp_user_timeout=300"})
    with closing(open_database(config, "demo", "demo_migrations")) as database, ExitStack() as lost:
        assert lost.enter_context(database.advisory_lock("a"))
        network.lose()
        with pytest.raises(UnavailableError), database.advisory_lock("b"):
            pass
        with pytest.raises(UnavailableError):
            lost.close()


def test_connections_that_share_a_session_are_refused(system_config: SystemConfig) -> None:
    """PgBouncer with `pool_mode = transaction` shares a session like this."""
    url = make_url(system_config.resolved_database_url()).set(drivername="postgresql+psycopg2")
    refuse_shared_sessions(create_engine(url, poolclass=NullPool))
    shared = create_engine(url, poolclass=StaticPool)
    with pytest.raises(ConfigError, match="pool_mode = session"):
        refuse_shared_sessions(shared)
    shared.dispose()


def test_a_pool_without_a_free_connection_is_named(database: Database) -> None:
    engine = create_engine(database.engine.url, pool_size=1, max_overflow=0, pool_timeout=0.01)
    narrow = Database(engine, "demo")
    with narrow.session() as session:
        session.execute(text("SELECT 1"))
        with (
            pytest.raises(UnavailableError, match="all connections to PostgreSQL of the service 'demo' are in use"),
            narrow.session() as second,
        ):
            second.execute(text("SELECT 1"))
    narrow.close()


def test_a_server_that_goes_away_is_named_and_may_come_back(tmp_path: Path, migrations: Path) -> None:
    server = PostgresServer(tmp_path / "pg")
    server.start()
    database = open_database(SystemConfig(state_dir=tmp_path, database_url=server.url), "demo", "demo_migrations")
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "url").write_text(server.url)
    embedded = open_database(SystemConfig(state_dir=tmp_path), "demo", "demo_migrations")
    server.stop()
    for refused, advice in (
        (database, r"is it running, and reachable from here\?$"),
        (embedded, r"is it running\? `modyn up` starts the embedded one$"),
    ):
        with (
            pytest.raises(UnavailableError, match=rf"PostgreSQL at .* cannot be used \(.*\); {advice}"),
            refused.session() as session,
        ):
            session.execute(text("SELECT 1"))
    embedded.close()
    server.start()
    with database.session() as session:
        assert session.scalar(text("SELECT 1")) == 1
    database.close()
    server.stop()
