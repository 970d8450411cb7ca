"""A server whose name cannot be resolved for a while, as that of a container that is stopped."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import grpc
import pytest

from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import UnavailableError
from modyn.proto import selector_pb2 as pb
from modyn.proto import selector_pb2_grpc as pb_grpc
from modyn.rpc.channel import RENEW_AFTER_S, Channel
from modyn.rpc.server import RunningServer

_ADDRESSES, _NO_SUCH_NAME = 1, 3


class NameServer:
    """A DNS server on a port of its own, which knows every name as 127.0.0.1 while `knows` is set."""

    def __init__(self) -> None:
        self.knows = False
        self.num_questions = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while len(query := (received := self._socket.recvfrom(512))[0]) > 12:
            end = query.index(b"\0", 12) + 5
            (kind,) = struct.unpack_from("!H", query, end - 4)
            self.num_questions += kind == _ADDRESSES
            found = self.knows and kind == _ADDRESSES
            flags = 0x8180 if self.knows else 0x8180 | _NO_SUCH_NAME
            answer = query[:2] + struct.pack("!5H", flags, 1, found, 0, 0) + query[12:end]
            if found:
                answer += struct.pack("!3HIH4s", 0xC00C, _ADDRESSES, 1, 1, 4, socket.inet_aton("127.0.0.1"))
            self._socket.sendto(answer, received[1])

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()


@pytest.fixture
def names() -> Iterator[NameServer]:
    server = NameServer()
    yield server
    server.close()


class Servicer(pb_grpc.SelectorServicer):
    def Trigger(self, request: pb.TriggerRequest, context: grpc.ServicerContext) -> pb.TriggerSet:
        return pb.TriggerSet(run_id=request.run_id)


def test_a_name_is_asked_for_again_without_the_pauses_of_grpc(
    names: NameServer, serve_selector: Callable[..., RunningServer]
) -> None:
    """During a long outage, the pauses grow to minutes."""
    now = 100.0
    port = serve_selector(Servicer(), Endpoint(address="127.0.0.1:0")).address.rsplit(":", 1)[1]
    where = Endpoint(address=f"dns://127.0.0.1:{names.port}/selector:{port}")
    with Channel(where, wait_s=0, clock=lambda: now) as channel:
        stub = pb_grpc.SelectorStub(channel)
        for num_questions in range(1, 7):
            for _ in range(2):
                with pytest.raises(UnavailableError):
                    stub.Trigger(pb.TriggerRequest())
                assert names.num_questions == num_questions
                now += RENEW_AFTER_S
        names.knows = True
        assert stub.Trigger(pb.TriggerRequest(run_id="ok")).run_id == "ok"
        now += RENEW_AFTER_S
        assert stub.Trigger(pb.TriggerRequest(run_id="ok")).run_id == "ok"
        assert names.num_questions == 7, "a connection that works is kept"
