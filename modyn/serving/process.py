"""One process that serves the versions of runs: what it consists of, and the order of its start and its end."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

from modyn.config.serving import ServingConfig
from modyn.config.system import SystemConfig
from modyn.errors import ConfigError
from modyn.evaluator.client import EvaluatorClient
from modyn.model_storage.client import ModelStorageClient
from modyn.rpc.access import AccessTokens
from modyn.rpc.http_guard import HttpGuard
from modyn.rpc.metrics import MetricsServer
from modyn.rpc.server import start_server
from modyn.serving.addresses import check_addresses, serving_endpoint
from modyn.serving.batch_queue import BatchLimits
from modyn.serving.closing import LeftTogether
from modyn.serving.grpc_service import registration
from modyn.serving.http_app import HttpApp
from modyn.serving.http_limits import HttpLimits
from modyn.serving.http_server import HttpServer
from modyn.serving.model_server import ModelServer, ModelServerLimits
from modyn.serving.observation_router import ObservationRouter
from modyn.serving.promoted import ServingPlan
from modyn.serving.run_part import Report, RunPart, ServingClients
from modyn.serving.served_model import ServedModel, check_distinct
from modyn.storage.client import StorageClient

_SWITCH_S: Final = 0.0005
"""After so long a thread gives the interpreter's lock to one that waits: a tenth of Python's own choice, since answers wait for it."""
_GRACE_S: Final = 1.0
_TASK_S: Final = 6.0
"""For which the rounds of all runs are waited for at the end, a second longer than each of them waits itself."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a serving process can be reached."""

    http: str
    """As a URL."""
    grpc: str
    """host:port."""
    metrics: str
    """As a URL."""


def answer_without_pauses() -> None:
    """Prepare the interpreter of a process that does nothing but serve. Call it when everything is imported, before versions are loaded.

    What is imported is never collected: to look through it, again and again, stops all answers for a tenth of a second and more.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()


def server_limits(config: ServingConfig) -> ModelServerLimits:
    """Return the limits of a model server that a configuration says."""
    batches = BatchLimits(
        config.max_batch_size, config.max_delay_ms / 1000, config.max_queue, config.timeout_s, inline_s=config.inline_ms / 1000
    )
    return ModelServerLimits(batches, config.threads, config.warm_up_batches, config.standby)


def http_limits(config: ServingConfig) -> HttpLimits:
    """Return the limits of the HTTP server that a configuration says."""
    return HttpLimits(
        config.max_message_bytes, config.max_unfinished_bytes, config.max_connections_per_client, timeout_s=config.timeout_s
    )


class RunServer:
    """Serves runs, each as a model, at one address of HTTP and one of gRPC, from the time that it is made until `close`.

    Args: report: called with the load of each run, and with what is done with its versions, once a second, by threads of its own.
    Raises: ConfigError: two models have one name, the device is missing, or the inputs of a model are unknown. InvalidArgumentError: a run comes
    twice. UnavailableError: a port is taken, or model storage cannot be reached. SecurityError: an address would be unsafe. As `RunPart`.
    """

    def __init__(self, config: SystemConfig, models: Sequence[ServedModel], report: Report) -> None:
        check_distinct(models)
        serving = config.serving
        _prepare_torch(serving)
        # What is entered last is left first. At the end: no new connections, then no new versions, then what was accepted is answered.
        with ExitStack() as stack:
            clients = ServingClients(
                stack.enter_context(ModelStorageClient(config.endpoint("model_storage"))),
                stack.enter_context(StorageClient(config.endpoint("storage"))),
                stack.enter_context(EvaluatorClient(config.endpoint("evaluator"))),
            )
            # What the runs have is left at once: a service that hangs delays the end once, not for each run.
            labels = stack.enter_context(LeftTogether("labels", max(_TASK_S, serving.drain_s)))
            parts = {model.name: labels.enter(model.name, closing(RunPart(config, model, clients))) for model in models}
            intakes = {name: part.intake for name, part in parts.items() if part.intake is not None}
            observations = ObservationRouter(intakes)
            server = ModelServer(
                lambda version: parts[version.model].load(version),
                server_limits(serving),
                observations.answered,
                lambda version, role, seconds: parts[version.model].meter.answered(version, role, seconds),
                models=parts,
            )
            reports = stack.enter_context(LeftTogether("load reports", _TASK_S))
            for name, part in parts.items():  # Left after the server is closed: the last report has its last answers.
                reports.enter(name, part.reporting(server, report))
            stack.callback(server.close, serving.drain_s)
            following = stack.enter_context(LeftTogether("promotions", _TASK_S))
            followers = [following.enter(name, part.following(server)) for name, part in parts.items()]
            tokens = AccessTokens(config.security)
            guard = HttpGuard(serving.host, tokens.required, serving.allowed_hosts)
            app = HttpApp(server, guard, tokens, observations if intakes else None, http_limits(serving))
            check_addresses(config)  # Of all three, so that an error names the setting of its port.
            http = HttpServer(app, serving_endpoint(config, serving.http_port), serving.drain_s)
            stack.callback(http.stop)
            grpc = start_server("serving", serving_endpoint(config, serving.grpc_port), [registration(server, serving.timeout_s)])
            stack.callback(grpc.stop, max(_GRACE_S, serving.drain_s))
            metrics = MetricsServer("serving", serving_endpoint(config, serving.metrics_port), serving.allowed_hosts)
            stack.callback(metrics.stop)
            self.plans: Mapping[str, ServingPlan] = {follower.model: follower.start() for follower in followers}
            self.addresses = Addresses(http.url, grpc.address, metrics.url)
            self._end: Callable[[], None] = stack.pop_all().close

    def close(self) -> None:
        """End in good order: requests that run are answered, for at most `serving.drain_s` seconds each way they came."""
        self._end()


def _prepare_torch(serving: ServingConfig) -> None:
    import torch

    if serving.device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"serving.device is {serving.device}, and PyTorch finds no GPU here; set it to cpu")
    torch.set_num_threads(serving.num_threads)
