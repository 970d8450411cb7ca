"""The catalogue in PostgreSQL: rows of datasets, files, segments and problems. Each change is one transaction, for any number of samples.

Every change names the version of the dataset that it modifies. If another process has changed this version already, the change is refused.
"""

from __future__ import annotations

import io
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Final, NamedTuple

from psycopg2 import extensions
from psycopg2.extras import execute_values

from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.db.engine import Database, open_database
from modyn.errors import ConflictError
from modyn.json_codec import sanitize
from modyn.storage.index.segment_file import SegmentInfo
from modyn.storage.model.dataset_records import FileProblem
from modyn.storage.model.file_table import CheckedFile, Checksum, FileRow, FileTable
from modyn.storage.model.schema import DatasetSchema

LISTED_PROBLEMS = 10_000
"""Largest number of problems of a dataset that are listed. The newest problems are listed; all problems are counted."""
_ROWS_AT_ONCE = 1 << 13
"""Number of rows that one read of a streamed query fetches."""
_FILE_COLUMNS = "file_id, path, size, mtime_ns, indexed_end, num_samples, fingerprint, altered, tail"
_CHECKED_COLUMNS = f"checked_bytes, crc32, times_forgotten, {_FILE_COLUMNS}"
_FORGOTTEN = ", checked_bytes = 0, crc32 = 0, times_forgotten = times_forgotten + 1"
"""Resets the checksum of a forgotten file. `times_forgotten` is incremented, so that `keep_checksums` skips a checksum that was computed before."""
_OF_INDEXED: Final = "the rest of the file is indexed: once it is corrected, `modyn data reindex` takes it again"
_SEGMENT_COLUMNS = "first_key, num_samples, min_timestamp, max_timestamp, num_bytes, checksum, file_name"


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """A registered dataset. `identity`: identity of this registration, which also names the folder of its segments. `version` grows with each
    change."""

    id: int
    config: DatasetConfig
    identity: str
    float_labels: bool
    next_key: int
    version: int
    schema: DatasetSchema | None = None
    """Columns of the files; None: no file has decided the schema yet, or the format has no schema."""


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment and the name of its file in the dataset's folder."""

    info: SegmentInfo
    file_name: str


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """A file that was set aside. `signature`: state of the file when the problem was found. The file is tried again when its state changes."""

    path: str
    signature: str
    reason: str


class SkippedRow(NamedTuple):
    """An unusable row of an indexed file. offset: offset of its first byte."""

    path: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of one transaction in a dataset."""

    next_key: int
    new_files: Sequence[FileRow] = ()
    changed_files: Sequence[FileRow] = ()
    segments: Sequence[SegmentRow] = ()
    replaced_segments: Sequence[int] = ()
    """First keys of the segments that `segments` replace."""
    problems: Sequence[ProblemRow] = ()
    solved: Sequence[str] = ()
    """Paths of files whose problem is solved."""
    skipped: Sequence[SkippedRow] = ()
    """Skipped rows of the changed files. Rows that are already in the catalogue may be included."""
    forgotten: Sequence[FileRow] = ()
    """Files that have no indexed bytes any more. The skipped rows of these files are removed."""
    schema: DatasetSchema | None = None
    """The new schema; None: the schema stays."""


@dataclass(frozen=True, slots=True)
class Contents:
    """All rows of a dataset at one version."""

    row: DatasetRow
    files: FileTable = field(repr=False)
    segments: Sequence[SegmentRow] = field(repr=False)
    problems: dict[str, str] = field(repr=False)
    """Signatures of the problems, by path."""
    num_skipped: int = 0
    """Number of skipped rows."""


class Catalogue:
    """The tables of storage. Thread-safe. Methods raise UnavailableError if the database cannot be reached.

    Args of all methods: dataset_id: `DatasetRow.id`, the number of a registration in the database. version: `DatasetRow.version`, which each change
    increments; a change for another version is refused.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, config: SystemConfig) -> Catalogue:
        """Connect to the database of the system file, and bring its tables up to date."""
        return cls(open_database(config, "storage", "modyn.storage.migrations"))

    def close(self) -> None:
        """Close all connections."""
        self.database.close()

    def datasets(self, *, deleting: bool = False) -> list[DatasetRow]:
        """Return all datasets by name. With `deleting`, return instead all datasets whose deletion has begun but not ended."""
        with self.database.raw() as connection, connection.cursor() as cursor:
            return _dataset_rows(cursor, "WHERE deleting = %s ORDER BY name", (deleting,))

    def dataset(self, name: str) -> DatasetRow | None:
        """Return the dataset of this name; None if there is no such dataset, or if the dataset is being deleted."""
        with self.database.raw() as connection, connection.cursor() as cursor:
            return next(iter(_dataset_rows(cursor, "WHERE name = %s AND NOT deleting", (name,))), None)

    def add(self, config: DatasetConfig, float_labels: bool) -> DatasetRow:
        """Register a dataset, or return the row of this name that another process has just added.

        Args: float_labels: whether labels are float64; otherwise int64.
        Raises: ConflictError: the dataset of this name is being deleted.
        """
        spec = json.dumps(config.model_dump(mode="json"))
        with self.database.raw() as connection, connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO storage.datasets (name, spec, identity, float_labels) VALUES (%s, %s, %s, %s) "
                "ON CONFLICT (name) DO NOTHING",
                (config.name, spec, uuid.uuid4().hex, float_labels),
            )
        row = self.dataset(config.name)
        if row is None:
            raise ConflictError(f"dataset '{config.name}' is being deleted; register it again when that is done")
        return row

    def begin_delete(self, dataset_id: int) -> None:
        """Mark the dataset as being deleted. When its files are removed, the caller must call `end_delete`, if necessary after a restart."""
        # The version is incremented, so that an ingestion of another process gets a conflict and cannot commit to a deleted dataset.
        with self.database.raw() as connection, connection.cursor() as cursor:
            cursor.execute("UPDATE storage.datasets SET deleting = true, version = version + 1 WHERE id = %s", (dataset_id,))

    def end_delete(self, dataset_id: int) -> None:
        """Remove all rows of the dataset."""
        with self.database.raw() as connection, connection.cursor() as cursor:
            # The table `files` has no foreign key, because the check would make adding files much slower. So its rows are deleted separately.
            cursor.execute("DELETE FROM storage.datasets WHERE id = %s", (dataset_id,))
            cursor.execute("DELETE FROM storage.files WHERE dataset_id = %s", (dataset_id,))

    def version(self, dataset_id: int) -> int | None:
        """Return the version of a dataset; None if it was deleted."""
        with self.database.raw() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT version FROM storage.datasets WHERE id = %s AND NOT deleting", (dataset_id,))
            found = cursor.fetchone()
        return None if found is None else int(found[0])

    def contents(self, name: str) -> Contents | None:
        """Return all rows of a dataset, from one snapshot of the database; None if there is no such dataset."""
        with self.database.raw() as connection, connection.cursor() as cursor:
            # All queries use one snapshot, because a commit between two queries would lead to rows of different versions.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            rows = _dataset_rows(cursor, "WHERE name = %s AND NOT deleting", (name,))
            if not rows:
                return None
            id_ = (rows[0].id,)
            with connection.cursor("files") as streamed:  # There may be millions of rows.
                streamed.itersize = _ROWS_AT_ONCE
                files = FileTable(_file_rows(streamed, "WHERE dataset_id = %s ORDER BY file_id", id_))
            cursor.execute(f"SELECT {_SEGMENT_COLUMNS} FROM storage.segments WHERE dataset_id = %s ORDER BY first_key", id_)
            segments = [SegmentRow(SegmentInfo(*row[:6]), row[6]) for row in cursor]
            cursor.execute("SELECT path, signature FROM storage.problems WHERE dataset_id = %s", id_)
            problems = {os.fsdecode(bytes(path)): str(signature) for path, signature in cursor}
            cursor.execute("SELECT count(*) FROM storage.skipped_rows WHERE dataset_id = %s", id_)
            found = cursor.fetchone()
        return Contents(rows[0], files, segments, problems, int(found[0]) if found else 0)

    def file(self, dataset_id: int, file_id: int) -> FileRow:
        """Return the row of one indexed file. Raises: ConflictError: `file_id` is no longer in the catalogue."""
        return self.checked_file(dataset_id, file_id).row

    def num_skipped(self, dataset_id: int, file: FileRow) -> int:
        """Return the number of skipped rows in the indexed part of a file."""
        with self.database.raw() as connection, connection.cursor() as cursor:
            cursor.execute(
                # The index is on the digest of the path, because a path may be too long for an index entry.
                "SELECT count(*) FROM storage.skipped_rows WHERE dataset_id = %s AND sha256(path) = sha256(%s) AND at < %s",
                (dataset_id, os.fsencode(file.path), file.indexed_end),
            )
            found = cursor.fetchone()
        return int(found[0]) if found else 0

    def files(self, dataset_id: int) -> list[FileRow]:
        """Return the rows of all files, by id. Each row takes some hundred bytes."""
        with self.database.raw() as connection, connection.cursor() as cursor:
            return list(_file_rows(cursor, "WHERE dataset_id = %s ORDER BY file_id", (dataset_id,)))

    def checked_file(self, dataset_id: int, file_id: int) -> CheckedFile:
        """Return one indexed file, with its checksum. Raises: as `file`."""
        found = self._checked_files("AND file_id = %s", (dataset_id, file_id))
        if not found:
            raise ConflictError(f"file {file_id} of dataset {dataset_id} is not in the catalogue any more")
        return found[0]

    def files_to_check(self, dataset_id: int, first_id: int, at_most: int) -> list[CheckedFile]:
        """Return the first `at_most` files with indexed bytes, from id `first_id` on, in order."""
        condition = "AND file_id >= %s AND num_samples > 0 AND indexed_end > 0 ORDER BY file_id LIMIT %s"
        return self._checked_files(condition, (dataset_id, first_id, at_most))

    def _checked_files(self, condition: str, values: tuple[object, ...]) -> list[CheckedFile]:
        with self.database.raw() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {_CHECKED_COLUMNS} FROM storage.files WHERE dataset_id = %s {condition}", values)
            return [CheckedFile(_file_row(row[3:]), Checksum(row[0], row[1]), row[2]) for row in cursor]

    def keep_checksums(self, dataset_id: int, files: Sequence[CheckedFile]) -> None:
        """Store the checksums of `files`, at least one. The method skips files that were forgotten after the read, altered files, files that already
        have a checksum of at least the same number of bytes, and files whose row a running commit has locked. A wait for this commit could deadlock,
        because the commit may wait for another of these rows.
        """
        values = [(file.row.file_id, file.times_forgotten, *file.checksum) for file in files]
        of_dataset = f"dataset_id = {int(dataset_id)} AND file_id IN ({', '.join(str(int(file.row.file_id)) for file in files)})"
        statement = (
            "UPDATE storage.files AS f SET checked_bytes = v.checked_bytes, crc32 = v.crc32 "
            f"FROM (VALUES %s) AS v (id, times_forgotten, checked_bytes, crc32) WHERE {of_dataset} AND f.file_id = v.id "
            "AND f.times_forgotten = v.times_forgotten AND f.checked_bytes < v.checked_bytes AND NOT f.altered "
            f"AND f.file_id IN (SELECT file_id FROM storage.files WHERE {of_dataset} FOR UPDATE SKIP LOCKED)"
        )
        with self.database.raw() as connection, connection.cursor() as cursor:
            execute_values(cursor, statement, values, page_size=len(values))

    def commit(self, dataset_id: int, version: int, change: Change) -> tuple[int, int]:
        """Apply the whole `change` to the dataset at `version`, or nothing.

        Returns: the new version, and the difference between the numbers of skipped rows after and before the change.
        Raises: ConflictError: another process has changed the dataset. UnavailableError: the database did not answer; the change may have been made
        or not.
        """
        with self.database.raw() as connection, connection.cursor() as cursor:
            schema = change.schema and change.schema.to_json()
            changes = "version = version + 1, next_key = %s, columns = coalesce(%s, columns)"
            _update_dataset(cursor, dataset_id, version, changes, change.next_key, schema)
            _copy_files(cursor, dataset_id, change.new_files)
            for files, more in ((change.changed_files, ""), (change.forgotten, _FORGOTTEN)):
                for file in files:
                    cursor.execute(
                        "UPDATE storage.files SET size = %s, mtime_ns = %s, indexed_end = %s, num_samples = %s, fingerprint = %s, "
                        f"altered = %s, tail = %s{more} WHERE dataset_id = %s AND file_id = %s",
                        (*file[2:], dataset_id, file.file_id),
                    )
            if change.replaced_segments:
                cursor.execute(
                    "DELETE FROM storage.segments WHERE dataset_id = %s AND first_key = ANY(%s)",
                    (dataset_id, list(change.replaced_segments)),
                )
            _insert_segments(cursor, dataset_id, change.segments)
            _replace_problems(cursor, dataset_id, change)
            num_skipped = _insert_skipped(cursor, dataset_id, change.skipped) - _delete_skipped(
                cursor, dataset_id, change.forgotten
            )
        return version + 1, num_skipped

    def change_config(self, dataset_id: int, version: int, config: DatasetConfig, schema: DatasetSchema | None) -> int:
        """Change the options and the schema of the dataset at `version`. Returns the new version. Raises: ConflictError: see `commit`."""
        with self.database.raw() as connection, connection.cursor() as cursor:
            values = json.dumps(config.model_dump(mode="json")), schema and schema.to_json()
            _update_dataset(cursor, dataset_id, version, "version = version + 1, spec = %s, columns = %s", *values)
        return version + 1

    def replace(
        self,
        dataset_id: int,
        version: int,
        new_version: int,
        files: Sequence[FileRow],
        segments: Sequence[SegmentRow],
        schema: DatasetSchema | None = None,
    ) -> None:
        """Replace all files and segments of the dataset at `version`, which becomes `new_version`. The next key of the dataset is the key after the
        last segment.

        Args: files: all files in the order of their ids, from 0 without gaps. segments: in the order of their first keys. schema: None: the schema is
        not known.
        Raises: ConflictError: another process has changed the dataset.
        """
        with self.database.raw() as connection, connection.cursor() as cursor:
            values = new_version, segments[-1].info.end_key if segments else 0, schema and schema.to_json()
            _update_dataset(cursor, dataset_id, version, "version = %s, next_key = %s, columns = %s", *values)
            for table in ("files", "segments"):
                cursor.execute(f"DELETE FROM storage.{table} WHERE dataset_id = %s", (dataset_id,))
            _copy_files(cursor, dataset_id, files)
            _insert_segments(cursor, dataset_id, segments)

    def problems(self, dataset_id: int, full_path: Callable[[str], str]) -> list[FileProblem]:
        """Return problems and skipped rows, the newest first, at most LISTED_PROBLEMS. Args: full_path: converts a path in the dataset's folder to
        the path to show."""
        with self.database.raw() as connection, connection.cursor() as cursor:
            cursor.execute(
                # `at` = -1 marks a problem of a whole file, so that one query returns both problems and skipped rows.
                "SELECT path, reason, found_at, -1 AS at FROM storage.problems WHERE dataset_id = %s UNION ALL "
                "SELECT path, reason, found_at, at FROM storage.skipped_rows WHERE dataset_id = %s "
                "ORDER BY found_at DESC, path, at LIMIT %s",
                (dataset_id, dataset_id, LISTED_PROBLEMS),
            )
            return [
                FileProblem(full_path(os.fsdecode(bytes(path))), reason if at < 0 else f"{reason} ({_OF_INDEXED})", found_at)
                for path, reason, found_at, at in cursor
            ]


def _dataset_rows(cursor: extensions.cursor, condition: str, values: tuple[object, ...]) -> list[DatasetRow]:
    cursor.execute(
        f"SELECT id, spec, identity, float_labels, next_key, version, columns FROM storage.datasets {condition}", values
    )
    found = []
    for id_, spec, identity, float_labels, next_key, version, columns in cursor:
        schema = DatasetSchema.from_json(columns) if columns else None
        found.append(DatasetRow(id_, DatasetConfig.model_validate(spec), identity, float_labels, next_key, version, schema))
    return found


def _update_dataset(cursor: extensions.cursor, dataset_id: int, version: int, changes: str, *values: object) -> None:
    """Update the row of a dataset at `version`. Raises: ConflictError: another process has changed the dataset."""
    cursor.execute(
        f"UPDATE storage.datasets SET {changes} WHERE id = %s AND version = %s AND NOT deleting", (*values, dataset_id, version)
    )
    if cursor.rowcount != 1:
        raise ConflictError(f"dataset {dataset_id} was changed or deleted by another process; repeat the command")


def _file_rows(cursor: extensions.cursor, condition: str, values: tuple[object, ...]) -> Iterator[FileRow]:
    cursor.execute(f"SELECT {_FILE_COLUMNS} FROM storage.files {condition}", values)
    for row in cursor:
        yield _file_row(row)


def _file_row(row: tuple[Any, ...]) -> FileRow:
    return FileRow(row[0], os.fsdecode(bytes(row[1])), *row[2:])


def _copy_files(cursor: extensions.cursor, dataset_id: int, files: Sequence[FileRow]) -> None:
    # COPY, because an ingestion may add millions of files. Paths are bytes, which COPY reads in hexadecimal after `\x`.
    lines = (
        f"{dataset_id}\t{file.file_id}\t\\\\x{os.fsencode(file.path).hex()}\t{file.size}\t{file.mtime_ns}\t{file.indexed_end}\t"
        f"{file.num_samples}\t{file.fingerprint}\t{file.altered}\t{file.tail}\n"
        for file in files
    )
    if files:
        cursor.copy_expert(f"COPY storage.files (dataset_id, {_FILE_COLUMNS}) FROM STDIN", io.StringIO("".join(lines)))


def _insert_segments(cursor: extensions.cursor, dataset_id: int, segments: Sequence[SegmentRow]) -> None:
    values = [(dataset_id, *astuple(segment.info), segment.file_name) for segment in segments]
    if values:
        execute_values(cursor, f"INSERT INTO storage.segments (dataset_id, {_SEGMENT_COLUMNS}) VALUES %s", values)


def _replace_problems(cursor: extensions.cursor, dataset_id: int, change: Change) -> None:
    gone = [os.fsencode(path) for path in [*change.solved, *(problem.path for problem in change.problems)]]
    # Rows are deleted in chunks, which bounds the size of a statement.
    for first in range(0, len(gone), 10_000):
        cursor.execute(
            "DELETE FROM storage.problems WHERE dataset_id = %s AND sha256(path) IN (SELECT sha256(p) FROM unnest(%s::bytea[]) AS p)",
            (dataset_id, gone[first : first + 10_000]),
        )
    if change.problems:
        now = time.time()
        values = [(dataset_id, os.fsencode(p.path), p.signature, sanitize(p.reason), now) for p in change.problems]
        execute_values(cursor, "INSERT INTO storage.problems (dataset_id, path, signature, reason, found_at) VALUES %s", values)


def _insert_skipped(cursor: extensions.cursor, dataset_id: int, skipped: Sequence[SkippedRow]) -> int:
    """Insert the rows that are not known yet. Returns the number of inserted rows."""
    now = time.time()
    values = [(dataset_id, os.fsencode(row.path), row.offset, sanitize(row.reason), now) for row in skipped]
    statement = (
        "INSERT INTO storage.skipped_rows (dataset_id, path, at, reason, found_at) VALUES %s ON CONFLICT DO NOTHING RETURNING 1"
    )
    return len(execute_values(cursor, statement, values, fetch=True)) if values else 0


def _delete_skipped(cursor: extensions.cursor, dataset_id: int, files: Sequence[FileRow]) -> int:
    """Delete the skipped rows of files. Returns the number of deleted rows."""
    for_files = "DELETE FROM storage.skipped_rows WHERE dataset_id = %s AND sha256(path) IN (SELECT sha256(p) FROM unnest(%s::bytea[]) AS p)"
    if files:
        cursor.execute(for_files, (dataset_id, [os.fsencode(file.path) for file in files]))
    return cursor.rowcount if files else 0
