"""Servers of these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from modyn.config.system_sections.endpoint import Endpoint
from modyn.proto import selector_pb2_grpc as pb_grpc
from modyn.rpc.server import Registration, RunningServer, start_server


@pytest.fixture
def serve_selector() -> Iterator[Callable[[pb_grpc.SelectorServicer, Endpoint], RunningServer]]:
    """Starts a server of the calls of the selector, which is stopped when the test ends."""
    with ExitStack() as running:

        def start(servicer: pb_grpc.SelectorServicer, endpoint: Endpoint) -> RunningServer:
            registration = Registration(pb_grpc.add_SelectorServicer_to_server, servicer, "modyn.Selector")
            server = start_server("selector", endpoint, [registration], max_threads=8)
            running.callback(server.stop, 0.1)
            return server

        yield start
