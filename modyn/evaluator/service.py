"""The evaluator over gRPC: decode, call, encode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final

import grpc
from prometheus_client import Counter

from modyn.config.system import SystemConfig
from modyn.dataset.connections import PayloadSource
from modyn.db.engine import open_database
from modyn.errors import ModynError
from modyn.evaluator.client import (
    EvaluationRequest,
    request_from_proto,
    result_to_proto,
    status_to_proto,
)
from modyn.evaluator.config import check_evaluation
from modyn.evaluator.jobs import Done, Evaluations, Progress
from modyn.evaluator.metrics import METRICS
from modyn.evaluator.outputs import Room
from modyn.evaluator.score import Score
from modyn.evaluator.store import EvaluationStore, dataset_digest
from modyn.evaluator.work import Work
from modyn.proto import common_pb2, evaluator_pb2, evaluator_pb2_grpc
from modyn.records import Interval, RunId
from modyn.rpc.server import Registration, ServiceContext
from modyn.rpc.wire import from_struct, plugins_to_proto, problems_to_proto
from modyn.storage.client import StorageClient
from modyn.workers import Job, WorkerLimits, WorkerPool

PRELOAD: Final = ("modyn.evaluator.preload",)

FULL_NAME: Final = "modyn.Evaluator"

JOBS = Counter("modyn_evaluation_jobs", "Evaluation jobs that ended", ["outcome"])
SCORES = Counter("modyn_evaluation_scores", "Values of metrics that were computed")


class EvaluatorServicer(evaluator_pb2_grpc.EvaluatorServicer):
    """Calls as documented in evaluator.proto."""

    def __init__(self, evaluations: Evaluations, store: EvaluationStore) -> None:
        self._evaluations = evaluations
        self._store = store

    def ValidateSection(self, request: common_pb2.SectionRequest, context: grpc.ServicerContext) -> common_pb2.SectionReply:
        return problems_to_proto(check_evaluation(from_struct(request.pipeline)))

    def ListPlugins(self, request: common_pb2.Empty, context: grpc.ServicerContext) -> common_pb2.PluginList:
        return plugins_to_proto(METRICS)

    def Start(self, request: evaluator_pb2.EvaluationRequest, context: grpc.ServicerContext) -> evaluator_pb2.EvaluationStatus:
        return status_to_proto(self._evaluations.start(request_from_proto(request)))

    def Watch(
        self, request: evaluator_pb2.EvaluationId, context: grpc.ServicerContext
    ) -> Iterator[evaluator_pb2.EvaluationStatus]:
        context.add_callback(self._evaluations.wake)
        for status in self._evaluations.watch(request.evaluation_id, context.is_active):
            yield status_to_proto(status)

    def Stop(self, request: evaluator_pb2.EvaluationId, context: grpc.ServicerContext) -> common_pb2.Empty:
        self._evaluations.stop(request.evaluation_id)
        return common_pb2.Empty()

    def Results(
        self, request: evaluator_pb2.ResultsRequest, context: grpc.ServicerContext
    ) -> Iterator[evaluator_pb2.EvaluationResult]:
        for result in self._store.results(RunId(request.run_id)):
            yield result_to_proto(result)


class PoolRun:
    """Runs jobs in warm worker processes."""

    def __init__(self, pool: WorkerPool, config: SystemConfig, scratch: Path, room: Room | None) -> None:
        self._pool = pool
        self._room = room
        self._config = config
        self._scratch = scratch

    def __call__(
        self, request: EvaluationRequest, intervals: Sequence[Interval], name: str, progress: Progress, done: Done
    ) -> Job:
        scratch = Path(mkdtemp(dir=self._scratch, prefix=f"model-{request.model_id}-"))
        work = Work(
            model_id=request.model_id,
            dataset=request.dataset,
            intervals=tuple(intervals),
            device=request.device,
            payloads=PayloadSource.of(
                self._config, request.dataset["dataset_id"], streams=request.dataset.get("dataloader_workers", 1)
            ),
            model_storage=self._config.endpoint("model_storage"),
            scratch=scratch,
            decoding=dataset_digest(request.dataset),
            room=self._room,
        )

        def ended(job: Job) -> None:
            # Here, and not in the worker, which may have been killed.
            rmtree(scratch, ignore_errors=True)
            JOBS.labels(job.state.value).inc()
            done(_outcome(job))

        log_path = self._config.log_dir / "runs" / request.run_id / f"evaluation-{request.trigger_id}.log"
        return self._pool.submit(
            "modyn.evaluator.worker:run", work, name=name, log_path=log_path, on_message=lambda m: progress(*m), on_done=ended
        )


def _outcome(job: Job) -> list[Score] | ModynError:
    if job.error is not None:
        return job.error
    scores: list[Score] = job.result()
    SCORES.inc(len(scores))
    return scores


def build(context: ServiceContext) -> Sequence[Registration]:
    """The service, from its configuration. What an ended one has left behind is removed; workers are warmed up once it answers."""
    config = context.config
    settings = config.evaluator
    database = open_database(config, "evaluator", "modyn.evaluator.migrations")
    context.on_shutdown(database.close)
    store = EvaluationStore(database)
    scratch = context.directory / "scratch"
    rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    room = Room(context.directory / "outputs", settings.outputs_bytes)
    room.prepare()
    limits = WorkerLimits("evaluator", settings.user_function_timeout_s, settings.worker_memory_bytes, config.logs.limits)
    pool = WorkerPool(settings.max_workers, num_threads=settings.num_threads, preload=PRELOAD, failure=ModynError, limits=limits)
    storage = StorageClient(config.endpoint("storage"))
    context.on_shutdown(storage.close)
    evaluations = Evaluations(
        store, PoolRun(pool, config, scratch, room if room.limit else None), storage.count_samples, settings.max_workers
    )
    context.on_shutdown(pool.close)
    context.on_shutdown(evaluations.close)
    context.when_healthy.append(pool.warm_up)
    return [Registration(evaluator_pb2_grpc.add_EvaluatorServicer_to_server, EvaluatorServicer(evaluations, store), FULL_NAME)]
