"""Our model server over HTTP with the model of the peers, in a process of its own: all of `modyn serve` but the services that it follows."""

from __future__ import annotations

from benchmark.online.peers import WIDTH, say_ready, served_model, wait_for_end
from modyn.config.endpoint import Endpoint
from modyn.config.security import SecurityConfig
from modyn.config.serving import ServingConfig
from modyn.models.export import ModelInput
from modyn.rpc.http_guard import HttpGuard
from modyn.serving.http_app import HttpApp
from modyn.serving.http_server import HttpServer
from modyn.serving.model_server import ModelServer
from modyn.serving.predictor import Predictor, VersionName
from modyn.serving.process import answer_without_pauses, http_limits, server_limits
from modyn.serving.torch_predictor import TorchPredictor


def load(name: VersionName) -> Predictor:
    """The model, as any version."""
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
