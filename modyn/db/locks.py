"""Advisory locks of PostgreSQL. One connection outside the pool holds all locks of a process, so that many locks need only one connection."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

from sqlalchemy import BigInteger, ColumnElement, Engine, Executable, cast, column, func, select, table
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from modyn.rpc.logs import get_logger

_SERVER_OPTIONS: Final = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
"""TCP keepalive of PostgreSQL: seconds of silence before the first probe, seconds between probes, and number of probes."""

_LOG = get_logger("db")


class AdvisoryLocks:
    """Named locks among all processes on a database. Thread-safe.

    When the connection breaks, PostgreSQL releases all locks of the connection. The next call connects again, and takes the locks that this
    process still uses. Callers with long pauses between calls use `keep`. If another process has taken a lock meanwhile, the lock is logged as
    lost. Writers do not rely on a lock alone: the attempt number in a run's row, or the rows of a dataset's segments, also protect their data.
    """

    def __init__(self, engine: Engine, schema: str) -> None:
        """Args: schema: schema of the service; each schema has its own locks."""
        self._engine = engine
        self._schema = schema
        # Protects the fields below and the use of the connection. The mutex is held during one statement, not while an advisory lock is held.
        self._mutex = threading.Lock()
        self._connection: Connection | None = None
        self._held: set[str] = set()

    def acquire(self, name: str) -> bool:
        """Take the lock. Returns False immediately if another thread or process holds the lock. Raises the errors of SQLAlchemy."""
        with self._mutex:
            # PostgreSQL would grant the lock again to the session that already holds the lock.
            if name in self._held or not self._call(select(func.pg_try_advisory_lock(self._key(name)))):
                return False
            self._held.add(name)
            return True

    def release(self, name: str) -> None:
        """Release the lock. Raises the errors of SQLAlchemy; even after an error, the lock is no longer held."""
        with self._mutex:
            self._held.remove(name)
            self._call(select(func.pg_advisory_unlock(self._key(name))))

    def is_held(self, name: str) -> bool:
        """Whether any process, including this one, holds the lock. The lock is not taken. Raises the errors of SQLAlchemy."""
        locks = table("pg_locks", *map(column, ("locktype", "database", "classid", "objid", "objsubid")))
        databases = table("pg_database", column("oid", BigInteger), column("datname"))
        database = select(databases.c.oid).where(databases.c.datname == func.current_database())
        # The view of PostgreSQL shows a key of 64 bits as two halves.
        key = cast(locks.c.classid, BigInteger).op("<<")(32).op("|")(cast(locks.c.objid, BigInteger))
        of_name = (locks.c.locktype == "advisory", locks.c.objsubid == 1, key == self._key(name))
        with self._mutex:
            return self._call(select(1).where(*of_name, locks.c.database == database.scalar_subquery()))

    def keep(self) -> None:
        """If the connection broke, take the locks of the connection again. Raises the errors of SQLAlchemy."""
        with self._mutex:
            if self._held:
                self._call(select(1))

    def close(self) -> None:
        """Close the connection, which releases all locks."""
        with self._mutex:
            self._disconnect()

    def _key(self, name: str) -> ColumnElement[int]:
        return func.hashtextextended(f"{self._schema}/{name}", 0)

    def _call(self, statement: Executable) -> bool:
        """Execute `statement`. If the current connection is broken, execute the statement again on a new connection."""
        if self._connection is not None:
            try:
                return bool(self._connection.scalar(statement))
            except DBAPIError as error:
                self._disconnect()
                if not error.connection_invalidated:
                    raise
        return bool(self._connect().scalar(statement))

    def _connect(self) -> Connection:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        connection.detach()  # this connection is held for long, and the pool is for short transactions
        # Without these settings, PostgreSQL would keep the locks of a lost machine for two hours, and the next connection could not take them.
        connection.execute(select(*(func.set_config(name, value, False) for name, value in _SERVER_OPTIONS.items())))
        self._connection = connection
        for name in self._held:
            if not self._call(select(func.pg_try_advisory_lock(self._key(name)))):
                _LOG.error("advisory_lock_lost", name=f"{self._schema}/{name}")
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError):  # The connection is broken.
                connection.close()
