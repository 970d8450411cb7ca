"""Fixtures of all trainer tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
import torch


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """Trainings switch deterministic algorithms on, which later tests do not expect."""
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def all_logs() -> Iterator[None]:
    """Everything is logged, as in a worker."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(0))
    yield
    structlog.configure(**before)
