"""A deployment of Ray Serve with one replica, without its access log."""

from __future__ import annotations

import os
import socket
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from benchmark.online.peers import answered, say_ready, served_model, wait_for_end


@serve.deployment(max_ongoing_requests=256, ray_actor_options={"num_cpus": 1})
class Served:
    """The model."""

    def __init__(self) -> None:
        self._model = served_model()

    async def __call__(self, request: Request) -> Any:
        """One answer."""
        return Response(answered(self._model, await request.body()), media_type="application/json")


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(
        Served.bind(),  # type: ignore[attr-defined]
        route_prefix="/",
        logging_config={"enable_access_log": False, "log_level": "ERROR"},
    )
    say_ready(f"127.0.0.1:{port}")
    wait_for_end()
    serve.shutdown()
    ray.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
