"""Storage whose payloads come in many short record batches."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest

from modyn.config.system import SystemConfig
from modyn.testing.waiting import PATIENCE_S
from tests.support.running_storage import SMALL_FETCHING, SMALL_SERVING, RunningStorage, start_storage


@pytest.fixture
def storage(quick_config: SystemConfig, stack: ExitStack) -> RunningStorage:
    """A service without datasets."""
    return start_storage(quick_config, stack, SMALL_SERVING, replace(SMALL_FETCHING, retry_s=PATIENCE_S))
