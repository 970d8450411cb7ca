"""HTTP server that runs the application with Uvicorn in a separate thread."""

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

from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import ConfigError, UnavailableError
from modyn.rpc.logs import get_logger
from modyn.rpc.security import check_exposure, version_of
from modyn.serving.addresses import bound_socket
from modyn.serving.protocol.http_app import HttpApp
from modyn.serving.protocol.http_connection import Connection, Stalled
from modyn.serving.protocol.http_limits import ClientConnections
from modyn.workers.worker_process import give_back_freed

_START_S: Final = 30.0
"""Longest time in seconds until Uvicorn listens."""
_BACKLOG: Final = 2048
"""Largest number of new connections that the kernel queues while the event loop is busy."""
_KEEP_ALIVE_S: Final = 75
"""Seconds that an idle connection stays open. Proxies and client pools usually close an idle connection earlier, after a minute."""
_ARRIVAL_S: Final = 75.0
"""Default of `arrival_s`; equal to the time for which an idle connection stays open."""
_LOOK_S: Final = 1
"""Seconds between two searches for requests that do not arrive."""


class HttpServer:
    """HTTP server that listens from its construction until `stop`.

    Args: endpoint: host:port; port 0 selects any free port. grace_s: seconds that running requests get when the server stops. arrival_s: seconds
    within which a whole request must arrive.
    Raises: SecurityError: the address would be unsafe. UnavailableError: the address is taken. ConfigError: the certificate cannot be read.
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
        """Refuse new connections, let running requests end, and close the remaining connections after `grace_s` seconds."""
        self._server.should_exit = True  # Uvicorn's thread checks this flag ten times a second, and then ends
        self._thread.join(self._grace_s + 2)  # Uvicorn itself waits `grace_s` for requests, and then cancels them.
        self._socket.close()

    async def _end_stalled(self) -> None:
        """Refuse requests that do not arrive, and return free memory to the system. Uvicorn's loop calls this method."""
        for connection in self._stalled.look(cast("set[Connection]", self._server.server_state.connections)):
            connection.refuse(408, "the request did not arrive as a whole; send it again")
        if self._app.bodies.took_much():
            # The call takes some milliseconds, so it runs in another thread.
            await asyncio.to_thread(give_back_freed)

    def _wait_until_started(self) -> None:
        give_up = time.monotonic() + _START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > give_up:
                raise UnavailableError(f"the HTTP server at {self.address} did not start; the log has the details")
            time.sleep(0.005)  # Uvicorn sets `started` and wakes no waiting thread.


def _show_as_in_files(config: uvicorn.Config, context: ssl.SSLContext) -> None:
    """Use the current content of the certificate files and of the client authority's file for each new connection. If a file cannot be read, the
    failure is logged, and the last good content stays in use.
    """
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

    context.sni_callback = renew  # called for each connection, even if the client names no server
