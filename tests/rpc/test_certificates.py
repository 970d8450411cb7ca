"""Servers that ask clients for certificates, and certificates that change while a service runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
import trustme
from pyarrow import flight
from pydantic import ValidationError

from modyn.config.system import SystemConfig
from modyn.config.system_sections.endpoint import Endpoint
from modyn.config.system_sections.security import SecurityConfig
from modyn.errors import UnavailableError
from modyn.proto import selector_pb2 as pb
from modyn.proto import selector_pb2_grpc as pb_grpc
from modyn.rpc.access import Role, for_workers
from modyn.rpc.channel import DEFAULT_DEADLINE_S, Channel
from modyn.rpc.security import server_credentials
from modyn.rpc.server import RunningServer
from modyn.storage.flight.endpoints import EndpointPool
from modyn.storage.flight.protocol import PayloadRequest
from modyn.storage.flight.server import PayloadServer
from modyn.storage.read.snapshot import DatasetSnapshot
from modyn.testing.waiting import eventually
from tests.support import certificates

TOKEN = "correct horse battery"


class Servicer(pb_grpc.SelectorServicer):
    """Answers."""

    def Trigger(self, request: Any, context: grpc.ServicerContext) -> pb.TriggerSet:
        return pb.TriggerSet(run_id=request.run_id)


class NoDatasets:
    """Is asked for a dataset only by those who came through."""

    def snapshot(self, name: str) -> DatasetSnapshot:
        raise UnavailableError("came through")


def issue(folder: Path, authority: trustme.CA) -> SecurityConfig:
    """Write the files of a service that asks clients for certificates."""
    return certificates.issue(folder, authority, client_ca=folder / "ca", token=TOKEN)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


Serve = Callable[[SecurityConfig], str]


@pytest.fixture
def serve(serve_selector: Callable[..., RunningServer]) -> Serve:
    """Starts a server; returns its address."""
    return lambda security: serve_selector(Servicer(), Endpoint(address="127.0.0.1:0", security=security)).address


def ask(channel: Channel) -> str:
    return str(pb_grpc.SelectorStub(channel).Trigger(pb.TriggerRequest(run_id="ok")).run_id)


def asks(address: str, security: SecurityConfig) -> str:
    with Channel(Endpoint(address=address, security=security), wait_s=0) as channel:
        return ask(channel)


def test_a_client_needs_a_certificate_of_the_authority(tmp_path: Path, authority: trustme.CA, serve: Serve) -> None:
    """The token alone does not do."""
    address = serve(issue(tmp_path / "server", authority))
    client = issue(tmp_path / "client", authority)
    assert asks(address, client) == "ok"
    with pytest.raises(UnavailableError):
        asks(address, SecurityConfig(tls_ca=client.tls_ca, token=TOKEN))
    stranger = issue(tmp_path / "stranger", trustme.CA())
    with pytest.raises(UnavailableError):
        asks(address, stranger.model_copy(update={"tls_ca": client.tls_ca}))


def test_a_client_shows_its_certificate_independent_of_its_own_client_ca(
    tmp_path: Path, authority: trustme.CA, serve: Serve
) -> None:
    address = serve(issue(tmp_path / "server", authority))
    assert asks(address, issue(tmp_path / "client", authority).model_copy(update={"client_ca": None})) == "ok"


def test_a_payload_server_asks_for_it_too(tmp_path: Path, authority: trustme.CA) -> None:
    client = issue(tmp_path / "client", authority)
    server = PayloadServer(
        Endpoint(address="127.0.0.1:0", security=issue(tmp_path / "server", authority)), NoDatasets(), name="storage"
    )
    request = PayloadRequest("numbers", "raise", np.arange(3)).to_ticket()
    try:
        for security, answer in (
            (client, "came through"),
            (SecurityConfig(tls_ca=client.tls_ca, token=TOKEN), "(?i)ssl|tls|connect|socket"),
        ):
            pool = EndpointPool([Endpoint(address=server.address, security=security)])
            connection, options = pool.take(0)
            with connection, pytest.raises(flight.FlightError, match=answer):
                connection.do_get(request, options)
    finally:
        server.stop()


def test_a_new_certificate_and_authority_hold_without_a_restart(tmp_path: Path, authority: trustme.CA, serve: Serve) -> None:
    address = serve(issue(tmp_path / "server", authority))
    client = issue(tmp_path / "client", authority)
    with Channel(Endpoint(address=address, security=client), wait_s=0) as channel:
        stub = pb_grpc.SelectorStub(channel)
        assert stub.Trigger(pb.TriggerRequest(run_id="ok")).run_id == "ok"
        successor = trustme.CA()
        issue(tmp_path / "server", successor)
        with pytest.raises(UnavailableError):  # a new connection
            asks(address, client)
        issue(tmp_path / "client", successor)
        assert asks(address, client) == "ok"
        assert stub.Trigger(pb.TriggerRequest(run_id="ok")).run_id == "ok"


def test_connections_with_old_certificates_are_closed_once_their_calls_have_ended(
    tmp_path: Path, authority: trustme.CA, serve: Serve
) -> None:
    address = serve(issue(tmp_path / "server", authority))
    now = 100.0

    def connections() -> int:
        port, found = int(address.rsplit(":", 1)[1]), psutil.Process().net_connections("tcp")
        return sum(one.status == psutil.CONN_ESTABLISHED and bool(one.raddr) and one.raddr.port == port for one in found)

    client = Endpoint(address=address, security=issue(tmp_path / "client", authority))
    with Channel(client, wait_s=0, clock=lambda: now) as channel:
        for _ in range(3):
            issue(tmp_path / "client", authority)
            assert ask(channel) == "ok"
        assert connections() == 3
        now += DEFAULT_DEADLINE_S
        assert ask(channel) == "ok"
        assert connections() == 3  # A call may just be ending.
        now += 2 * DEFAULT_DEADLINE_S
        assert ask(channel) == "ok"
        eventually(lambda: connections() == 1)


def test_a_file_that_cannot_be_read_later_changes_nothing(
    tmp_path: Path, authority: trustme.CA, serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    server = issue(tmp_path / "server", authority)
    address = serve(server)
    assert server.tls_cert is not None
    server.tls_cert.unlink()
    assert asks(address, issue(tmp_path / "client", authority)) == "ok"
    eventually(lambda: "certificates_not_read_again" in capsys.readouterr().err)
    assert server_credentials(Endpoint(address="unix:/run/a.sock", security=server)) is None


def test_workers_get_what_they_must_show_and_otherwise_no_key(
    tmp_path: Path, authority: trustme.CA, make_config: Callable[..., SystemConfig]
) -> None:
    security = issue(tmp_path / "server", authority)
    assert for_workers(make_config(security=security), Role.READER).security.tls_key == security.tls_key
    open_to_all = security.model_copy(update={"client_ca": None})
    assert for_workers(make_config(security=open_to_all), Role.READER).security.tls_key is None


def test_an_authority_of_clients_needs_tls(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="set tls_cert and tls_key as well"):
        SecurityConfig(client_ca=tmp_path / "ca")
