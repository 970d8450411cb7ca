"""Prometheus metrics over HTTP: on loopback to everyone, beyond it over TLS and to those who send the token."""

from __future__ import annotations

import socket
import ssl
import threading
from functools import partial
from http import HTTPStatus
from socketserver import ThreadingTCPServer
from typing import Any

from prometheus_client import REGISTRY, MetricsHandler

from modyn.config.endpoint import Endpoint
from modyn.config.security import SecurityConfig
from modyn.errors import ConfigError, UnavailableError
from modyn.rpc.access import AccessTokens
from modyn.rpc.security import check_exposure


class _Handler(MetricsHandler):
    """One connection: metrics for `Authorization: Bearer TOKEN`, or for every request if no tokens are given."""

    registry = REGISTRY
    timeout = 10.0  # seconds that a connection may be silent, the TLS handshake included

    def __init__(self, tokens: AccessTokens | None, *connection: Any) -> None:
        self._tokens = tokens
        super().__init__(*connection)

    def do_GET(self) -> None:
        """Answer with all metrics, or with 401."""
        if self._tokens is None or self._tokens.role(self.headers["Authorization"]) is not None:
            super().do_GET()
        else:
            self.send_error(HTTPStatus.UNAUTHORIZED, "send a token, of a reader or more, as Authorization: Bearer TOKEN")


class _Server(ThreadingTCPServer):
    """Not an HTTPServer, which asks the name service for this machine's name before it serves."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)


class MetricsServer:
    """Serves the metrics of this process at `endpoint` in threads of its own, until `stop`.

    Args: name: of the service in messages.
    Raises: SecurityError: that would be unsafe. UnavailableError: the address is taken. ConfigError: the certificate cannot be read.
    """

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        check_exposure(f"{name}.metrics_host", endpoint)
        host, port = endpoint.address.rsplit(":", 1)
        host = host.strip("[]")  # of an address of IPv6
        certificate = None if endpoint.is_local else _certificate(endpoint.security)
        tokens = None if endpoint.is_local else AccessTokens(endpoint.security)
        try:
            self._server = _Server((host, int(port)), partial(_Handler, tokens))
        except OSError as error:
            raise UnavailableError(
                f"{name} cannot serve metrics on {endpoint.address}: {error.strerror}; set {name}.metrics_port in the system file"
            ) from error
        if certificate is not None:
            # The handshake is made by the first read, in the connection's own thread: a silent client delays no other.
            self._server.socket = certificate.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"{'http' if certificate is None else 'https'}://{f'[{host}]' if ':' in host else host}:{self._server.server_address[1]}/metrics"
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def stop(self) -> None:
        """Take no more requests."""
        # In this order: `shutdown` waits for the thread that accepts connections, which uses the socket.
        self._server.shutdown()
        self._server.server_close()


def _certificate(security: SecurityConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert security.tls_cert is not None
    try:
        context.load_cert_chain(security.tls_cert, security.tls_key)
    except OSError as error:
        raise ConfigError(f"security.tls_cert: cannot read {security.tls_cert} with {security.tls_key}: {error}") from error
    return context
