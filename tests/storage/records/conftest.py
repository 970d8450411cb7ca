"""The system of tests of records: they become samples soon, and are short."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modyn.config.system import SystemConfig


@pytest.fixture
def config(make_config: Callable[..., SystemConfig]) -> Iterator[SystemConfig]:
    with tempfile.TemporaryDirectory(prefix="modyn-st-") as folder:
        yield make_config(state_dir=Path(folder), storage={"records": {"seal_s": 0.05, "max_bytes": 1_000}})
