"""Fixtures of the storage tests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from modyn.config.system import SystemConfig
from modyn.testing.databases import LentDatabases
from tests.support.running_storage import RunningStorage, binary_dataset, start_storage, write_records


@pytest.fixture
def quick_config(make_config: Callable[..., SystemConfig]) -> Iterator[SystemConfig]:
    """Looks at watched folders often, and takes files almost at once. Sockets lie in a short folder."""
    with tempfile.TemporaryDirectory(prefix="modyn-st-") as folder:
        yield make_config(state_dir=Path(folder), storage={"poll_interval_s": 0.05, "settle_s": 0.05})


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closed when the test ends."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def storage(quick_config: SystemConfig, stack: ExitStack) -> RunningStorage:
    """A service without datasets."""
    return start_storage(quick_config, stack)


@pytest.fixture(scope="module")
def module_storage(lent_databases: LentDatabases) -> Iterator[RunningStorage]:
    """A service for all tests of a module, whose datasets have names and folders of their own; takes files at once."""
    with (
        lent_databases.lend() as url,
        tempfile.TemporaryDirectory(prefix="modyn-st-") as folder,
        ExitStack() as stack,
    ):
        sections = {"state_dir": folder, "database_url": url, "storage": {"settle_s": 0.0, "poll_interval_s": 0.05}}
        yield start_storage(SystemConfig.model_validate(sections), stack)


@pytest.fixture
def numbers(storage: RunningStorage, tmp_path: Path) -> RunningStorage:
    """1,000 records in 10 files; the data of a record is 1,000,000 + its key."""
    for i in range(10):
        write_records(tmp_path / "data" / f"{i}.bin", range(1_000_000 + 100 * i, 1_000_000 + 100 * (i + 1)), 1000 + i)
    storage.index(binary_dataset(tmp_path / "data"))
    return storage
