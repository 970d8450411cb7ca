"""Fixtures of the supervisor's tests: its database, services in memory, and supervisors over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from modyn.config.system import SystemConfig
from modyn.db.engine import Database, open_database
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.queue.queue import RunQueue
from modyn.testing.services import InMemoryServices
from modyn.testing.waiting import PATIENCE_S


@pytest.fixture
def database(system_config: SystemConfig) -> Iterator[Database]:
    database = open_database(system_config, "supervisor", "modyn.supervisor.migrations")
    yield database
    database.close()


@pytest.fixture
def journal(database: Database) -> Journal:
    return Journal(database)


@pytest.fixture
def services(tmp_path: Path) -> InMemoryServices:
    """A dataset `train` of 35 samples, one a second: three triggers by amount, and 5 samples left over."""
    services = InMemoryServices(tmp_path)
    services.storage.add_dataset("train")
    services.storage.add_samples("train", timestamps=range(35))
    return services


@pytest.fixture
def make_runs(services: InMemoryServices, make_config: Callable[..., SystemConfig]) -> Iterator[Callable[..., RunQueue]]:
    """A function that starts a supervisor; its keyword arguments are options of the section `supervisor`."""
    with ExitStack() as stack:

        def make(**options: object) -> RunQueue:
            config = make_config(supervisor={"stream_batch_size": 8, "patience_s": PATIENCE_S, **options})
            return stack.enter_context(services.supervise(config))

        yield make


@pytest.fixture
def runs(make_runs: Callable[..., RunQueue]) -> RunQueue:
    return make_runs()
