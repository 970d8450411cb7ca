"""Model server with fake predictors, served by real HTTP and gRPC servers on free ports of loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from modyn.config.system_sections.endpoint import Endpoint
from modyn.config.system_sections.security import SecurityConfig
from modyn.rpc.access import AccessTokens
from modyn.rpc.http_guard import HttpGuard
from modyn.rpc.server import RunningServer, start_server
from modyn.serving.batch_queue import BatchLimits
from modyn.serving.model_server import ModelServer, ModelServerLimits
from modyn.serving.observations.intake import ObservationIntake
from modyn.serving.observations.router import ObservationRouter
from modyn.serving.protocol.grpc_service import registration
from modyn.serving.protocol.http_app import HttpApp
from modyn.serving.protocol.http_limits import HttpLimits
from modyn.serving.protocol.http_server import HttpServer
from modyn.serving.versions.predictor import VersionName
from modyn.testing.fake_observation_log import FakeObservationLog
from modyn.testing.fake_predictor import FakeVersions
from modyn.testing.waiting import PATIENCE_S


@dataclass
class Served:
    """Model `m`, of which version 1 serves."""

    security: SecurityConfig = field(default_factory=SecurityConfig)
    limits: ModelServerLimits = field(
        default_factory=lambda: ModelServerLimits(BatchLimits(max_batch_size=8, max_queue=1, timeout_s=20.0))
    )
    max_body_bytes: int = 100_000
    arrival_s: float = 75.0
    timeout_s: float = 20.0
    """Timeout of requests with labels."""
    max_unfinished_bytes: int = 1_000_000
    max_connections: int = 256
    allowed_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.versions, self.log = FakeVersions(), FakeObservationLog()
        self.observations = ObservationIntake("m", self.log)
        self.server = ModelServer(self.versions, self.limits, self.observations.add_prediction)
        self.server.swap(VersionName("m", "1"))
        tokens = AccessTokens(self.security)
        endpoint = Endpoint(address="127.0.0.1:0", security=self.security)
        guard = HttpGuard("127.0.0.1", tokens.required, self.allowed_hosts)
        limits = HttpLimits(self.max_body_bytes, self.max_unfinished_bytes, self.max_connections, self.timeout_s)
        app = HttpApp(self.server, guard, tokens, ObservationRouter({"m": self.observations}), limits)
        self.http = HttpServer(app, endpoint, grace_s=5, arrival_s=self.arrival_s)
        self.grpc: RunningServer = start_server("serving", endpoint, [registration(self.server, 20.0)])

    def connect(self) -> socket.socket:
        """Open a connection to the HTTP server."""
        host, port = self.http.address.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=PATIENCE_S)

    def close(self) -> None:
        self.http.stop()
        self.grpc.stop(0)
        self.server.close()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()
