"""One process that serves the versions of a run: what it consists of, and the order of its start and its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from modyn.config.endpoint import Endpoint
from modyn.config.serving import ServedRun, ServingConfig
from modyn.config.system import SystemConfig
from modyn.errors import ConfigError
from modyn.evaluator.client import EvaluatorClient
from modyn.model_storage.client import ModelStorageClient
from modyn.records import RunId, ServingLoad, VersionUse
from modyn.rpc.access import AccessTokens
from modyn.rpc.metrics import MetricsServer
from modyn.rpc.server import start_server
from modyn.serving.auto_promotion import AutoPromotion
from modyn.serving.batch_queue import BatchLimits
from modyn.serving.grpc_service import registration
from modyn.serving.load_meter import LoadMeter, load_reports
from modyn.serving.model_server import ModelServer, ModelServerLimits
from modyn.serving.observation_join import JoinLimits
from modyn.serving.observations import ObservationIntake
from modyn.serving.promoted import RunFollower, ServingPlan, StoredVersionLoader
from modyn.serving.promotion_gate import PromotionGate, parse_conditions
from modyn.serving.record_log import StorageObservationLog
from modyn.serving.waiting_log import WaitingLog
from modyn.storage.client import StorageClient

if TYPE_CHECKING:
    from modyn.serving.http_app import HttpApp
    from modyn.serving.http_server import HttpServer

SWITCH_S: Final = 0.0005
"""After so long a thread gives the interpreter's lock to one that waits: a tenth of Python's own choice, since answers wait for it."""
_GRACE_S: Final = 1.0
_JUDGE_S: Final = 1.0
"""Between two looks for a version that is to be judged."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a serving process can be reached."""

    http: str
    """As a URL."""
    grpc: str
    """host:port."""
    metrics: str
    """As a URL."""


def server_limits(config: ServingConfig) -> ModelServerLimits:
    """Return the limits of a model server that a configuration says."""
    batches = BatchLimits(
        config.max_batch_size, config.max_delay_ms / 1000, config.max_queue, config.timeout_s, inline_s=config.inline_ms / 1000
    )
    return ModelServerLimits(batches, config.threads, config.warm_up_batches, config.standby)


def open_intake(config: SystemConfig, run_id: RunId, log: StorageObservationLog) -> ObservationIntake:
    """Return the intake of a run's labels, with what waited when its last server ended.

    Raises: ConflictError: another server of this run takes labels for the same dataset. CorruptStateError, UnavailableError: of its files.
    """
    serving = config.serving
    limits = JoinLimits(max_bytes=serving.max_waiting_bytes, keep_s=serving.waiting_s)
    # Of one registration of the dataset: another one of the same name has none of its keys.
    folder = config.state_dir / "serving" / run_id / log.identity
    waiting = WaitingLog(folder) if serving.keep_waiting else None
    return ObservationIntake(log, limits, waiting=waiting)


def open_promotion(
    stack: ExitStack,
    config: SystemConfig,
    run_id: RunId,
    settings: ServedRun,
    pipeline: Mapping[str, Any],
    models: ModelStorageClient,
) -> AutoPromotion:
    """Return what promotes versions by `promote_if`. Args: stack: closes its connections. Raises ConfigError: a metric or a dataset is wrong."""
    evaluator = stack.enter_context(EvaluatorClient(config.endpoint("evaluator")))
    storage = stack.enter_context(StorageClient(config.endpoint("storage")))
    gate = PromotionGate(run_id, pipeline, parse_conditions(settings.promote_if), models, evaluator, storage)
    return AutoPromotion(run_id, gate, models, max(_JUDGE_S, config.serving.poll_interval_s))


class RunServer:
    """Serves a run from the time that it is made until `close`.

    Args: observations: where labels go that clients send back; None: none are taken. pipeline: of the run, for conditions of promotions. report:
    given the load of this server and what it does with each version once a second, by a thread of its own; None: they are not measured.
    Raises: ConfigError: Uvicorn is not installed, the device is missing, or the inputs of the model are unknown. UnavailableError: a port is taken,
    or model storage cannot be reached. SecurityError: an address would be unsafe. As `open_intake`.
    """

    def __init__(
        self,
        config: SystemConfig,
        run_id: RunId,
        settings: ServedRun,
        observations: StorageObservationLog | None = None,
        pipeline: Mapping[str, Any] | None = None,
        report: Callable[[ServingLoad, Sequence[VersionUse]], object] | None = None,
    ) -> None:
        serving = config.serving
        http_app, http_server = _http()
        _prepare_torch(serving)
        sys.setswitchinterval(SWITCH_S)
        # What is entered last is left first. At the end: no new connections, then no new versions, then what was accepted is answered.
        with ExitStack() as stack:
            models = stack.enter_context(ModelStorageClient(config.endpoint("model_storage")))
            intake = None if observations is None else open_intake(config, run_id, observations)
            if intake is not None:
                intake.start()
                stack.callback(intake.close)
            loader = StoredVersionLoader(models, settings, serving.device)
            answered = (lambda *_: None) if intake is None else intake.answered
            meter = LoadMeter()
            server = ModelServer(
                loader, server_limits(serving), answered, (lambda *_: None) if report is None else meter.answered
            )
            if report is not None:
                # Left after the server is closed: the last report has its last answers.
                stack.enter_context(load_reports(meter, lambda: server.table().roles(settings.name or run_id), report))
            stack.callback(server.close, serving.drain_s)
            follower = RunFollower(models, run_id, settings, server, serving.poll_interval_s)
            stack.callback(follower.close)
            tokens = AccessTokens(config.security)
            if settings.promote_if:
                promotion = open_promotion(stack, config, run_id, settings, pipeline or {}, models)
                promotion.start()
                stack.callback(promotion.close)
            app = http_app(server, tokens, intake, serving.max_message_bytes)
            http = http_server(app, self._endpoint(config, serving.http_port), serving.drain_s)
            stack.callback(http.stop)
            grpc = start_server("serving", self._endpoint(config, serving.grpc_port), [registration(server, serving.timeout_s)])
            stack.callback(grpc.stop, max(_GRACE_S, serving.drain_s))
            metrics = MetricsServer("serving", self._endpoint(config, serving.metrics_port))
            stack.callback(metrics.stop)
            self.plan: ServingPlan = follower.start()
            self.model = follower.model
            self.addresses = Addresses(http.url, grpc.address, metrics.url)
            self.models = server
            self._end: Callable[[], None] = stack.pop_all().close

    def close(self) -> None:
        """End in good order: requests that run are answered, for at most `serving.drain_s` seconds each way they came."""
        self._end()

    @staticmethod
    def _endpoint(config: SystemConfig, port: int) -> Endpoint:
        return Endpoint(
            address=f"{config.serving.host}:{port}",
            security=config.security,
            max_message_bytes=max(config.serving.max_message_bytes, 2**16),
        )


def _http() -> tuple[type[HttpApp], type[HttpServer]]:
    try:
        from modyn.serving.http_app import HttpApp
        from modyn.serving.http_server import HttpServer
    except ImportError as error:
        raise ConfigError(
            f"serving needs a library that is not installed: {error}; `pip install modyn[serving]` brings it"
        ) from error
    return HttpApp, HttpServer


def _prepare_torch(serving: ServingConfig) -> None:
    import torch

    if serving.device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"serving.device is {serving.device}, and PyTorch finds no GPU here; set it to cpu")
    torch.set_num_threads(serving.num_threads)
