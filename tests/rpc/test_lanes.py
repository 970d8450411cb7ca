"""Followers and long calls keep neither health checks nor other calls waiting."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import DeadlineError, StreamExpiredError, UnavailableError
from modyn.proto import common_pb2
from modyn.proto import supervisor_pb2 as pb
from modyn.proto import supervisor_pb2_grpc as pb_grpc
from modyn.rpc.channel import Channel, ResponseStream, is_serving
from modyn.rpc.retry import ResumingStream, Retrier, RetryPolicy
from modyn.rpc.server import Registration, start_server
from modyn.testing.waiting import PATIENCE_S, eventually

THREADS = 4


class Servicer(pb_grpc.SupervisorServicer):
    """`Watch` streams one event and follows until its client leaves; `RemoveRun` lasts until the test ends."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.removing = threading.Semaphore(0)

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.RunEvent]:
        left = threading.Event()
        context.add_callback(left.set)
        yield pb.RunEvent(seq=request.after_seq + 1)
        left.wait(4 * PATIENCE_S)

    def RemoveRun(self, request: pb.RemoveRunRequest, context: grpc.ServicerContext) -> common_pb2.Empty:
        self.removing.release()
        self.ended.wait(4 * PATIENCE_S)
        return common_pb2.Empty()

    def StopRun(self, request: pb.RunName, context: grpc.ServicerContext) -> pb.Run:
        return pb.Run(run_id=request.run_id)


Serve = Callable[..., tuple[Servicer, Endpoint]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a server with few threads."""
    with ExitStack() as running:

        def start(**limits: int) -> tuple[Servicer, Endpoint]:
            servicer, where = Servicer(), Endpoint(address=f"unix:{tmp_path}/s.sock")
            registration = Registration(pb_grpc.add_SupervisorServicer_to_server, servicer, "modyn.Supervisor")
            running.callback(start_server("supervisor", where, [registration], max_threads=THREADS, **limits).stop, 0.1)
            running.callback(servicer.ended.set)
            eventually(lambda: is_serving(where))
            return servicer, where

        yield start


def followed(channel: Channel, number: int) -> list[ResponseStream[pb.RunEvent]]:
    """Streams of as many followers, each of which the server has accepted."""
    streams = [pb_grpc.SupervisorStub(channel).Watch(pb.WatchRequest()) for _ in range(number)]
    for stream in streams:
        assert next(stream).seq == 1
    return streams


def test_followers_keep_no_other_call_waiting(serve: Serve) -> None:
    _, where = serve()
    with Channel(where, wait_s=0) as channel:
        streams = followed(channel, THREADS)
        assert is_serving(where, timeout_s=PATIENCE_S)
        assert pb_grpc.SupervisorStub(channel).StopRun(pb.RunName(run_id="a"), timeout=PATIENCE_S).run_id == "a"
        assert len(streams) == THREADS  # a stream that is not kept ends


def test_long_calls_keep_neither_health_checks_nor_control_waiting(serve: Serve) -> None:
    servicer, where = serve()
    with Channel(where, wait_s=0) as channel:
        remove = pb_grpc.SupervisorStub(channel).RemoveRun
        callers = [threading.Thread(target=remove, args=(pb.RemoveRunRequest(),)) for _ in range(THREADS)]
        for caller in callers:
            caller.start()
        assert all(servicer.removing.acquire(timeout=PATIENCE_S) for _ in callers)
        assert is_serving(where, timeout_s=PATIENCE_S)
        assert pb_grpc.SupervisorStub(channel).StopRun(pb.RunName(run_id="a"), timeout=PATIENCE_S).run_id == "a"
        servicer.ended.set()
        for caller in callers:
            caller.join(PATIENCE_S)


def test_more_followers_than_allowed_are_refused_and_one_that_leaves_makes_room(serve: Serve) -> None:
    _, where = serve(max_followers=2)
    with Channel(where, wait_s=0) as channel:
        first, second = followed(channel, 2)
        for _ in range(2 * THREADS):
            with pytest.raises(UnavailableError, match=r"serves 2 followers.*supervisor\.max_followers"):
                followed(channel, 1)
        first.cancel()
        eventually(lambda: _is_accepted(channel))
        second.cancel()


def _is_accepted(channel: Channel) -> bool:
    try:
        followed(channel, 1)
    except UnavailableError:
        return False
    return True


def test_a_stream_that_is_never_accepted_ends_at_its_deadline(tmp_path: Path) -> None:
    """The server listens, and does not answer."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/s.sock")
        listening.listen()
        with Channel(Endpoint(address=f"unix:{tmp_path}/s.sock"), wait_s=0, stream_s=0.2) as channel:
            stream: Any = pb_grpc.SupervisorStub(channel).Watch(pb.WatchRequest())
            with pytest.raises(DeadlineError):
                next(stream)


def test_a_stream_whose_deadline_passes_is_opened_again_where_it_was(serve: Serve) -> None:
    _, where = serve()
    with Channel(where, wait_s=0, stream_s=0.2) as channel:
        stub = pb_grpc.SupervisorStub(channel)

        def opened(after: int) -> Iterator[pb.RunEvent]:
            return iter(stub.Watch(pb.WatchRequest(after_seq=after)))

        retrier = Retrier(RetryPolicy(0.0))  # Errors are not retried: the end of an accepted stream is not an error.
        events: ResumingStream[pb.RunEvent, int] = ResumingStream(opened, 0, lambda event: int(event.seq), retrier)
        assert [next(events).seq for _ in range(3)] == [1, 2, 3]
        with pytest.raises(StreamExpiredError):
            list(opened(0))
