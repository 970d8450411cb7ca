"""Process that serves the versions of runs. This module creates the parts of the process, and defines the order in which the parts start and end."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, TypeVar

from modyn.config.serving import ServingConfig
from modyn.config.system import SystemConfig
from modyn.errors import ConfigError
from modyn.evaluator.client import EvaluatorClient
from modyn.model_storage.client import ModelStorageClient
from modyn.rpc.access import AccessTokens
from modyn.rpc.http_guard import HttpGuard
from modyn.rpc.logs import get_logger
from modyn.rpc.metrics_server import MetricsServer
from modyn.rpc.server import start_server
from modyn.serving.addresses import check_addresses, serving_endpoint
from modyn.serving.batch_queue import BatchLimits
from modyn.serving.model_server import ModelServer, ModelServerLimits
from modyn.serving.observations.router import ObservationRouter
from modyn.serving.protocol.grpc_service import registration
from modyn.serving.protocol.http_app import HttpApp
from modyn.serving.protocol.http_limits import HttpLimits
from modyn.serving.protocol.http_server import HttpServer
from modyn.serving.run_part import Report, RunPart, ServingClients
from modyn.serving.served_model import ServedModel, check_distinct
from modyn.serving.versions.promoted import ServingPlan
from modyn.storage.client import StorageClient

T = TypeVar("T")

_SWITCH_S: Final = 0.0005
"""Seconds after which a thread gives the interpreter's lock to a waiting thread. The value is a tenth of Python's default, because answers wait for
the lock.
"""
_GRACE_S: Final = 1.0
"""Smallest time in seconds that running gRPC calls get when the process stops."""
_TASK_S: Final = 6.0
"""Seconds that the shutdown waits for the parts of all runs. Each part itself waits one second less."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of a serving process. http and metrics: URLs. grpc: host:port."""

    http: str
    grpc: str
    metrics: str


def answer_without_pauses() -> None:
    """Prepare the interpreter of a process that only serves.

    Call this function after all imports, before versions are loaded. The garbage collector then ignores imported objects. A search of the collector
    through these objects would stop all answers for a tenth of a second or more.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()


def server_limits(config: ServingConfig) -> ModelServerLimits:
    """Return the limits of a model server that a configuration sets."""
    batches = BatchLimits(
        config.max_batch_size, config.max_delay_ms / 1000, config.max_queue, config.timeout_s, inline_s=config.inline_ms / 1000
    )
    return ModelServerLimits(batches, config.threads, config.warm_up_batches, config.standby)


def http_limits(config: ServingConfig) -> HttpLimits:
    """Return the limits of the HTTP server that a configuration sets."""
    return HttpLimits(
        config.max_message_bytes, config.max_unfinished_bytes, config.max_connections_per_client, timeout_s=config.timeout_s
    )


class RunServer:
    """Serves runs, each as a model, at one HTTP and one gRPC address, from its construction until `close`.

    Args: report: called once a second with the load of each run and the uses of its versions; separate threads call this function.
    Raises: ConfigError: two models have the same name, the device is missing, or the inputs of a model are unknown. InvalidArgumentError: a run is
    given twice. UnavailableError: a port is taken, or model storage cannot be reached. SecurityError: an address would be unsafe. For other errors
    see `RunPart`.
    """

    def __init__(self, config: SystemConfig, models: Sequence[ServedModel], report: Report) -> None:
        check_distinct(models)
        serving = config.serving
        _prepare_torch(serving)
        # The stack closes in reverse order. First, new connections are refused; then, no new versions are loaded; then, accepted requests are
        # answered.
        with ExitStack() as stack:
            clients = ServingClients(
                stack.enter_context(ModelStorageClient(config.endpoint("model_storage"))),
                stack.enter_context(StorageClient(config.endpoint("storage"))),
                stack.enter_context(EvaluatorClient(config.endpoint("evaluator"))),
            )
            # The parts of all runs end at the same time, so that a service that hangs delays the shutdown once, not once for each run.
            labels = stack.enter_context(LeftTogether("labels", max(_TASK_S, serving.drain_s)))
            parts = {model.name: labels.enter(model.name, closing(RunPart(config, model, clients))) for model in models}
            intakes = {name: part.intake for name, part in parts.items() if part.intake is not None}
            observations = ObservationRouter(intakes)
            server = ModelServer(
                lambda version: parts[version.model].load(version),
                server_limits(serving),
                observations.add_prediction,
                lambda version, role, seconds: parts[version.model].meter.add(version, role, seconds),
                models=parts,
            )
            reports = stack.enter_context(LeftTogether("load reports", _TASK_S))
            # The reports end after the server, so that the last report includes the last answers.
            for name, part in parts.items():
                reports.enter(name, part.reporting(server, report))
            stack.callback(server.close, serving.drain_s)
            following = stack.enter_context(LeftTogether("promotions", _TASK_S))
            followers = [following.enter(name, part.following(server)) for name, part in parts.items()]
            tokens = AccessTokens(config.security)
            guard = HttpGuard(serving.host, tokens.required, serving.allowed_hosts)
            app = HttpApp(server, guard, tokens, observations if intakes else None, http_limits(serving))
            check_addresses(config)  # checks all three addresses, so that an error names the setting of the port
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
        """Stop serving. For each protocol, running requests get at most `serving.drain_s` seconds."""
        self._end()


class LeftTogether:
    """Context manager that combines several contexts.

    The contexts are entered one after the other, and are left at the same time, each in a separate thread. If leaving a context takes longer than
    `timeout_s` seconds, this is logged and the wait ends. The thread of this context ends with the process.
    """

    def __init__(self, what: str, timeout_s: float) -> None:
        """Args: what: name of the contexts in the log."""
        self._what, self._timeout_s = what, timeout_s
        self._entered = dict[str, AbstractContextManager[Any]]()
        self._logger = get_logger("serving")

    def enter(self, model: str, context: AbstractContextManager[T]) -> T:
        """Enter the context of a model, and return the value of the context."""
        found = context.__enter__()
        self._entered[model] = context
        return found

    def __enter__(self) -> LeftTogether:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        threads = {
            model: threading.Thread(target=self._leave, args=(model, context), name=f"end-{model}", daemon=True)
            for model, context in self._entered.items()
        }
        for thread in threads.values():
            thread.start()
        give_up = time.monotonic() + self._timeout_s
        for thread in threads.values():
            thread.join(max(0.0, give_up - time.monotonic()))
        if late := [model for model, thread in threads.items() if thread.is_alive()]:
            self._logger.warning("end_not_waited_for", what=self._what, models=late, seconds=self._timeout_s)

    def _leave(self, model: str, context: AbstractContextManager[Any]) -> None:
        try:
            context.__exit__(None, None, None)
        except Exception:
            self._logger.exception("not_ended", what=self._what, model=model)


def _prepare_torch(serving: ServingConfig) -> None:
    import torch

    if serving.device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"serving.device is {serving.device}, and PyTorch finds no GPU here; set it to cpu")
    torch.set_num_threads(serving.num_threads)
