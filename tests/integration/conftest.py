"""What the integration tests share: a house of its own that may be broken, and what to look at afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from modyn.testing.stack import RunningStack, stack_on


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Callable[..., RunningStack]]:
    """Starts stacks that a module has for itself, with sections of the system file as arguments."""
    with ExitStack() as exits:

        def start(**sections: Any) -> RunningStack:
            folder = exits.enter_context(tempfile.TemporaryDirectory(prefix="modyn-", ignore_cleanup_errors=True))
            return exits.enter_context(stack_on(Path(folder), **sections))

        yield start
