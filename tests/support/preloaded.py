"""Modules that the tests' fork server imports once: each process that uses the fakes would need most of a second to import them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Final

from modyn.workers.fork_server import kept_running, warm_up

PRELOADED: Final = (
    "modyn.trainer_server.preload",
    "modyn.evaluator.preload",
    "modyn.storage.ingest.format_runner",
    "modyn.storage.formats.parquet",
    "modyn.storage.formats.json_lines",
    "modyn.cli.serve",
    "modyn.serving.run_server",
    "tests.support.training",
)
"""The imports of all services, because the fork server is held."""

_is_held = False


@contextmanager
def held_fork_server() -> Iterator[None]:
    """Keep one fork server with `PRELOADED` until the end of the block, even if a service of a test asks for other modules."""
    global _is_held  # noqa: PLW0603  (there is one fork server in a process)
    with kept_running():
        _restart(PRELOADED)
        _is_held = True
        yield
        _is_held = False


@contextmanager
def other_fork_server(preload: Sequence[str]) -> Iterator[None]:
    """Fork processes within the block from a server that imports only `preload`."""
    _restart(preload)
    try:
        yield
    finally:
        if _is_held:
            _restart(PRELOADED)
        else:
            forkserver._forkserver._stop()  # type: ignore[attr-defined]


def _restart(preload: Sequence[str]) -> None:
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # one that runs keeps the modules that it began with
    warm_up(preload, None)
