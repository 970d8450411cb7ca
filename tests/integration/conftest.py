"""Fixtures of the integration tests: stacks for one module alone, and the session's stack for fault injection."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from modyn.testing.stack import RunningStack, stack_on
from tests.support.breakable_stack import BreakableStack


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Callable[..., RunningStack]]:
    """Starts stacks for one module alone, with sections of the system file as arguments."""
    with ExitStack() as exits:

        def start(**sections: Any) -> RunningStack:
            folder = exits.enter_context(tempfile.TemporaryDirectory(prefix="modyn-", ignore_cleanup_errors=True))
            return exits.enter_context(stack_on(Path(folder), **sections))

        yield start


@pytest.fixture(scope="module")
def breakable(running_stack: RunningStack) -> BreakableStack:
    """The session's stack, with two replicas of the payload server, and weights that follow from the keys."""
    return BreakableStack(running_stack)
