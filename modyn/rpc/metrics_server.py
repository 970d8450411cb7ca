"""Prometheus metrics over HTTP: on loopback without a token, elsewhere with TLS and a token."""

from __future__ import annotations

import io
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from socketserver import ThreadingTCPServer
from typing import Any, Final

from prometheus_client import REGISTRY, MetricsHandler

from modyn.config.system_sections.endpoint import Endpoint
from modyn.config.system_sections.security import SecurityConfig
from modyn.errors import ConfigError, InvalidArgumentError, SecurityError, UnavailableError
from modyn.rpc.access import AccessTokens
from modyn.rpc.http_guard import MAX_HEAD_BYTES, HttpGuard
from modyn.rpc.security import check_exposure

_MAX_CONNECTIONS: Final = 64
"""Largest number of connections at the same time. Each connection has its own thread. Further connections are closed."""


class _Handler(MetricsHandler):
    """One connection with one request. The answer has the metrics if the request has a valid header `Authorization: Bearer TOKEN`. If tokens are
    not used, `guard` alone decides.
    """

    registry = REGISTRY
    timeout = 10.0  # seconds for the TLS handshake and the head of a request

    def __init__(self, tokens: AccessTokens | None, guard: HttpGuard, *connection: Any) -> None:
        self._tokens, self._guard = tokens, guard
        super().__init__(*connection)

    def handle(self) -> None:
        """Read the head within its bounds of time and size, then answer."""
        self.rfile = io.BufferedReader(io.BytesIO(self._head()))
        super().handle()

    def do_GET(self) -> None:
        """Answer with all metrics, or with an error."""
        try:
            self._guard.check([(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()])
        except (InvalidArgumentError, SecurityError) as error:
            wrong = isinstance(error, InvalidArgumentError)
            return self.send_error(HTTPStatus.BAD_REQUEST if wrong else HTTPStatus.FORBIDDEN, explain=error.message)
        if self._tokens is None or self._tokens.role(self.headers["Authorization"]) is not None:
            return super().do_GET()
        return self.send_error(HTTPStatus.UNAUTHORIZED, "send a token, of a reader or more, as Authorization: Bearer TOKEN")

    def _head(self) -> bytes:
        """Read the request line and the headers. If the headers come too late or are too long, the result is empty. If they are too long, this method
        sends the answer.
        """
        head, give_up = b"", time.monotonic() + self.timeout
        while (end := head.find(b"\r\n\r\n") + 4) < 4 or end > MAX_HEAD_BYTES:
            if len(head) > MAX_HEAD_BYTES:
                self.wfile.write(b"HTTP/1.0 431 Request Header Fields Too Large\r\n\r\n")
                return b""
            self.connection.settimeout(max(0.001, give_up - time.monotonic()))
            try:
                part = self.connection.recv(MAX_HEAD_BYTES)
            except OSError:
                return b""
            if not part:
                return b""
            head += part
        self.connection.settimeout(self.timeout)  # for the answer
        return head[:end]


class _Server(ThreadingTCPServer):
    """TCP server for `_Handler`. The standard library's HTTPServer would first ask the name service for the name of this machine."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        # Bounds the number of connections. The semaphore is acquired for each connection, and released by the thread of the connection. No thread
        # waits for the semaphore.
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection if there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, in the thread of the connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class MetricsServer:
    """Serves the metrics of this process at `endpoint` in separate threads, until `stop`.

    Args: name: name of the service in messages. allowed_hosts: see `HttpGuard`.
    Raises: SecurityError: the address would be unsafe. UnavailableError: the address is taken. ConfigError: the certificate cannot be read.
    """

    def __init__(self, name: str, endpoint: Endpoint, allowed_hosts: Sequence[str] = ()) -> None:
        check_exposure(f"{name}.metrics_host", endpoint)
        host, port = endpoint.address.rsplit(":", 1)
        host = host.strip("[]")  # IPv6
        certificate = None if endpoint.is_local else _certificate(endpoint.security)
        tokens = None if endpoint.is_local else AccessTokens(endpoint.security)
        setting = "serving.allowed_hosts" if name == "serving" else f"{name}.metrics_host"
        guard = HttpGuard(host, tokens is not None, allowed_hosts, setting)
        try:
            self._server = _Server((host, int(port)), partial(_Handler, tokens, guard))
        except OSError as error:
            raise UnavailableError(
                f"{name} cannot serve metrics on {endpoint.address}: {error.strerror}; set {name}.metrics_port in the system file"
            ) from error
        if certificate is not None:
            # The TLS handshake happens at the first read, in the thread of the connection, so that a silent client delays no other client.
            self._server.socket = certificate.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"{'http' if certificate is None else 'https'}://{f'[{host}]' if ':' in host else host}:{self._server.server_address[1]}/metrics"
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def stop(self) -> None:
        """Stop accepting requests."""
        # `shutdown` comes first and waits for the accepting thread, because this thread uses the socket that `server_close` closes.
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
