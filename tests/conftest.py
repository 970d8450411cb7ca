"""Fixtures and settings for all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from modyn.workers.devices import num_gpus
from tests.support.preloaded import held_fork_server, other_fork_server

pytest_plugins = ["modyn.testing.stack"]

# PyTorch's threads wait for each other in a loop. While other tests run, that takes twenty times the processor time of the work itself.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A shell that starts this in the background has it ignore SIGINT, and the commands under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing on a machine that others use as well. The gate tries few examples, `make slow` repeats all property tests
# with more (`--hypothesis-profile slow`); a test that needs another number says so as a multiple of the profile's.
_EXAMPLES = {"gate": 15, "slow": 50}
for _name, _number in _EXAMPLES.items():
    settings.register_profile(
        _name,
        deadline=None,
        max_examples=_number,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile("gate")

_FIRST = ("integration", "e2e", "local", "examples")
"""Folders with the longest test files. If these run first, workers that get one file at a time (`--dist loadfile`) end at about the same time."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imported modules and collected tests stay alive until the end, so the garbage collector does not scan them, not even in tests that call it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        # The tests' own objects are few. With the usual thresholds, the collector takes a twentieth of the tests' processor time.
        gc.set_threshold(20_000, 20, 100)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def turn(item: pytest.Item) -> int:
        folder = item.path.relative_to(here).parts[0]
        return _FIRST.index(folder) if folder in _FIRST else len(_FIRST)

    items.sort(key=turn)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not num_gpus():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def preloaded_fakes() -> Iterator[None]:
    """From now on, tests fork processes from a process that has imported the fakes and the modules of all services."""
    with held_fork_server():
        yield


@pytest.fixture(scope="module")
def bare_fork_server() -> Iterator[None]:
    """Tests of the module fork processes from a process without PyTorch, whose memory would count as theirs."""
    with other_fork_server(()):
        yield


@pytest.fixture(scope="session")
def stack_options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from tests.support.shared_stack import options  # it imports PyTorch, which most tests do without

    return options(tmp_path_factory.mktemp("plug-ins"))
