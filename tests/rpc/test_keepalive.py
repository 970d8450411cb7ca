"""Clients and servers agree about pings: an idle stream lives, and a lost peer is found."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from grpc import _cython
from grpc_health.v1 import health_pb2, health_pb2_grpc

import modyn
from modyn.config.system_sections.endpoint import Endpoint
from modyn.rpc.server import start_server


def options_in_the_code() -> Iterator[str]:
    for path in Path(modyn.__file__).parent.rglob("*.py"):
        if "proto" not in path.parts:
            yield from re.findall(r'\("(grpc\.[a-z0-9_.]+)", ', path.read_text())


def test_grpc_knows_every_option_that_it_is_given() -> None:
    """gRPC silently ignores unknown options."""
    (path,) = (path for folder in _cython.__path__ for path in Path(folder).glob("cygrpc*.so"))
    library = path.read_bytes()
    given = set(options_in_the_code())
    assert {"grpc.keepalive_time_ms", "grpc.http2.min_ping_interval_without_data_ms"} <= given
    assert {name for name in given if name.encode() + b"\0" not in library} == set()


@pytest.mark.slow  # Four pings, at the least interval that gRPC allows a client.
def test_an_idle_stream_outlives_more_pings_than_grpc_allows_by_itself() -> None:
    server = start_server("test", Endpoint(address="127.0.0.1:0"), [])
    options = [("grpc.keepalive_time_ms", 11_000), ("grpc.http2.max_pings_without_data", 0)]
    with closing(grpc.insecure_channel(server.address, options=options)) as channel:
        statuses = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        next(statuses)
        ended = threading.Event()
        statuses.add_callback(ended.set)
        assert not ended.wait(50.0)
        statuses.cancel()
    server.stop()
