"""Metrics are for everyone on this machine, and beyond it for those who have the token."""

from __future__ import annotations

import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from modyn.config.system_sections.endpoint import Endpoint
from modyn.config.system_sections.security import SecurityConfig
from modyn.errors import ConfigError, SecurityError, UnavailableError
from modyn.rpc.metrics_server import MetricsServer
from tests.support.certificates import issue
from tests.support.ipv6 import needs_ipv6

TOKEN = "correct horse battery"


@contextmanager
def serving(endpoint: Endpoint) -> Iterator[str]:
    """The URL of metrics that are served at `endpoint`."""
    server = MetricsServer("selector", endpoint)
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def local() -> Iterator[str]:
    with serving(Endpoint(address="127.0.0.1:0")) as url:
        yield url


@pytest.fixture
def security(tmp_path: Path) -> SecurityConfig:
    (tmp_path / "token").write_text(TOKEN)
    return issue(tmp_path, token_file=tmp_path / "token", tls_ca=None)


def get(url: str, token: str | None, authority: Path | None = None) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    context = ssl.create_default_context(cafile=str(authority)) if authority else None
    with urllib.request.urlopen(request, context=context) as answer:
        read: bytes = answer.read()
    return read


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("127.0.0.1:0", "127.0.0.1"),
        pytest.param("[::1]:0", "[::1]", marks=needs_ipv6),
        pytest.param("::1:0", "[::1]", marks=needs_ipv6),
    ],
)
def test_on_loopback_they_need_nothing(address: str, host: str) -> None:
    with serving(Endpoint(address=address, security=SecurityConfig(token=TOKEN))) as url:
        assert url.startswith(f"http://{host}:")
        assert b"python_info" in get(url, None)


@pytest.mark.parametrize("wrong", [None, "x" * 20])
def test_off_loopback_they_need_the_token(wrong: str | None, security: SecurityConfig, tmp_path: Path) -> None:
    with serving(Endpoint(address="0.0.0.0:0", security=security)) as url:
        assert url.startswith("https://0.0.0.0:")
        here = url.replace("0.0.0.0", "localhost")
        assert b"python_info" in get(here, TOKEN, tmp_path / "ca")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(here, wrong, tmp_path / "ca")


def test_off_loopback_they_are_not_served_without_tls_and_token() -> None:
    with pytest.raises(
        SecurityError, match=r"selector\.metrics_host will not listen on .* without tls_cert and tls_key and token"
    ):
        MetricsServer("selector", Endpoint(address="0.0.0.0:0"))


def test_a_taken_port_is_named() -> None:
    with serving(Endpoint(address="127.0.0.1:0")) as url, pytest.raises(UnavailableError, match=r"set selector\.metrics_port"):
        MetricsServer("selector", Endpoint(address=url.split("/")[2]))


def test_a_certificate_that_cannot_be_read_is_named(security: SecurityConfig, tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("nothing of the kind")
    with pytest.raises(ConfigError, match=r"security\.tls_cert: cannot read"):
        MetricsServer("selector", Endpoint(address="0.0.0.0:0", security=security))


def sent(url: str, request: bytes) -> bytes:
    """Return the server's answer to these bytes, until it closes the connection."""
    host, port = url.split("/")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(request)
        parts = list[bytes]()
        try:
            while part := client.recv(65536):
                parts.append(part)
        except ConnectionError:  # It has not read all.
            pass
        return b"".join(parts)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Host: localhost", 200),
        ("Host: evil.example", 403),
        ("Host: localhost\r\nOrigin: http://evil.example", 403),
        ("Host: localhost\r\nSec-Fetch-Site: cross-site", 403),
        ("Host: localhost\r\nHost: localhost", 400),
        ("Accept: */*", 400),
        ("Host: localhost\r\nX-Much: " + "a" * 70_000, 431),
        ("\r\n".join(["Host: localhost", *("X-Much: " + "a" * 1000 for _ in range(70))]), 431),
    ],
)
def test_a_page_of_a_stranger_gets_no_metrics(local: str, headers: str, status: int) -> None:
    answer = sent(local, f"GET /metrics HTTP/1.1\r\n{headers}\r\n\r\n".encode())
    assert (answer.split()[1], b"python_info" in answer) == (str(status).encode(), status == 200)


def test_names_that_the_server_was_given_are_its_own() -> None:
    server = MetricsServer("serving", Endpoint(address="127.0.0.1:0"), ("models.example.org",))
    try:
        assert b" 200 " in sent(server.url, b"GET /metrics HTTP/1.1\r\nHost: models.example.org\r\n\r\n")
        assert b"serving.allowed_hosts" in sent(server.url, b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    finally:
        server.stop()


def test_clients_that_hold_connections_do_not_get_a_thread_each() -> None:
    with serving(Endpoint(address="127.0.0.1:0")) as url, ExitStack() as stack:
        host, port = url.split("/")[2].split(":")
        clients = [stack.enter_context(socket.create_connection((host, int(port)), timeout=30)) for _ in range(70)]
        refused = [client for client in clients[64:] if client.recv(1) == b""]
        assert len(refused) == 6
        clients[0].close()
        give_up = time.monotonic() + 30
        while b" 200 " not in sent(url, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            assert time.monotonic() < give_up
