"""Fixtures for tests with real servers: `pytest_plugins = ["modyn.testing.fixtures"]`."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg2
import pytest

from modyn.config.system import SystemConfig
from modyn.local.postgres import PostgresServer
from modyn.testing.stack import RunningStack, stack_on


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One real PostgreSQL for the session (one for each xdist worker)."""
    with tempfile.TemporaryDirectory(prefix="modyn-pg-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(Path(folder))
        server.start()
        yield server
        server.stop()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty database of its own for the test."""
    name = f"t{uuid.uuid4().hex[:16]}"
    _administer(postgres_server, f"CREATE DATABASE {name} STRATEGY wal_log")
    yield postgres_server.url.replace("/postgres?", f"/{name}?")
    _administer(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def make_config(tmp_path: Path, postgres_url: str) -> Callable[..., SystemConfig]:
    """Makes a system configuration with an empty state folder and an empty database; takes sections as keyword arguments."""

    def make(**sections: object) -> SystemConfig:
        return SystemConfig(**{"state_dir": tmp_path / "state", "database_url": postgres_url, **sections})  # type: ignore[arg-type]

    return make


@pytest.fixture
def system_config(make_config: Callable[..., SystemConfig]) -> SystemConfig:
    """A system configuration with defaults, an empty state folder and an empty database."""
    return make_config()


@pytest.fixture(scope="session")
def running_stack() -> Iterator[RunningStack]:
    """All services with embedded databases, as real processes, one stack for the session (one for each xdist worker).

    Tests share it: they name their datasets after themselves, stop the runs that they start, and leave every service running.
    """
    with tempfile.TemporaryDirectory(prefix="modyn-", ignore_cleanup_errors=True) as folder, stack_on(Path(folder)) as stack:
        yield stack


def _administer(server: PostgresServer, statement: str) -> None:
    connection = psycopg2.connect(server.url)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    finally:
        connection.close()
