"""Fixtures of the integration tests: stacks that a module has for itself, and one that may be broken."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from modyn.testing.stack import RunningStack, stack_on
from tests.support.breakable_stack import BreakableStack
from tests.support.keyed_weights import plug_in


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Callable[..., RunningStack]]:
    """Starts stacks that a module has for itself, with sections of the system file as arguments."""
    with ExitStack() as exits:

        def start(**sections: Any) -> RunningStack:
            folder = exits.enter_context(tempfile.TemporaryDirectory(prefix="modyn-", ignore_cleanup_errors=True))
            return exits.enter_context(stack_on(Path(folder), **sections))

        yield start


@pytest.fixture(scope="module")
def breakable(own_stack: Callable[..., RunningStack], tmp_path_factory: pytest.TempPathFactory) -> BreakableStack:
    """A stack with two replicas of the payload server, and weights that follow from the keys."""
    plug_ins = tmp_path_factory.mktemp("plug-ins")
    plug_in(plug_ins)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(plug_ins), prepend=os.pathsep)
        stack = own_stack(storage={"replicas": 2, "settle_s": 0.05, "poll_interval_s": 0.1})
    return BreakableStack(stack)
