"""Databases in one PostgreSQL for many tests. A database has the schemas of all services without rows, or is empty."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import psycopg2
import psycopg2.errors

from modyn.config.system import SystemConfig
from modyn.db.engine import open_database
from modyn.local.databases import PostgresServer
from modyn.testing.waiting import PATIENCE_S

SERVICES_WITH_SCHEMAS: Final = ("storage", "selector", "model_storage", "evaluator", "supervisor")

_OURS: Final = "(nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema')"
_RELATIONS: Final = f"pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE {_OURS}"
_DEFINITIONS: Final = f"""
SELECT 'schema', nspname, nspacl::text FROM pg_namespace WHERE {_OURS}
UNION ALL SELECT 'relation', c.oid::text, concat_ws(' ', nspname, relname, relkind, relacl, reloptions) FROM {_RELATIONS}
UNION ALL SELECT 'column', attrelid::text, concat_ws(' ', attname, atttypid, atttypmod, attnotnull, atthasdef, attacl)
    FROM pg_attribute WHERE attnum > 0 AND attrelid IN (SELECT c.oid FROM {_RELATIONS})
UNION ALL SELECT 'constraint', o.oid::text, conname FROM pg_constraint o JOIN pg_namespace n ON n.oid = connamespace WHERE {_OURS}
UNION ALL SELECT 'trigger', oid::text, tgname FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'function', p.oid::text, proname FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace WHERE {_OURS}
UNION ALL SELECT 'setting', setrole::text, setconfig::text FROM pg_db_role_setting
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY 1, 2, 3"""
"""Query of all objects and settings of a database that a test could change, except rows and sequences."""


class LentDatabases:
    """Databases with the schemas of all services. After a test, the rows of its database are removed, and the next test uses the database. A new
    database would take ten times as long, and migrations a hundred times as long. A database whose schemas were changed is dropped.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._template = "modyn_template"
        administer(server, f"CREATE DATABASE {self._template}")
        for service in SERVICES_WITH_SCHEMAS:
            open_database(SystemConfig(database_url=_url(server, self._template)), service, f"modyn.{service}.migrations").close()
        self._free = [self._make()]
        with self._cursor(self._free[0]) as cursor:
            self._tables = _tables(cursor)
            # These tables have rows from migrations, such as the version of the schema.
            self._filled = _filled(cursor, self._tables)
            self._state = _state(cursor, self._filled)  # The object ids in the state are equal in all copies.

    @contextmanager
    def lend(self) -> Iterator[str]:
        """Yield the URL of a database that a `with` block may use."""
        name = self._free.pop() if self._free else self._make()
        yield _url(self._server, name)
        with self._cursor(name) as cursor:
            _empty(cursor, self._tables, self._filled)
            is_as_before = _state(cursor, self._filled) == self._state
        if is_as_before:
            self._free.append(name)
        else:
            administer(self._server, f"DROP DATABASE {name} WITH (FORCE)")

    def _make(self) -> str:
        return _create(self._server, f"TEMPLATE {self._template}")

    @contextmanager
    def _cursor(self, name: str) -> Iterator[Any]:
        with closing(psycopg2.connect(_url(self._server, name), options=f"-c statement_timeout={PATIENCE_S:.0f}s")) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                yield cursor


@contextmanager
def own_database(server: PostgresServer) -> Iterator[str]:
    """Yield the URL of a new database without schemas of Modyn. The end of the `with` block drops the database."""
    name = _create(server)
    yield _url(server, name)
    administer(server, f"DROP DATABASE {name} WITH (FORCE)")


def administer(server: PostgresServer, *statements: str) -> None:
    """Execute statements outside of a transaction. Raises AssertionError: a statement timed out; the message lists the activity of all sessions."""
    with closing(psycopg2.connect(server.url, options=f"-c statement_timeout={PATIENCE_S:.0f}s")) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            try:
                for statement in statements:
                    cursor.execute(statement)
            except psycopg2.errors.QueryCanceled as error:
                cursor.execute(
                    "SELECT datname, application_name, state, wait_event_type, wait_event, query FROM pg_stat_activity"
                )
                sessions = "\n".join(map(str, cursor.fetchall()))
                raise AssertionError(f"{statements} waited for {PATIENCE_S:g} s in vain; the sessions:\n{sessions}") from error


def _create(server: PostgresServer, options: str = "") -> str:
    """Create a database with a unique name, and return the name. Args: options: options of CREATE DATABASE."""
    name = f"t{uuid.uuid4().hex[:16]}"
    # This timeout of the server ends a wait for a lock. The time limit of a test could not, because no signal interrupts a wait for PostgreSQL.
    limit = f"ALTER DATABASE {name} SET statement_timeout = '{2 * PATIENCE_S:.0f}s'"
    administer(server, f"CREATE DATABASE {name} {options} STRATEGY wal_log", limit)
    return name


def _url(server: PostgresServer, name: str) -> str:
    return server.url.replace("/postgres?", f"/{name}?")


def _empty(cursor: Any, tables: Sequence[str], kept: Sequence[str]) -> None:
    """Close all other connections, drop tables except `tables`, remove all rows except the rows of tables in `kept`, and restart sequences."""
    cursor.execute(
        f"SELECT pg_terminate_backend(pid, {PATIENCE_S * 1000:.0f}) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    found = _tables(cursor)
    if added := [name for name in found if name not in tables]:
        cursor.execute(f"DROP TABLE {', '.join(added)} CASCADE")
    if filled := _filled(cursor, [name for name in tables if name in found and name not in kept]):
        cursor.execute(f"TRUNCATE {', '.join(filled)} CASCADE")
    cursor.execute(
        "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false) FROM pg_sequences "
        "WHERE last_value IS NOT NULL"
    )


def _tables(cursor: Any) -> list[str]:
    cursor.execute(f"SELECT format('%I.%I', nspname, relname) FROM {_RELATIONS} AND relkind IN ('r', 'p') ORDER BY 1")
    return [name for (name,) in cursor.fetchall()]


def _filled(cursor: Any, tables: Sequence[str]) -> list[str]:
    """Return the tables that have rows."""
    if not tables:
        return []
    cursor.execute(" UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in tables))
    return [name for (name,) in cursor.fetchall()]


def _state(cursor: Any, kept: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the content of a database without the rows of tests: its definitions, and the rows of migrations. Args: kept: tables with rows of
    migrations.
    """
    cursor.execute(_DEFINITIONS)
    found: list[tuple[str, ...]] = cursor.fetchall()
    there = _tables(cursor)
    for name in kept:
        if name in there:
            cursor.execute(f"SELECT 'row', '{name}', rows::text FROM {name} AS rows ORDER BY 3")
            found += cursor.fetchall()
    return found
