"""The supervisor's gRPC servicer: decode, call, encode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import grpc

from modyn.db.engine import open_database
from modyn.evaluator.client import result_to_proto
from modyn.proto import common_pb2, evaluator_pb2, supervisor_pb2, supervisor_pb2_grpc
from modyn.rpc.server import Registration, ServiceContext
from modyn.rpc.wire import plugins_to_proto, problems_to_proto, to_struct
from modyn.supervisor.client import Run, RunEvent, TriggerRecord, mode_from_proto, mode_to_proto
from modyn.supervisor.clients import open_clients
from modyn.supervisor.evaluation import EVALUATION_STRATEGIES
from modyn.supervisor.events import EventHub, watch
from modyn.supervisor.journal import Journal
from modyn.supervisor.queue import RunQueue
from modyn.supervisor.triggers import TRIGGERS
from modyn.supervisor.validation import RunOptions


class SupervisorService(supervisor_pb2_grpc.SupervisorServicer):
    """See protos/modyn/proto/supervisor.proto."""

    def __init__(self, runs: RunQueue, journal: Journal, hub: EventHub) -> None:
        self._runs = runs
        self._journal = journal
        self._hub = hub

    def Validate(self, request: supervisor_pb2.PipelineText, context: grpc.ServicerContext) -> common_pb2.SectionReply:
        return problems_to_proto(self._runs.validate(request.yaml, request.file_name))

    def Submit(self, request: supervisor_pb2.SubmitRequest, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        options = RunOptions(
            mode=mode_from_proto(request.mode),
            from_timestamp=request.from_timestamp if request.HasField("from_timestamp") else None,
            to_timestamp=request.to_timestamp if request.HasField("to_timestamp") else None,
            max_triggers=request.max_triggers if request.HasField("max_triggers") else None,
        )
        return run_to_proto(self._runs.submit(request.pipeline.yaml, request.pipeline.file_name, options))

    def ListRuns(self, request: common_pb2.Empty, context: grpc.ServicerContext) -> supervisor_pb2.RunList:
        return supervisor_pb2.RunList(runs=[run_to_proto(run) for run in self._runs.runs()])

    def GetRun(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        return run_to_proto(self._runs.run(request.run_id))

    def Watch(self, request: supervisor_pb2.WatchRequest, context: grpc.ServicerContext) -> Iterator[supervisor_pb2.RunEvent]:
        events = watch(
            self._journal, self._hub, request.run_id, request.after_seq, lambda watcher: _close_with(context, watcher.close)
        )
        for event in events:
            yield event_to_proto(event)

    def StopRun(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        return run_to_proto(self._runs.stop(request.run_id))

    def ResumeRun(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        return run_to_proto(self._runs.resume(request.run_id))

    def EvaluateRun(self, request: supervisor_pb2.EvaluateRunRequest, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        return run_to_proto(self._runs.evaluate(request.run_id, list(request.handlers)))

    def ListTriggers(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.TriggerList:
        return supervisor_pb2.TriggerList(triggers=[trigger_to_proto(trigger) for trigger in self._runs.triggers(request.run_id)])

    def Results(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> Iterator[evaluator_pb2.EvaluationResult]:
        return map(result_to_proto, self._runs.results(request.run_id))

    def ListPlugins(self, request: common_pb2.Empty, context: grpc.ServicerContext) -> common_pb2.PluginList:
        return plugins_to_proto(TRIGGERS, EVALUATION_STRATEGIES)


def build(context: ServiceContext) -> Sequence[Registration]:
    """The service, from its configuration. Runs that an ended one has left behind are taken up again."""
    config = context.config
    database = open_database(config, "supervisor", "modyn.supervisor.migrations")
    context.on_shutdown(database.close)
    hub = EventHub()
    journal = Journal(database, hub.committed)
    runs = RunQueue(journal, hub, lambda: open_clients(config), config.supervisor)
    context.on_shutdown(runs.close)
    runs.recover()
    service = SupervisorService(runs, journal, hub)
    return [Registration(supervisor_pb2_grpc.add_SupervisorServicer_to_server, service, "modyn.Supervisor")]


def _close_with(context: grpc.ServicerContext, close: Callable[[], None]) -> None:
    """Calls `close` when the call ends; at once if it has ended already."""
    if not context.add_callback(close):
        close()


def run_to_proto(run: Run) -> supervisor_pb2.Run:
    return supervisor_pb2.Run(
        run_id=run.run_id,
        pipeline_name=run.pipeline_name,
        mode=mode_to_proto(run.mode),
        state=str(run.state),
        error=run.error,
        error_reason=run.error_reason,
        submitted_at=run.submitted_at,
        finished_at=run.finished_at or 0.0,
        num_samples=run.num_samples,
        num_triggers=run.num_triggers,
        samples_trained=run.samples_trained,
        yaml=run.yaml,
        total_samples=run.total_samples or 0,
        message=run.message,
        from_timestamp=run.from_timestamp,
        to_timestamp=run.to_timestamp,
        max_triggers=run.max_triggers,
        pipeline=to_struct(run.pipeline),
    )


def event_to_proto(event: RunEvent) -> supervisor_pb2.RunEvent:
    return supervisor_pb2.RunEvent(
        seq=event.seq, time=event.time, kind=str(event.kind), trigger_id=event.trigger_id, detail=to_struct(event.detail)
    )


def trigger_to_proto(trigger: TriggerRecord) -> supervisor_pb2.TriggerRecord:
    return supervisor_pb2.TriggerRecord(
        trigger_id=trigger.trigger_id,
        position=trigger.position,
        first_timestamp=trigger.first_timestamp,
        last_timestamp=trigger.last_timestamp,
        fired_at_timestamp=trigger.fired_at_timestamp,
        num_keys=trigger.num_keys or 0,
        keys_checksum=trigger.keys_checksum or "",
        model_id=trigger.model_id or 0,
        parent_model_id=trigger.parent_model_id or 0,
        weights_sha256=trigger.weights_sha256 or "",
        training_result=to_struct(trigger.training_result),
        seconds=to_struct(trigger.seconds),
        state=str(trigger.state),
        started_at=trigger.started_at,
        finished_at=trigger.finished_at or 0.0,
    )
