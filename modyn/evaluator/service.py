"""The gRPC service of the evaluator: decodes requests, calls the evaluator, encodes responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final

import grpc

from modyn.config.base import Severity
from modyn.config.system import SystemConfig
from modyn.config.system_sections.endpoint import Endpoint
from modyn.dataset.cached.pipeline_cache import cache_redis_url
from modyn.db.engine import open_database
from modyn.errors import ModynError
from modyn.evaluator.client import EvaluationRequest
from modyn.evaluator.config import check_conditions, check_evaluation
from modyn.evaluator.drift import DRIFT_METRICS
from modyn.evaluator.drift.projections import PROJECTIONS
from modyn.evaluator.evaluations import Evaluations
from modyn.evaluator.measurements import Measurements
from modyn.evaluator.metrics.metrics import METRICS
from modyn.evaluator.outputs import DriftJob, EvaluationJob, OutputCache
from modyn.evaluator.records import DriftRequest, MeasureRequest, OutputKind, SampleSource
from modyn.evaluator.store import EvaluationStore
from modyn.evaluator.trigger_section import check_label_kinds, check_trigger
from modyn.evaluator.versions import DataVersion
from modyn.evaluator.wire import drift_request_from_proto, measure_request_from_proto, measured_drift_to_proto, parts_to_proto
from modyn.proto import common_pb2, evaluator_pb2, evaluator_pb2_grpc
from modyn.records import RunId
from modyn.rpc.access import Role, for_workers
from modyn.rpc.server import Registration, ServiceContext
from modyn.rpc.wire import from_message, from_struct, plugins_to_proto, problems_to_proto, to_message
from modyn.storage.client import StorageClient
from modyn.workers import SessionRules, WorkerLimits, WorkerPool

PRELOAD: Final = ("modyn.evaluator.preload",)

FULL_NAME: Final = "modyn.Evaluator"


class EvaluatorServicer(evaluator_pb2_grpc.EvaluatorServicer):
    """The calls of evaluator.proto. Each method decodes its request, calls `Evaluations` or the store, and encodes the response."""

    def __init__(
        self,
        evaluations: Evaluations,
        store: EvaluationStore,
        outputs: OutputCache,
        measurements: Measurements,
        storage: StorageClient,
        endpoint: Endpoint,
    ) -> None:
        """Args: endpoint: endpoint of this service, which bounds the size of messages."""
        self._evaluations = evaluations
        self._store = store
        self._outputs = outputs
        self._measurements = measurements
        self._storage = storage
        self._endpoint = endpoint

    def ValidateSection(self, request: common_pb2.SectionRequest, context: grpc.ServicerContext) -> common_pb2.SectionReply:
        """Return the problems in `evaluation` of a whole pipeline, and in the parts of `trigger` and `serving.promote_if` that need the evaluator. If
        the evaluation is valid, the fork server of the workers starts, because evaluations may follow soon.
        """
        pipeline = from_struct(request.pipeline)
        problems = [*check_evaluation(pipeline), *check_trigger(pipeline), *check_label_kinds(pipeline, self._storage)]
        if all(problem.severity is not Severity.ERROR for problem in problems):
            problems += check_conditions(pipeline)
        if pipeline.get("evaluation") and all(problem.severity is Severity.WARNING for problem in problems):
            self._evaluations.warm_up()
        return problems_to_proto(problems)

    def ListPlugins(self, request: common_pb2.Empty, context: grpc.ServicerContext) -> common_pb2.PluginList:
        """Return the metrics, drift metrics and projections that are registered here; metrics of torchmetrics are not listed."""
        return plugins_to_proto(METRICS, DRIFT_METRICS, PROJECTIONS)

    def Start(self, request: evaluator_pb2.EvaluationRequest, context: grpc.ServicerContext) -> evaluator_pb2.EvaluationStatus:
        """Start an evaluation, or return the status of a running or finished evaluation with the same id."""
        status = self._evaluations.start(from_message(request, EvaluationRequest))
        return to_message(status, evaluator_pb2.EvaluationStatus)

    def Watch(
        self, request: evaluator_pb2.EvaluationId, context: grpc.ServicerContext
    ) -> Iterator[evaluator_pb2.EvaluationStatus]:
        """Stream the status on every change until the status is final; NOT_FOUND for an unknown id."""
        context.add_callback(self._evaluations.table.wake)
        for status in self._evaluations.table.watch(request.evaluation_id, context.is_active):
            yield to_message(status, evaluator_pb2.EvaluationStatus)

    def Stop(self, request: evaluator_pb2.EvaluationId, context: grpc.ServicerContext) -> common_pb2.Empty:
        """Stop one evaluation. An ended evaluation is not changed; NOT_FOUND for an unknown id."""
        self._evaluations.stop(request.evaluation_id)
        return common_pb2.Empty()

    def DeleteRun(self, request: evaluator_pb2.EvaluatedRun, context: grpc.ServicerContext) -> common_pb2.Empty:
        """Stop the evaluations of a run and remove their results. Do nothing for an unknown run."""
        self._evaluations.delete_run(RunId(request.run_id))
        self._outputs.remove_models(request.model_ids)
        return common_pb2.Empty()

    def Measure(
        self, request: evaluator_pb2.MeasureRequest, context: grpc.ServicerContext
    ) -> Iterator[evaluator_pb2.MeasuredPart]:
        """Stream the scores, or the rows in chunks. The pass stops if the caller ends the call."""
        measured = self._measurements.measure(measure_request_from_proto(request), context.add_callback)
        for found in measured:
            yield from parts_to_proto(found, self._endpoint)

    def MeasureDrift(
        self, request: evaluator_pb2.DriftRequest, context: grpc.ServicerContext
    ) -> Iterator[evaluator_pb2.MeasuredDrift]:
        """Answer a question about drift with one message for each pair of windows. The job stops if the caller ends the call."""
        answers = self._measurements.measure_drifts(drift_request_from_proto(request), context.add_callback)
        yield from map(measured_drift_to_proto, answers)

    def Results(
        self, request: evaluator_pb2.ResultsRequest, context: grpc.ServicerContext
    ) -> Iterator[evaluator_pb2.EvaluationResult]:
        """Stream the results of a run, or of some of its evaluations, while the results are read from the database; an unknown run has no results."""
        for result in self._store.results(RunId(request.run_id), request.evaluation_ids):
            yield to_message(result, evaluator_pb2.EvaluationResult)


def build(context: ServiceContext) -> Sequence[Registration]:
    """Build the service from its configuration, and remove scratch files of an earlier process."""
    config = context.config
    settings = config.evaluator
    database = open_database(config, "evaluator", "modyn.evaluator.migrations")
    context.on_shutdown(database.close)
    store = EvaluationStore(database)
    scratch = context.directory / "scratch"
    rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    outputs = OutputCache(context.directory / "outputs", settings.outputs_bytes)
    outputs.prepare()
    limits = WorkerLimits("evaluator", settings.user_function_timeout_s, settings.worker_memory_bytes, config.logs.limits)
    rules = SessionRules(settings.num_threads, limits, settings.session_idle_s, settings.session_models_bytes)
    pool = WorkerPool(
        settings.max_workers, rules=rules, preload=PRELOAD, failure=ModynError, server_idle_s=settings.fork_server_idle_s
    )
    storage = StorageClient(config.endpoint("storage"))
    context.on_shutdown(storage.close)

    def worker_config(request: EvaluationRequest | MeasureRequest | DriftRequest) -> SystemConfig:
        redis_url = cache_redis_url(config, {"cache": request.cache})
        return for_workers(config, Role.READER).model_copy(update={"redis_url": redis_url})

    def make_job(request: EvaluationRequest | MeasureRequest, source: SampleSource, data: DataVersion) -> EvaluationJob:
        of_worker = worker_config(request)
        folder = Path(mkdtemp(dir=scratch, prefix=f"model-{request.model_id}-"))
        kind = request.kind if isinstance(request, MeasureRequest) else OutputKind.SCORES
        return EvaluationJob(request, source, of_worker, folder, outputs, data, kind)

    def make_drift_job(request: DriftRequest, data: DataVersion) -> DriftJob:
        return DriftJob(request, worker_config(request), Path(mkdtemp(dir=scratch, prefix="drift-")), data)

    evaluations = Evaluations(store, pool, make_job, storage, settings.max_workers)
    # The functions are called in reverse order: `evaluations` starts no further jobs, then the workers stop, and the database closes after the last
    # results are stored.
    context.on_shutdown(pool.close)
    context.on_shutdown(evaluations.close)
    context.when_healthy.append(pool.warm_up)
    endpoint = config.endpoint("evaluator")
    measurements = Measurements(pool, make_job, make_drift_job, storage)
    servicer = EvaluatorServicer(evaluations, store, outputs, measurements, storage, endpoint)
    return [Registration(evaluator_pb2_grpc.add_EvaluatorServicer_to_server, servicer, FULL_NAME)]
