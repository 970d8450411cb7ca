"""Limits of what one client can occupy: threads of a service, bytes of a message, bytes of an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from modyn.config.system_sections.endpoint import Endpoint
from modyn.config.system_sections.security import SecurityConfig
from modyn.errors import InvalidArgumentError, NotFoundError, SecurityError
from modyn.proto import selector_pb2 as pb
from modyn.proto import selector_pb2_grpc as pb_grpc
from modyn.records import SampleBatch
from modyn.rpc.arrays import batch_to_proto, items_per_message
from modyn.rpc.channel import Channel, is_serving
from modyn.rpc.server import RunningServer
from modyn.rpc.status import bounded
from modyn.storage.flight.protocol import error_from_flight, error_to_flight
from modyn.testing.waiting import PATIENCE_S, eventually

TOKEN = "correct horse battery"


class Servicer(pb_grpc.SelectorServicer):
    """Raises NotFoundError with the run id, repeated as often as the trigger id says."""

    def Trigger(self, request: Any, context: grpc.ServicerContext) -> pb.TriggerSet:
        raise NotFoundError(request.run_id * request.trigger_id)


Serve = Callable[..., Endpoint]


@pytest.fixture
def serve(serve_selector: Callable[..., RunningServer], tmp_path: Path) -> Serve:
    """Starts a server with these fields of its endpoint."""

    def start(**fields: Any) -> Endpoint:
        where = Endpoint(address=f"unix:{tmp_path}/s.sock", **fields)
        serve_selector(Servicer(), where)
        return where

    return start


def test_only_checks_of_health_need_no_token(serve: Serve) -> None:
    """A health watch without a token is refused: it occupies a thread for as long as it lasts."""
    endpoint = serve(security=SecurityConfig(token=TOKEN))
    stranger = Endpoint(address=endpoint.address)
    eventually(lambda: is_serving(stranger))
    with Channel(stranger, wait_s=0) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for _ in range(8):
            with pytest.raises(SecurityError, match="no valid token"):
                next(stub.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S))
        assert is_serving(stranger)
    with Channel(endpoint, wait_s=0) as channel:
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
        watching.cancel()


@pytest.mark.parametrize("text", ["a", "ä", "漢", "%", "\n"])
@pytest.mark.parametrize("times", [100, 5_000, 100_000])
def test_an_error_of_any_length_arrives(serve: Serve, text: str, times: int) -> None:
    error = NotFoundError(text * times)
    with Channel(serve(), wait_s=0) as channel, pytest.raises(NotFoundError) as caught:
        pb_grpc.SelectorStub(channel).Trigger(pb.TriggerRequest(run_id=text, trigger_id=times))
    over_flight = error_from_flight(error_to_flight(error), "here")
    assert isinstance(over_flight, NotFoundError)
    for message in (caught.value.message, over_flight.message):
        assert error.message.startswith(message.removesuffix("..."))
        assert len(message) >= min(100, times)


def test_a_bounded_text_is_as_short_as_it_must_be() -> None:
    for text in ("plain", "ünï", "%", "\udcff", "漢" * 30):
        for size in range(3, 120):
            cut = bounded(text, size).encode()
            assert sum(1 if 0x20 <= byte <= 0x7E and byte != ord("%") else 3 for byte in cut) <= size


def test_a_message_that_is_too_large_says_what_to_raise(serve: Serve) -> None:
    endpoint = serve(max_message_bytes=2**16)
    generous = endpoint.model_copy(update={"max_message_bytes": 2**24})
    with Channel(generous, wait_s=0) as channel, pytest.raises(InvalidArgumentError, match="raise max_message_bytes"):
        pb_grpc.SelectorStub(channel).Trigger(pb.TriggerRequest(run_id="x" * 2**17))


def test_the_number_of_samples_that_fit_into_a_message() -> None:
    endpoint = Endpoint(address="unix:/nowhere", max_message_bytes=2**16)
    count = items_per_message(endpoint, 24)
    anything = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, count)
    assert 0.9 * 2**16 < batch_to_proto(SampleBatch(anything, anything, anything)).ByteSize() <= 2**16


def test_a_compressed_message_is_not_unpacked_beyond_the_limit(serve: Serve) -> None:
    endpoint = serve(max_message_bytes=2**16)
    request = pb.TriggerRequest(run_id="x" * 2**20).SerializeToString()
    with grpc.insecure_channel(endpoint.address) as channel:
        trigger: Any = channel.unary_unary("/modyn.Selector/Trigger")
        with pytest.raises(grpc.RpcError) as caught:
            trigger(request, compression=grpc.Compression.Gzip, timeout=PATIENCE_S)
    assert caught.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED)
