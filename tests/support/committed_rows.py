"""Database of a service with a recorded disk: a power loss keeps committed rows, and no others."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg2.extensions
from sqlalchemy.orm import Session

from modyn.db.engine import Database
from tests.support.disk_recording import DiskRecording
from tests.support.simulated_disk import PowerLoss


@dataclass(frozen=True, slots=True)
class CommittedRows:
    """The rows of all tables of a schema, as COPY writes them."""

    by_table: dict[str, bytes] = field(repr=False)


class RecordedDatabase(Database):
    """A database that notes its rows on a disk after each transaction that changed them. PostgreSQL keeps what it committed."""

    def __init__(self, database: Database, disk: DiskRecording) -> None:
        super().__init__(database.engine, database.schema)
        self._disk, self._noted = disk, committed_rows(database)
        disk.note(self._noted)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """See `Database`."""
        with super().session() as session:
            yield session
        self._note()

    @contextmanager
    def raw(self) -> Iterator[psycopg2.extensions.connection]:
        """See `Database`."""
        with super().raw() as connection:
            yield connection
        self._note()

    def _note(self) -> None:
        rows = committed_rows(self)
        if rows != self._noted:
            self._noted = rows
            self._disk.note(rows)


def committed_rows(database: Database) -> CommittedRows:
    """Return the rows that are committed now."""
    rows: dict[str, bytes] = {}
    with Database.raw(database) as connection, connection.cursor() as cursor:
        for table in _tables(cursor, database.schema):
            content = io.BytesIO()
            cursor.copy_expert(f"COPY {table} TO STDOUT", content)
            rows[table] = content.getvalue()
    return CommittedRows(rows)


def losses_with_rows(disk: DiskRecording) -> Iterator[PowerLoss]:
    """Return the power losses since a `RecordedDatabase` began."""
    return (loss for loss in disk.losses() if loss.notes)


def restore_rows(database: Database, loss: PowerLoss) -> tuple[object, ...]:
    """Give the database the rows that were committed before the power loss. Returns: its other notes."""
    *_, newest = (note for note in loss.notes if isinstance(note, CommittedRows))
    with Database.raw(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # rows may come before those they refer to
        for table in _tables(cursor, database.schema):
            cursor.execute(f"DELETE FROM {table}")
        for table, content in newest.by_table.items():
            cursor.copy_expert(f"COPY {table} FROM STDIN", io.BytesIO(content))
    return tuple(note for note in loss.notes if not isinstance(note, CommittedRows))


def _tables(cursor: psycopg2.extensions.cursor, schema: str) -> list[str]:
    cursor.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_name <> 'alembic_version' ORDER BY 1",
        (schema,),
    )
    return [f'"{schema}"."{name}"' for (name,) in cursor]
