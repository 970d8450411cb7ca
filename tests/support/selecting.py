"""The selector's service in the test's own process, with a client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from modyn.config.system import SystemConfig
from modyn.rpc.logs import get_logger
from modyn.rpc.server import ServiceContext, start_server
from modyn.selector.client import SelectorClient
from modyn.selector.service import build
from modyn.state_folders import prepare_run_dir


@contextmanager
def serving(config: SystemConfig) -> Iterator[SelectorClient]:
    """A client of a selector that serves as long as the block."""
    context = ServiceContext("selector", config, get_logger("selector"))
    prepare_run_dir(config.run_dir)
    server = start_server("selector", config.endpoint("selector"), build(context))
    try:
        with SelectorClient(config.endpoint("selector")) as opened:
            yield opened
    finally:
        server.stop()
        context.shut_down()
