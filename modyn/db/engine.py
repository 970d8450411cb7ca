"""The schema of one service in PostgreSQL: migrated when the service starts, used through sessions that commit or roll back."""

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
"""Options of libpq in seconds, the last in milliseconds: a network that is lost in silence breaks a connection within a minute, where the
kernel would wait for a quarter of an hour, with the lock of `AdvisoryLocks` held. Those in the URL of the database come before them."""


class Database:
    """A service's schema. Every failure to reach PostgreSQL raises UnavailableError; the next session connects anew."""

    def __init__(self, engine: Engine, schema: str, *, embedded: bool = False) -> None:
        """Args: embedded: the stack of this machine starts PostgreSQL; for messages."""
        self.engine = engine
        self._embedded = embedded
        self.schema = schema
        self._locks = AdvisoryLocks(engine, schema)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open a transaction: committed when the block ends, rolled back when it raises."""
        with self._reachable(), Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def raw(self) -> Iterator[psycopg2.extensions.connection]:
        """Open a psycopg2 connection for COPY and server-side cursors: committed at the end, rolled back on an error."""
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
        """Hold a lock among all processes on this database; yields False if another thread or process holds it.

        Args: wait_s: seconds in which it may become free.
        """
        give_up = time.monotonic() + wait_s
        with self._reachable():
            # Polled, because nothing reports it: the holder gives the lock back, or PostgreSQL does once it notices that its process is gone.
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
        """Take the advisory locks of this process again if their connection broke, as the next use of one does."""
        with self._reachable():
            self._locks.keep()

    def close(self) -> None:
        """Close all connections. Advisory locks that are still held are given back."""
        self._locks.close()
        self.engine.dispose()

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except PoolTimeoutError as error:
            raise UnavailableError(
                f"all connections to PostgreSQL of the service '{self.schema}' are in use ({error}); try again when it has less to do"
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
            "is it running? `modyn up` starts the embedded one" if self._embedded else "is it running, and reached from here?"
        )
        return UnavailableError(f"PostgreSQL at {shown} cannot be used ({cause[0] if cause else error}); {advice}")


def columns(kind: Any, names: str, **options: Any) -> list[Column[Any]]:
    """Make columns of one type with the names in `names`, separated by spaces.

    Args: kind: an SQLAlchemy type. options: those of `sqlalchemy.Column`.
    """
    return [Column(name, kind, **options) for name in names.split()]


def open_database(config: SystemConfig, schema: str, migrations_package: str) -> Database:
    """Open the schema `schema`, created and brought up to date by the Alembic migrations in `migrations_package`.

    Raises: ConfigError: the URL is not one of PostgreSQL, or is of a pooler whose connections share sessions. UnavailableError: PostgreSQL
        cannot be reached. ConflictError: the schema is of another release.
    """
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
        # Held to the end of the transaction: of two services that start at once, one migrates and the other waits.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": f"migrate/{schema}"})
        if not connection.scalar(text("SELECT to_regnamespace(:schema) IS NOT NULL"), {"schema": f'"{schema}"'}):
            # Not IF NOT EXISTS, for which a user needs the right also when the schema is there (see `modyn.db.users`).
            connection.execute(text(f'CREATE SCHEMA "{schema}"'))
        migrate(connection, schema, migrations_package)
    return database


def refuse_shared_sessions(engine: Engine) -> None:
    """Raise ConfigError if two connections share a session of PostgreSQL, as behind PgBouncer with `pool_mode = transaction`.

    Such a session passes from connection to connection, and its advisory locks with it. What one connection has set, another one then sees.
    """
    mark = uuid.uuid4().hex
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as one:
        one.execute(text("SELECT set_config('modyn.session', :mark, false)"), {"mark": mark})
        with engine.connect() as other:
            seen = other.scalar(text("SELECT current_setting('modyn.session', true)"))
    if seen == mark:
        raise ConfigError(
            "database_url: connections share sessions of PostgreSQL there, and advisory locks need one each; set `pool_mode = session` in "
            "PgBouncer, or name PostgreSQL itself"
        )


def _postgres_url(url: str) -> URL:
    scheme, _, rest = url.partition("://")
    if not rest or scheme not in ("postgres", "postgresql", "postgresql+psycopg2"):
        # Not the URL as a whole: it may hold a password.
        shown = f"'{scheme}://…'" if rest else "what stands there"
        raise ConfigError(
            f"database_url: {shown} is no URL of PostgreSQL; begin it with postgresql://, postgres:// or postgresql+psycopg2://"
        )
    return make_url(url).set(drivername="postgresql+psycopg2")


def migrate(connection: Connection, schema: str, migrations_package: str) -> None:
    """Run the missing migrations of the package inside the caller's transaction.

    Args: schema: of the service, where its version stands. migrations_package: `modyn.SERVICE.migrations`.
    Raises: ConflictError: the schema is of another release, whose migrations this one does not have.
    """
    versions = files(migrations_package) / "versions"
    revisions = [entry.name[:4] for entry in versions.iterdir() if entry.name[:4].isdigit()]
    has_table = connection.scalar(text("SELECT to_regclass(:table)"), {"table": f'"{schema}".alembic_version'}) is not None
    current = connection.scalar(text(f'SELECT version_num FROM "{schema}".alembic_version')) if has_table else None
    # Alembic takes 0.2 s to import, which a start with nothing to migrate must not pay.
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
