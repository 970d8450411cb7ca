"""Metrics are for everyone on this machine, and beyond it for those who have the token."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from modyn.config.endpoint import Endpoint
from modyn.config.security import SecurityConfig
from modyn.errors import ConfigError, SecurityError, UnavailableError
from modyn.rpc.metrics import MetricsServer
from tests.support.ipv6 import needs_ipv6

TOKEN = "correct horse battery"


@contextmanager
def serving(endpoint: Endpoint) -> Iterator[str]:
    """The URL of metrics that are served at `endpoint`."""
    server = MetricsServer("selector", endpoint)
    yield server.url
    server.stop()


@pytest.fixture
def security(tmp_path: Path) -> SecurityConfig:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    (tmp_path / "token").write_text(TOKEN)
    return SecurityConfig(tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem", token_file=tmp_path / "token")


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
        assert b"python_info" in get(here, TOKEN, tmp_path / "ca.pem")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(here, wrong, tmp_path / "ca.pem")


def test_off_loopback_they_are_not_served_without_tls_and_token() -> None:
    with pytest.raises(
        SecurityError, match=r"selector\.metrics_host will not listen on .* without tls_cert and tls_key and token"
    ):
        MetricsServer("selector", Endpoint(address="0.0.0.0:0"))


def test_a_taken_port_is_named() -> None:
    with serving(Endpoint(address="127.0.0.1:0")) as url, pytest.raises(UnavailableError, match=r"set selector\.metrics_port"):
        MetricsServer("selector", Endpoint(address=url.split("/")[2]))


def test_a_certificate_that_cannot_be_read_is_named(security: SecurityConfig, tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nothing of the kind")
    with pytest.raises(ConfigError, match=r"security\.tls_cert: cannot read"):
        MetricsServer("selector", Endpoint(address="0.0.0.0:0", security=security))
