"""Schema of one service in PostgreSQL. The service migrates the schema at its start, and uses it through sessions that commit or roll back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, Final, cast

import psycopg2.extensions
from sqlalchemy import URL, Column, Engine, create_engine, make_url, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from modyn.config.system import SystemConfig
from modyn.db.locks import AdvisoryLocks
from modyn.errors import ConfigError, ConflictError, UnavailableError
from modyn.json_codec import from_json, to_json

_LOCK_POLL_S: Final = 0.05

CONNECTION_OPTIONS: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Options of libpq, in seconds; the last option is in milliseconds. With these options, a lost network breaks a connection within a minute. Without
these options, the kernel would wait for a quarter of an hour, and `AdvisoryLocks` would hold its mutex for this time. Options in the URL of the
database take precedence.
"""


class Database:
    """A service's schema. If PostgreSQL cannot be reached, calls raise UnavailableError; the next session connects again."""

    def __init__(self, engine: Engine, schema: str, *, embedded: bool = False) -> None:
        """Args: embedded: whether the stack of this machine starts PostgreSQL, for messages."""
        self.engine = engine
        self._embedded = embedded
        self.schema = schema
        self._locks = AdvisoryLocks(engine, schema)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open a transaction. The end of the `with` block commits the transaction; an error rolls it back."""
        with self._reachable(), Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def raw(self) -> Iterator[psycopg2.extensions.connection]:
        """Open a psycopg2 connection for COPY and server-side cursors. The end of the `with` block commits its transaction; an error rolls back."""
        with self._reachable():
            pooled = self.engine.raw_connection()
            try:
                connection = cast("psycopg2.extensions.connection", pooled.driver_connection)
                yield connection
                connection.commit()
            except BaseException:
                pooled.invalidate()
                raise
            finally:
                pooled.close()

    @contextmanager
    def advisory_lock(self, name: str, wait_s: float = 0.0) -> Iterator[bool]:
        """Hold a lock among all processes on this database during a `with` block. Yields False if another thread or process holds the lock.

        Args: wait_s: seconds to wait until the lock is free.
        """
        give_up = time.monotonic() + wait_s
        with self._reachable():
            # The lock is polled, because PostgreSQL does not report its release. The lock becomes free when its holder releases it or ends.
            while not (held := self._locks.acquire(name)) and time.monotonic() < give_up:
                time.sleep(_LOCK_POLL_S)
        try:
            yield held
        finally:
            if held:
                with self._reachable():
                    self._locks.release(name)

    def is_locked(self, name: str) -> bool:
        """Whether any process on this database holds the advisory lock now."""
        with self._reachable():
            return self._locks.is_held(name)

    def keep_locks(self) -> None:
        """If the connection of the advisory locks broke, take the locks of this process again. The next use of a lock would also take them."""
        with self._reachable():
            self._locks.keep()

    def close(self) -> None:
        """Close all connections. Advisory locks that are still held are released."""
        self._locks.close()
        self.engine.dispose()

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except PoolTimeoutError as error:
            raise UnavailableError(
                f"all connections to PostgreSQL of the service '{self.schema}' are in use ({error}); try again when the service has less work"
            ) from error
        except (OperationalError, InterfaceError, psycopg2.OperationalError, psycopg2.InterfaceError) as error:
            raise self._unavailable(error) from error
        except DBAPIError as error:
            if error.connection_invalidated:
                raise self._unavailable(error) from error
            raise

    def _unavailable(self, error: Exception) -> UnavailableError:
        cause = str(getattr(error, "orig", error)).strip().splitlines()
        shown = self.engine.url.render_as_string(hide_password=True)
        advice = (
            "is it running? `modyn up` starts the embedded one" if self._embedded else "is it running, and reachable from here?"
        )
        return UnavailableError(f"PostgreSQL at {shown} cannot be used ({cause[0] if cause else error}); {advice}")


def columns(kind: Any, names: str, **options: Any) -> list[Column[Any]]:
    """Make columns of one type with the names in `names`, separated by spaces.

    Args: kind: an SQLAlchemy type. options: options of `sqlalchemy.Column`.
    """
    return [Column(name, kind, **options) for name in names.split()]


def open_database(config: SystemConfig, schema: str, migrations_package: str) -> Database:
    """Create or update a schema by the Alembic migrations in `migrations_package`, and open the schema.

    Raises: ConfigError: the URL is not a PostgreSQL URL, or leads to a pooler whose connections share sessions. UnavailableError: PostgreSQL cannot
    be reached. ConflictError: the schema belongs to another release."""
    url = _postgres_url(config.resolved_database_url())
    engine = create_engine(
        url,
        connect_args={**CONNECTION_OPTIONS, **url.query},
        json_serializer=to_json,
        json_deserializer=from_json,
        pool_size=8,
        max_overflow=24,
        pool_pre_ping=True,
        pool_recycle=1800,
    )
    database = Database(engine, schema, embedded=config.database_url is None)
    with database._reachable():
        refuse_shared_sessions(engine)
    with database._reachable(), engine.begin() as connection:
        # This lock is held until the end of the transaction. If two processes of a service start at the same time, one migrates and the other waits.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": f"migrate/{schema}"})
        if not connection.scalar(text("SELECT to_regnamespace(:schema) IS NOT NULL"), {"schema": f'"{schema}"'}):
            # With IF NOT EXISTS, a user would need the right to create schemas even if the schema exists (see `modyn.db.users`).
            connection.execute(text(f'CREATE SCHEMA "{schema}"'))
        migrate(connection, schema, migrations_package)
    return database


def refuse_shared_sessions(engine: Engine) -> None:
    """Raise ConfigError if two connections share a session of PostgreSQL, as with PgBouncer and `pool_mode = transaction`.

    In this mode, several connections use the same session, with its advisory locks, one after the other. So a connection sees the settings of
    another connection.
    """
    mark = uuid.uuid4().hex
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as one:
        one.execute(text("SELECT set_config('modyn.session', :mark, false)"), {"mark": mark})
        with engine.connect() as other:
            seen = other.scalar(text("SELECT current_setting('modyn.session', true)"))
    if seen == mark:
        raise ConfigError(
            "database_url: connections share sessions of PostgreSQL there, but each connection needs its own for advisory locks; set "
            "`pool_mode = session` in PgBouncer, or name PostgreSQL itself"
        )


def _postgres_url(url: str) -> URL:
    scheme, _, rest = url.partition("://")
    if not rest or scheme not in ("postgres", "postgresql", "postgresql+psycopg2"):
        # The message does not show the whole URL, because the URL may contain a password.
        shown = f"'{scheme}://…'" if rest else "what is there"
        raise ConfigError(
            f"database_url: {shown} is not a URL of PostgreSQL; begin it with postgresql://, postgres:// or postgresql+psycopg2://"
        )
    return make_url(url).set(drivername="postgresql+psycopg2")


def migrate(connection: Connection, schema: str, migrations_package: str) -> None:
    """Run the missing migrations of a package within the caller's transaction.

    Args: schema: schema of the service, which also stores the version of the migrations. migrations_package: `modyn.SERVICE.migrations`.
    Raises: ConflictError: the schema belongs to another release, whose migrations this release does not have.
    """
    versions = files(migrations_package) / "versions"
    revisions = [entry.name[:4] for entry in versions.iterdir() if entry.name[:4].isdigit()]
    has_table = connection.scalar(text("SELECT to_regclass(:table)"), {"table": f'"{schema}".alembic_version'}) is not None
    current = connection.scalar(text(f'SELECT version_num FROM "{schema}".alembic_version')) if has_table else None
    # Alembic is imported only if there is something to migrate, because the import takes 0.2 s.
    if current == max(revisions):
        return
    if current is not None and current not in revisions:
        raise ConflictError(
            f"schema '{schema}' of the database has revision {current}, which this release does not know; use the release that wrote it, "
            "or start with another database and state folder"
        )
    _upgrade(connection, schema, str(versions))


def _upgrade(connection: Connection, schema: str, versions: str) -> None:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory

    script = ScriptDirectory(str(files("modyn.db")), version_locations=[versions])
    options = {"version_table_schema": schema, "fn": lambda revision, _: script._upgrade_revs("head", cast("str", revision))}
    context = MigrationContext.configure(connection, opts=options)
    with Operations.context(context):
        context.run_migrations()
