"""The user of one service reaches the schema of this service and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy import make_url

from modyn.config.system import SystemConfig
from modyn.db.engine import open_database
from modyn.db.users import create_user, password_of
from modyn.errors import ConfigError, UnavailableError
from modyn.rpc.retry import Retrier, RetryPolicy
from modyn.testing.waiting import PATIENCE_S

PASSWORDS = ("first password", "it's another")


@pytest.fixture
def postgres_url(empty_postgres_url: str) -> str:
    """A database without schemas, because another user would own the schemas of a template."""
    return empty_postgres_url


@pytest.fixture
def limited(postgres_url: str) -> Iterator[Callable[[str], str]]:
    """Creates the evaluator's user with a password and returns the URL with which it connects."""

    def make(password: str) -> str:
        name = create_user(postgres_url, "evaluator", password)
        return make_url(postgres_url).set(username=name, password=password).render_as_string(hide_password=False)

    yield make
    with closing(psycopg2.connect(postgres_url)) as connection, connection.cursor() as cursor:
        cursor.execute("DROP OWNED BY modyn_evaluator; DROP ROLE modyn_evaluator")
        connection.commit()


@pytest.mark.parametrize("there_already", [False, True])
def test_it_owns_one_schema_and_reads_no_other(
    make_config: Callable[..., SystemConfig], limited: Callable[[str], str], there_already: bool
) -> None:
    open_database(make_config(), "supervisor", "modyn.supervisor.migrations").close()
    if there_already:
        open_database(make_config(), "evaluator", "modyn.evaluator.migrations").close()
    for password in PASSWORDS:
        url = limited(password)
        open_database(make_config(database_url=url), "evaluator", "modyn.evaluator.migrations").close()
        with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM evaluator.alembic_version")
            for statement in ("SELECT * FROM supervisor.alembic_version", "CREATE SCHEMA mine"):
                with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                    cursor.execute(statement)
                connection.rollback()


def test_a_server_that_does_not_run_yet_is_waited_for(postgres_url: str, limited: Callable[[str], str], tmp_path: Path) -> None:
    limited(PASSWORDS[1])
    late = tmp_path / "late"
    url = make_url(postgres_url)
    folder = Path(str(url.query["host"]))
    late_url = url.set(query={"host": str(late)}).render_as_string(hide_password=False)
    with pytest.raises(UnavailableError, match="late"):
        create_user(late_url, "evaluator", PASSWORDS[0])
    retrier = Retrier(RetryPolicy(PATIENCE_S), report=lambda _: late.symlink_to(folder))
    assert create_user(late_url, "evaluator", PASSWORDS[0], retrier) == "modyn_evaluator"


def test_passwords_are_read_as_clients_of_postgres_read_them(tmp_path: Path) -> None:
    passfile = tmp_path / "pgpass"
    passfile.write_text("# host:1:name:modyn_evaluator:no\nhost:1:name:modyn:other\nhost:1:name:modyn_evaluator:a\\:b\\\\c d\n")
    assert password_of("modyn_evaluator", passfile) == r"a:b\c d"
    with pytest.raises(ConfigError, match="has no line .*modyn_selector"):
        password_of("modyn_selector", passfile)
    with pytest.raises(ConfigError, match="none cannot be read"):
        password_of("modyn_evaluator", tmp_path / "none")
