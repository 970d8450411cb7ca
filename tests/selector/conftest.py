"""Fixtures of the selector's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from modyn.config.system import SystemConfig
from modyn.db.engine import Database, open_database


@pytest.fixture
def database(system_config: SystemConfig) -> Iterator[Database]:
    """The migrated schema of the selector."""
    opened = open_database(system_config, "selector", "modyn.selector.migrations")
    yield opened
    opened.close()
