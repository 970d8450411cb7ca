"""Serves the HTTP application by Uvicorn, in a thread of its own."""

from __future__ import annotations

import asyncio
import functools
import ssl
import threading
import time
from pathlib import Path
from typing import Any, Final, cast

import uvicorn
from uvicorn.config import create_ssl_context

from modyn.config.endpoint import Endpoint
from modyn.errors import ConfigError, UnavailableError
from modyn.rpc.logs import get_logger
from modyn.rpc.security import check_exposure, version_of
from modyn.serving.addresses import bound_socket
from modyn.serving.http_app import HttpApp
from modyn.serving.http_connection import Connection, Stalled
from modyn.serving.http_limits import ClientConnections
from modyn.workers.process import give_back_freed

_START_S: Final = 30.0
_BACKLOG: Final = 2048
_KEEP_ALIVE_S: Final = 75
"""How long an idle connection stays open: longer than the minute after which proxies and pools of clients usually close their end."""
_ARRIVAL_S: Final = 75.0
_LOOK_S: Final = 1
"""Between two looks for requests that do not arrive."""


class HttpServer:
    """Listens from the time that it is made until `stop`.

    Args: endpoint: host:port; port 0 is any free one. grace_s: how long requests that run may take when it stops. arrival_s: how long a request may
    take to arrive as a whole.
    Raises: SecurityError: that would be unsafe. UnavailableError: the address is taken. ConfigError: the certificate cannot be read.
    """

    def __init__(self, app: HttpApp, endpoint: Endpoint, grace_s: float = 5.0, arrival_s: float = _ARRIVAL_S) -> None:
        check_exposure("serving", endpoint)
        host = endpoint.address.rsplit(":", 1)[0]
        self._socket = bound_socket(endpoint)
        security = endpoint.security
        secure = security.tls_cert is not None
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=cast(
                "Any", functools.partial(Connection, limits=app.limits, clients=ClientConnections(app.limits.max_connections))
            ),
            ws="none",
            proxy_headers=False,
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(grace_s)),
            callback_notify=self._end_stalled,
            timeout_notify=_LOOK_S,
            ssl_certfile=security.tls_cert,
            ssl_keyfile=security.tls_key,
            ssl_ca_certs=None if security.client_ca is None else str(security.client_ca),
            ssl_cert_reqs=2 if security.client_ca is not None else 0,  # ssl.CERT_REQUIRED, CERT_NONE
        )
        try:
            config.load()
        except OSError as error:
            self._socket.close()
            raise ConfigError(f"security.tls_cert: cannot read {security.tls_cert} with {security.tls_key}: {error}") from error
        if config.ssl is not None:
            _show_as_in_files(config, config.ssl)
        self._server = uvicorn.Server(config)
        app.open_requests = self._server.server_state.tasks
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self.url = f"{'https' if secure else 'http'}://{self.address}"
        self._app, self._grace_s = app, grace_s
        self._stalled = Stalled(arrival_s)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="http", daemon=True)
        self._thread.start()
        self._wait_until_started()

    def stop(self) -> None:
        """Take no new connections, let running requests end, and close the others after `grace_s`."""
        self._server.should_exit = True  # Uvicorn looks ten times a second
        self._thread.join(self._grace_s + 2)
        self._socket.close()

    async def _end_stalled(self) -> None:
        """Called by Uvicorn's loop."""
        for connection in self._stalled.look(cast("set[Connection]", self._server.server_state.connections)):
            connection.refuse(408, "the request did not arrive as a whole; send it again")
        if self._app.bodies.took_much():
            # In another thread: it takes some milliseconds.
            await asyncio.to_thread(give_back_freed)

    def _wait_until_started(self) -> None:
        give_up = time.monotonic() + _START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > give_up:
                raise UnavailableError(f"the HTTP server at {self.address} did not start; the log has the details")
            time.sleep(0.005)


def _show_as_in_files(config: uvicorn.Config, context: ssl.SSLContext) -> None:
    """Show each new connection the certificate that the files hold then, and trust clients by the authority in its file. One that cannot be read is
    logged, and the last good one holds."""
    files = [Path(str(name)) for name in (config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs) if name is not None]
    version, newest = version_of(*files), context

    def renew(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        nonlocal version, newest
        if (now := version_of(*files)) != version:
            version = now
            try:
                newest = create_ssl_context(
                    certfile=str(config.ssl_certfile),
                    keyfile=config.ssl_keyfile,
                    password=None,
                    ssl_version=config.ssl_version,
                    cert_reqs=config.ssl_cert_reqs,
                    ca_certs=config.ssl_ca_certs,
                    ciphers=config.ssl_ciphers,
                )
            except OSError as error:
                get_logger("serving.http").warning("certificates_not_read_again", error=str(error))
        connection.context = newest

    context.sni_callback = renew  # also called where a client names no server
