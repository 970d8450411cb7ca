"""Advisory locks of PostgreSQL: all those of a process on one connection beside the pool, so that many locks need no more connections."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

from sqlalchemy import BigInteger, ColumnElement, Engine, Executable, cast, column, func, select, table
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from modyn.rpc.logs import get_logger

_SERVER_OPTIONS: Final = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
"""Seconds after which PostgreSQL looks whether the client of a silent connection is there, and between its questions; and their number."""

_LOG = get_logger("db")


class AdvisoryLocks:
    """Named locks among all processes on a database. Safe to use from any thread.

    When the connection breaks, PostgreSQL gives all its locks back. The next call connects again and takes those that are still in use
    (`keep` is there for callers that make none for long); one that another process has taken meanwhile is logged as lost. Every writer
    under a lock has its own fence against that: the attempt in a run's row, the rows of a dataset's segments.
    """

    def __init__(self, engine: Engine, schema: str) -> None:
        """Args: schema: of the service; locks of other schemas are others."""
        self._engine = engine
        self._schema = schema
        # Protects the fields below and the use of the connection: held for one statement, not while a lock is held.
        self._mutex = threading.Lock()
        self._connection: Connection | None = None
        self._held: set[str] = set()

    def acquire(self, name: str) -> bool:
        """Take the lock; False at once if it is held, by another thread or another process. Raises the errors of SQLAlchemy."""
        with self._mutex:
            # The session of PostgreSQL would grant a lock that it has to itself again.
            if name in self._held or not self._call(select(func.pg_try_advisory_lock(self._key(name)))):
                return False
            self._held.add(name)
            return True

    def release(self, name: str) -> None:
        """Give the lock back. Raises the errors of SQLAlchemy; the lock is not held then either."""
        with self._mutex:
            self._held.remove(name)
            self._call(select(func.pg_advisory_unlock(self._key(name))))

    def is_held(self, name: str) -> bool:
        """Whether any process holds the lock, this one included; takes nothing. Raises the errors of SQLAlchemy."""
        locks = table("pg_locks", *map(column, ("locktype", "database", "classid", "objid", "objsubid")))
        databases = table("pg_database", column("oid", BigInteger), column("datname"))
        database = select(databases.c.oid).where(databases.c.datname == func.current_database())
        # PostgreSQL shows a key of 64 bits as two halves.
        key = cast(locks.c.classid, BigInteger).op("<<")(32).op("|")(cast(locks.c.objid, BigInteger))
        of_name = (locks.c.locktype == "advisory", locks.c.objsubid == 1, key == self._key(name))
        with self._mutex:
            return self._call(select(1).where(*of_name, locks.c.database == database.scalar_subquery()))

    def keep(self) -> None:
        """Find out whether the connection broke, and take its locks again if so. Raises the errors of SQLAlchemy."""
        with self._mutex:
            if self._held:
                self._call(select(1))

    def close(self) -> None:
        """Close the connection, and with it give all locks back."""
        with self._mutex:
            self._disconnect()

    def _key(self, name: str) -> ColumnElement[int]:
        return func.hashtextextended(f"{self._schema}/{name}", 0)

    def _call(self, statement: Executable) -> bool:
        """Execute `statement`; once more on a new connection if the present one turns out to be broken."""
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
        connection.detach()  # from the pool, which is for short transactions
        # Otherwise PostgreSQL keeps the locks of a machine that is gone for two hours, and the connection after this one cannot take them.
        connection.execute(select(*(func.set_config(name, value, False) for name, value in _SERVER_OPTIONS.items())))
        self._connection = connection
        for name in self._held:
            if not self._call(select(func.pg_try_advisory_lock(self._key(name)))):
                _LOG.error("advisory_lock_lost", name=f"{self._schema}/{name}")
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError):  # it is broken
                connection.close()
