"""Servers and channels: one translation of errors, safe addresses, and a clean end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from modyn.config.system import SystemConfig
from modyn.config.system_sections.endpoint import Endpoint
from modyn.config.system_sections.security import SecurityConfig
from modyn.errors import BY_REASON, CancelledError, DataError, ModynError, SecurityError, UnavailableError
from modyn.proto import selector_pb2 as pb
from modyn.proto import selector_pb2_grpc as pb_grpc
from modyn.rpc.access import Role, derived_token
from modyn.rpc.channel import Channel, ResponseStream, is_serving
from modyn.rpc.logs import get_logger
from modyn.rpc.server import Registration, RunningServer, ServiceContext, ShutdownLimits, start_server
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.certificates import issue

TOKEN = "correct horse battery"


class Servicer(pb_grpc.SelectorServicer):
    """`Trigger` raises what the run is named after; `GetKeys` streams two messages and then does the same, or never ends."""

    def Trigger(self, request: Any, context: grpc.ServicerContext) -> pb.TriggerSet:
        if request.run_id in BY_REASON:
            raise BY_REASON[request.run_id](f"about {request.run_id} — ünïcode")
        if request.run_id == "bug":
            raise ZeroDivisionError("oops")
        if request.run_id == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "scratch")
        return pb.TriggerSet(run_id=request.run_id)

    def GetKeys(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        from modyn.proto.common_pb2 import KeyColumns

        yield KeyColumns()
        yield KeyColumns()
        if request.run_id == "endless":
            ended = threading.Event()
            context.add_callback(ended.set)
            ended.wait()
            return
        raise BY_REASON[request.run_id]("in the middle")


Serve = Callable[[Endpoint], RunningServer]


@pytest.fixture
def serve(serve_selector: Callable[..., RunningServer]) -> Serve:
    return lambda endpoint: serve_selector(Servicer(), endpoint)


@pytest.fixture
def endpoint(tmp_path: Path, serve: Serve) -> Endpoint:
    where = Endpoint(address=f"unix:{tmp_path}/s.sock")
    serve(where)
    return where


@pytest.mark.parametrize("reason", sorted(BY_REASON))
def test_an_error_is_the_same_on_both_sides(endpoint: Endpoint, reason: str) -> None:
    with Channel(endpoint, wait_s=0) as channel:
        stub = pb_grpc.SelectorStub(channel)
        with pytest.raises(ModynError) as caught:
            stub.Trigger(pb.TriggerRequest(run_id=reason))
        assert type(caught.value) is BY_REASON[reason]
        assert caught.value.message == f"about {reason} — ünïcode"
        received = []
        with pytest.raises(ModynError) as caught:
            received.extend(stub.GetKeys(pb.PartitionRequest(run_id=reason)))
        assert type(caught.value) is BY_REASON[reason]


def test_a_bug_is_an_internal_error_that_names_the_call(endpoint: Endpoint) -> None:
    with Channel(endpoint) as channel, pytest.raises(ModynError, match="Trigger failed: ZeroDivisionError: oops"):
        pb_grpc.SelectorStub(channel).Trigger(pb.TriggerRequest(run_id="bug"))


def test_a_full_disk_is_a_service_that_may_answer_later(endpoint: Endpoint) -> None:
    told = r"the disk is full: .*No space left on device: 'scratch'; free space there"
    with Channel(endpoint, wait_s=0) as channel, pytest.raises(UnavailableError, match=told):
        pb_grpc.SelectorStub(channel).Trigger(pb.TriggerRequest(run_id="full"))


def test_health_and_reflection(endpoint: Endpoint) -> None:
    eventually(lambda: is_serving(endpoint))
    with grpc.insecure_channel(endpoint.address) as channel:
        answers = ServerReflectionStub(channel).ServerReflectionInfo(iter([ServerReflectionRequest(list_services="")]))
        names = {service.name for service in next(answers).list_services_response.service}
    assert "modyn.Selector" in names


def test_a_call_waits_for_a_server_that_comes_back(tmp_path: Path, serve: Serve) -> None:
    where = Endpoint(address=f"unix:{tmp_path}/late.sock")
    late = threading.Timer(0.5, serve, [where])
    late.start()
    with Channel(where, wait_s=PATIENCE_S) as channel:
        assert pb_grpc.SelectorStub(channel).Trigger(pb.TriggerRequest(run_id="ok")).run_id == "ok"
    late.join()


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    where = Endpoint(address=f"unix:{tmp_path}/none.sock")
    with (
        Channel(where, wait_s=0.2) as channel,
        pytest.raises(UnavailableError, match=r"none\.sock cannot be reached.*modyn up"),
    ):
        pb_grpc.SelectorStub(channel).Trigger(pb.TriggerRequest())
    assert not is_serving(where)


def test_a_stream_can_be_cancelled_from_another_thread(endpoint: Endpoint) -> None:
    with Channel(endpoint) as channel:
        stream: ResponseStream[Any] = pb_grpc.SelectorStub(channel).GetKeys(pb.PartitionRequest(run_id="endless"))
        next(stream)
        next(stream)
        threading.Timer(0.05, stream.cancel).start()
        with pytest.raises(CancelledError):
            next(stream)


def test_a_taken_port_is_named(serve: Serve) -> None:
    first = serve(Endpoint(address="127.0.0.1:0"))
    with pytest.raises(UnavailableError, match=rf"cannot listen on {first.address}.*selector\.address"):
        serve(Endpoint(address=first.address))


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.1.2.3:0"])
def test_off_loopback_it_refuses_without_tls_and_token(address: str, serve: Serve) -> None:
    with pytest.raises(SecurityError, match="tls_cert and tls_key and token"):
        serve(Endpoint(address=address))
    with pytest.raises(SecurityError, match="without tls_cert and tls_key"):
        serve(Endpoint(address=address, security=SecurityConfig(token=TOKEN)))


@pytest.fixture
def security(tmp_path: Path) -> SecurityConfig:
    (tmp_path / "token").write_text(TOKEN + "\n")
    return issue(tmp_path, token_file=tmp_path / "token")


def test_a_token_of_a_lower_role_reads_and_changes_nothing(tmp_path: Path, serve: Serve) -> None:
    where = Endpoint(address=f"unix:{tmp_path}/roles.sock", security=SecurityConfig(token=TOKEN))
    serve(where)
    reader = SecurityConfig(token=derived_token(TOKEN, Role.READER))
    with Channel(where.model_copy(update={"security": reader})) as channel:
        stub = pb_grpc.SelectorStub(channel)
        with pytest.raises(DataError):
            list(stub.GetKeys(pb.PartitionRequest(run_id=DataError.reason)))
        with pytest.raises(SecurityError, match="Trigger needs the role writer, .* of a reader"):
            stub.Trigger(pb.TriggerRequest(run_id="ok"))


def test_who_has_no_token_is_refused_before_the_request_is_read(tmp_path: Path, serve: Serve) -> None:
    """Requests that never end would occupy all threads, and up to `max_message_bytes` of memory each."""
    where = Endpoint(address=f"unix:{tmp_path}/s.sock", security=SecurityConfig(token=TOKEN))
    serve(where)
    never = threading.Event()

    def call(channel: grpc.Channel, name: str) -> Any:
        endless: Any = iter(never.wait, True)
        return channel.stream_unary(f"/modyn.Selector/{name}").future(endless, timeout=PATIENCE_S)

    with grpc.insecure_channel(where.address) as channel:
        calls = [call(channel, name) for name in ("Trigger", "GetKeys") * 10]
        try:
            assert {each.code() for each in calls} == {grpc.StatusCode.PERMISSION_DENIED}
        finally:
            never.set()


def test_a_request_that_does_not_arrive_ends_its_call(tmp_path: Path) -> None:
    """Otherwise a few clients that send nothing would occupy all threads."""
    where = f"unix:{tmp_path}/s.sock"
    registration = Registration(pb_grpc.add_SelectorServicer_to_server, Servicer(), "modyn.Selector")
    server = start_server("selector", Endpoint(address=where), [registration], max_threads=2, arrival_s=0.3)
    never = threading.Event()
    endless: Any = iter(never.wait, True)
    with grpc.insecure_channel(where) as channel:
        silent: list[Any] = [
            channel.stream_unary("/modyn.Selector/Trigger").future(endless, timeout=PATIENCE_S) for _ in range(5)
        ]
        try:
            assert {each.code() for each in silent} == {grpc.StatusCode.CANCELLED}
        finally:
            never.set()
        assert pb_grpc.SelectorStub(channel).Trigger(pb.TriggerRequest(run_id="ok"), timeout=PATIENCE_S).run_id == "ok"
        with pytest.raises(grpc.RpcError, match="the call ended without a request"):
            channel.stream_unary("/modyn.Selector/Trigger")(iter(()))
    server.stop(0)


def test_tls_and_token_let_in_who_has_them_and_no_one_else(security: SecurityConfig, serve: Serve) -> None:
    server = serve(Endpoint(address="0.0.0.0:0", security=security))
    address = f"127.0.0.1:{server.address.rsplit(':', 1)[1]}"
    with Channel(Endpoint(address=address, security=security)) as channel:
        assert pb_grpc.SelectorStub(channel).Trigger(pb.TriggerRequest(run_id="ok")).run_id == "ok"
    wrong = SecurityConfig(tls_ca=security.tls_ca, token="x" * 20)
    with Channel(Endpoint(address=address, security=wrong)) as channel, pytest.raises(SecurityError, match="no valid token"):
        pb_grpc.SelectorStub(channel).Trigger(pb.TriggerRequest(run_id="ok"))
    with Channel(Endpoint(address=address), wait_s=0) as channel, pytest.raises(UnavailableError):
        pb_grpc.SelectorStub(channel).Trigger(pb.TriggerRequest(run_id="ok"))
    eventually(lambda: is_serving(Endpoint(address=address, security=wrong)))


PROGRAM = """
import signal, sys, threading, time
from pathlib import Path
from modyn.config.system import SystemConfig
from modyn.proto import selector_pb2_grpc as pb_grpc
from modyn.rpc.server import Registration, ShutdownLimits, run_service

def build(context):
    context.on_shutdown(lambda: print("closed", flush=True))
    context.when_healthy.append(lambda: print("healthy", flush=True))
    exec(sys.argv[2])
    return [Registration(pb_grpc.add_SelectorServicer_to_server, pb_grpc.SelectorServicer(), "modyn.Selector")]

config = SystemConfig(state_dir=Path(sys.argv[1]), selector={"metrics_port": int(sys.argv[4])})
sys.exit(run_service("selector", config, build, eval(sys.argv[3])))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `PROGRAM` as a process; its argument runs while it builds the service."""
    running: list[subprocess.Popen[str]] = []

    def launch(more: str = "", limits: ShutdownLimits = ShutdownLimits(), metrics_port: int = 0) -> subprocess.Popen[str]:  # noqa: B008  (frozen)
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), more, repr(limits), str(metrics_port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield launch
    for process in running:
        process.kill()
        process.communicate()


def wait_healthy(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "healthy\n"


def test_a_service_serves_metrics_at_its_port_and_ends_cleanly_on_sigterm(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = start(metrics_port=port)
    wait_healthy(process)
    config = SystemConfig(state_dir=tmp_path)
    eventually(lambda: is_serving(config.endpoint("selector")))
    assert oct(config.run_dir.stat().st_mode)[-3:] == "700"
    url = (tmp_path / "selector" / "metrics_url").read_text().strip()
    assert url == f"http://127.0.0.1:{port}/metrics"
    assert b"modyn_call_seconds_count" in urllib.request.urlopen(url).read()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert out == "closed\n"
    assert '"event": "stopped"' in err


def test_a_signal_that_meets_another_thread_ends_the_service(start: Callable[..., subprocess.Popen[str]]) -> None:
    """The main thread waits and hears nothing of it."""
    hit = "threading.Thread(target=lambda: (time.sleep(0.5), signal.pthread_kill(threading.get_ident(), signal.SIGTERM))).start()"
    process = start(f"context.when_healthy.append(lambda: {hit})")
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert out == "healthy\nclosed\n"


STUCK = pytest.mark.parametrize("stuck", ["on_shutdown(lambda", "when_healthy.append(lambda"])


@STUCK
def test_a_service_that_is_stuck_says_where(start: Callable[..., subprocess.Popen[str]], stuck: str) -> None:
    """The service reports repeatedly, because at the first report it may only be slow, at another position."""
    process = start(f"context.{stuck}: threading.Event().wait())", ShutdownLimits(report_s=0.2, exit_s=PATIENCE_S))
    assert process.stderr is not None
    wait_healthy(process)
    process.send_signal(signal.SIGTERM)
    told = iter(process.stderr)
    assert any(line == "Timeout (0:00:00.200000)!\n" for line in told)
    assert any(line == '  File "<string>", line 1 in <lambda>\n' for line in told)


@STUCK
def test_a_service_that_is_stuck_ends_by_itself(start: Callable[..., subprocess.Popen[str]], stuck: str) -> None:
    process = start(f"context.{stuck}: threading.Event().wait())", ShutdownLimits(exit_s=1.0))
    wait_healthy(process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert not out


def test_another_signal_that_somebody_handles_ends_nothing(start: Callable[..., subprocess.Popen[str]]) -> None:
    hear = "lambda number, _: print(signal.Signals(number).name, file=sys.stderr, flush=True)"
    process = start(f"for number in (signal.SIGUSR1, signal.SIGTERM): signal.signal(number, {hear})")
    assert process.stderr is not None
    wait_healthy(process)
    process.send_signal(signal.SIGUSR1)
    told = iter(process.stderr)
    assert any(line == "SIGUSR1\n" for line in told)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGTERM)
    assert next(line for line in told if line == "SIGTERM\n" or '"event": "stopping"' in line) == "SIGTERM\n"
    assert any('"event": "stopped"' in line for line in told)
    assert process.wait(PATIENCE_S) == 0


def test_a_second_service_on_the_same_folder_is_refused_until_the_first_is_killed(
    start: Callable[[], subprocess.Popen[str]],
) -> None:
    first = start()
    wait_healthy(first)
    second = start()
    assert second.wait(PATIENCE_S) == 1
    assert second.stderr is not None
    told = second.stderr.read()
    assert "another selector service works on" in told
    assert '"reason": "CONFLICT"' in told
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    third = start()
    wait_healthy(third)


def test_what_a_service_keeps_is_for_its_user_alone(make_config: Callable[..., SystemConfig], tmp_path: Path) -> None:
    config = make_config(state_dir=tmp_path / "state")
    config.service_dir("selector").mkdir(parents=True, mode=0o755)
    for name in ("storage", "selector"):
        folder = ServiceContext(name, config, get_logger(name)).directory
        assert folder == config.service_dir(name)
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_version_is_refused_and_left_as_it_is(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "selector" / "runs").mkdir(parents=True)
    process = start()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert f"{tmp_path / 'selector'} was written by another version of Modyn" in err
    assert [path.name for path in (tmp_path / "selector").iterdir()] == ["runs"]
