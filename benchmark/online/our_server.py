"""Our HTTP model server with the model of the peers, in a process of its own: `modyn serve` without the services that it follows."""

from __future__ import annotations

from benchmark.online.peers import WIDTH, say_ready, served_model, wait_for_end
from modyn.config.serving import ServingConfig
from modyn.config.system_sections.endpoint import Endpoint
from modyn.config.system_sections.security import SecurityConfig
from modyn.models.export import ModelInput
from modyn.rpc.http_guard import HttpGuard
from modyn.serving.model_server import ModelServer
from modyn.serving.protocol.http_app import HttpApp
from modyn.serving.protocol.http_server import HttpServer
from modyn.serving.run_server import answer_without_pauses, http_limits, server_limits
from modyn.serving.versions.predictor import Predictor, VersionName
from modyn.serving.versions.torch_predictor import TorchPredictor


def load(name: VersionName) -> Predictor:
    """Return the model, for any version."""
    return TorchPredictor(served_model(), [ModelInput((WIDTH,))])


def main() -> None:
    answer_without_pauses()
    security, config = SecurityConfig(), ServingConfig()
    server = ModelServer(load, server_limits(config))
    server.swap(VersionName("m", "1"))
    app = HttpApp(server, HttpGuard(config.host, False), None, None, http_limits(config))
    http = HttpServer(app, Endpoint(address="127.0.0.1:0", security=security))
    say_ready(http.address)
    wait_for_end()
    http.stop()
    server.close()


if __name__ == "__main__":
    main()
