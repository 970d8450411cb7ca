"""The trainer server over gRPC: decode, call, encode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shutil import rmtree
from typing import Final

import grpc
from prometheus_client import REGISTRY

from modyn.model_storage.client import ModelStorageClient
from modyn.models import MODELS
from modyn.proto import common_pb2, trainer_server_pb2, trainer_server_pb2_grpc
from modyn.rpc.server import Registration, ServiceContext
from modyn.rpc.wire import from_message, from_struct, plugins_to_proto, problems_to_proto, to_message
from modyn.state_folders import shared_folder
from modyn.trainer_server.cache_metrics import CacheCollector
from modyn.trainer_server.downsampling.policies import DOWNSAMPLING
from modyn.trainer_server.request.config import OPTIMIZERS, SCHEDULERS
from modyn.trainer_server.request.records import TrainingRequest
from modyn.trainer_server.trainings import Trainings
from modyn.workers import SessionRules, WorkerLimits, WorkerPool

PRELOAD: Final = ("modyn.trainer_server.preload",)

FULL_NAME: Final = "modyn.TrainerServer"


class TrainerServicer(trainer_server_pb2_grpc.TrainerServerServicer):
    """Implements the calls of trainer_server.proto. Each method decodes the request, calls `Trainings` and encodes the response."""

    def __init__(self, trainings: Trainings) -> None:
        self._trainings = trainings

    def ValidateSection(self, request: common_pb2.SectionRequest, context: grpc.ServicerContext) -> common_pb2.SectionReply:
        """Return the errors that a worker, which loads user code, finds in the trainer's sections; DEADLINE if the worker takes too long."""
        return problems_to_proto(self._trainings.validate(from_struct(request.pipeline), request.scores))

    def ListPlugins(self, request: common_pb2.Empty, context: grpc.ServicerContext) -> common_pb2.PluginList:
        """Return the models, optimizers, schedulers and downsampling policies that are registered in this service."""
        return plugins_to_proto(MODELS, OPTIMIZERS, SCHEDULERS, DOWNSAMPLING)

    def Start(
        self, request: trainer_server_pb2.TrainingRequest, context: grpc.ServicerContext
    ) -> trainer_server_pb2.TrainingStatus:
        """Queue a training, or return the training of this (run, trigger) that is running or has stored its model."""
        status = self._trainings.start(from_message(request, TrainingRequest))
        return to_message(status, trainer_server_pb2.TrainingStatus)

    def Watch(
        self, request: trainer_server_pb2.TrainingId, context: grpc.ServicerContext
    ) -> Iterator[trainer_server_pb2.TrainingStatus]:
        """Stream the status at every change, up to a final status; NOT_FOUND for an unknown training."""
        context.add_callback(self._trainings.table.wake)
        for status in self._trainings.table.watch((request.run_id, request.trigger_id), context.is_active):
            yield to_message(status, trainer_server_pb2.TrainingStatus)

    def Stop(self, request: trainer_server_pb2.TrainingId, context: grpc.ServicerContext) -> common_pb2.Empty:
        """Ask the worker to stop, without waiting. Has no effect on an ended training; NOT_FOUND for an unknown training."""
        self._trainings.table.stop((request.run_id, request.trigger_id))
        return common_pb2.Empty()

    def DeleteRun(self, request: trainer_server_pb2.TrainedRun, context: grpc.ServicerContext) -> common_pb2.Empty:
        """End the trainings of a run and remove the run's files. Has no effect for an unknown run."""
        self._trainings.delete_run(request.run_id)
        return common_pb2.Empty()


def build(context: ServiceContext) -> Sequence[Registration]:
    """Build the service from its configuration. The fork server of workers starts after the service, and stops while no worker is needed."""
    config = context.config
    settings = config.trainer_server
    limits = WorkerLimits("trainer_server", settings.user_function_timeout_s, settings.worker_memory_bytes, config.logs.limits)
    rules = SessionRules(settings.num_threads, limits, settings.session_idle_s, settings.session_models_bytes)
    pool = WorkerPool(settings.max_workers, rules=rules, preload=PRELOAD, server_idle_s=settings.fork_server_idle_s)
    checks = WorkerPool(1, preload=PRELOAD, server_idle_s=settings.fork_server_idle_s)
    models = ModelStorageClient(config.endpoint("model_storage"))
    # No worker runs yet. All scratch files are therefore from killed attempts.
    rmtree(context.directory / "scratch", ignore_errors=True)
    trainings = Trainings(config, pool, checks, models.find)
    context.remove_outlived("finished/*")
    context.when_healthy.append(pool.warm_up)
    collector = CacheCollector(shared_folder(config.state_dir), config.resolved_redis_url(), trainings.table.unfinished)
    REGISTRY.register(collector)
    context.on_shutdown(lambda: REGISTRY.unregister(collector))
    # Shutdown calls run in reverse order: workers end first, while model storage can still be reached.
    context.on_shutdown(models.close)
    context.on_shutdown(checks.close)
    context.on_shutdown(pool.close)
    return [Registration(trainer_server_pb2_grpc.add_TrainerServerServicer_to_server, TrainerServicer(trainings), FULL_NAME)]
