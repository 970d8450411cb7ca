"""Databases that tests use one after the other: each finds no trace of the one before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest

from modyn.testing.databases import LentDatabases

SAYS_WHAT_IS_THERE = (
    "SELECT (SELECT count(*) FROM evaluator.evaluations), (SELECT count(*) FROM pg_sequences WHERE last_value IS NOT NULL), "
    "to_regclass('storage.other'), (SELECT count(*) FROM model_storage.store), (SELECT count(*) FROM storage.alembic_version)"
)

ONE_ROW = (
    "INSERT INTO evaluator.evaluations (evaluation_id, run_id, trigger_id, model_id, samples_seen, samples_total, handler, dataset, state, "
    "error, error_reason) VALUES ('e', 'r', 1, 1, 1, 1, '', '', '', '', '')"
)


def executed(url: str, *statements: str) -> tuple[object, ...]:
    """The row that the last statement gives."""
    with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchone() or ()


@pytest.fixture
def url(lent_databases: LentDatabases) -> Iterator[str]:
    with lent_databases.lend() as url:
        yield url


@pytest.mark.parametrize(
    ("statement", "is_used_again"),
    [
        ("SELECT 1", True),
        (ONE_ROW, True),
        ("CREATE TABLE storage.other (number int)", True),
        ("ALTER TABLE storage.datasets ADD COLUMN other int", False),
        ("DROP SCHEMA selector CASCADE", False),
        ("DELETE FROM model_storage.store", False),
        ("UPDATE storage.alembic_version SET version_num = '0'", False),
        ("CREATE INDEX other ON storage.datasets (name)", False),
    ],
)
def test_what_one_has_changed_the_next_does_not_find(lent_databases: LentDatabases, statement: str, is_used_again: bool) -> None:
    with lent_databases.lend() as first:
        before = executed(first, SAYS_WHAT_IS_THERE)
        executed(first, "SELECT nextval(pg_get_serial_sequence('storage.datasets', 'id'))", statement, "SELECT 1")
        open_until_the_end = psycopg2.connect(first)
        open_until_the_end.cursor().execute("LOCK TABLE storage.datasets")
    with pytest.raises(psycopg2.OperationalError, match="terminat"):
        open_until_the_end.cursor().execute("SELECT 1")
    open_until_the_end.close()
    with lent_databases.lend() as second:
        assert executed(second, SAYS_WHAT_IS_THERE) == before
    assert (first == second) is is_used_again


def test_two_at_once_have_databases_of_their_own(lent_databases: LentDatabases, url: str) -> None:
    with lent_databases.lend() as other:
        assert other != url
