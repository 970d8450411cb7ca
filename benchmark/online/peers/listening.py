"""Run an ASGI application on Uvicorn with the settings of our server (`modyn.serving.protocol.http_server`): uvloop and httptools."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import uvicorn

from benchmark.online.peers import say_ready, wait_for_end


def run(app: Any) -> None:
    """Serve until the input is closed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        proxy_headers=False,
        lifespan="off",
        interface="asgi3",
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
    )
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, args=([listener],), daemon=True).start()
    say_ready(f"127.0.0.1:{listener.getsockname()[1]}")
    wait_for_end()
    os._exit(0)  # At once: what is open is the benchmark's own.
