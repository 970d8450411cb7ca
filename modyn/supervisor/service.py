"""The supervisor's gRPC servicer: decode, call, encode. Records and messages are converted by field name (`modyn.rpc.wire`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import grpc

from modyn.db.engine import open_database
from modyn.periodic_task import PeriodicTask
from modyn.proto import common_pb2, supervisor_pb2, supervisor_pb2_grpc
from modyn.records import DeletedSamples, ServingLoad, VersionUse
from modyn.rpc.server import Registration, ServiceContext
from modyn.rpc.wire import from_message, plugins_to_proto, problems_to_proto, to_message
from modyn.supervisor.alerts.alerts import follow_runs
from modyn.supervisor.evaluation import EVALUATION_STRATEGIES
from modyn.supervisor.evaluation.on_request import EvaluationOrder
from modyn.supervisor.journal.events import EventHub, watch
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.journal.records import RunOptions
from modyn.supervisor.queue.queue import RunQueue
from modyn.supervisor.queue.run_retention import Retention
from modyn.supervisor.served.history import FLUSH_S, ServedHistory
from modyn.supervisor.served.loads import ServedLoads
from modyn.supervisor.services.run_clients import open_clients
from modyn.supervisor.triggers import TRIGGERS


class SupervisorService(supervisor_pb2_grpc.SupervisorServicer):
    """Each method decodes the request, makes the call and encodes the reply of the RPC with its name in protos/modyn/proto/supervisor.proto."""

    def __init__(self, runs: RunQueue, hub: EventHub, served: ServedHistory) -> None:
        self._runs, self._served = runs, served
        self._journal = runs.journal
        self._hub = hub

    def Validate(self, request: supervisor_pb2.PipelineText, context: grpc.ServicerContext) -> common_pb2.SectionReply:
        """Return the problems that the services find in a pipeline file; empty if the file can be submitted."""
        return problems_to_proto(self._runs.validate(request.yaml, request.file_name))

    def Submit(self, request: supervisor_pb2.SubmitRequest, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        """Check a pipeline and queue a run of the pipeline. A repeated submission queues the run of the first submission."""
        pipeline, options = request.pipeline, from_message(request, RunOptions)
        submission_id = request.submission_id or None
        return to_message(self._runs.submit(pipeline.yaml, pipeline.file_name, options, submission_id), supervisor_pb2.Run)

    def ListRuns(self, request: supervisor_pb2.ListRunsRequest, context: grpc.ServicerContext) -> Iterator[supervisor_pb2.Run]:
        """Stream all runs, oldest first."""
        for run in self._journal.each_run(with_pipelines=request.with_pipelines):
            yield to_message(run, supervisor_pb2.Run)

    def GetRun(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        """Return a run from the journal; NOT_FOUND if the run does not exist."""
        return to_message(self._journal.run(request.run_id), supervisor_pb2.Run)

    def Watch(self, request: supervisor_pb2.WatchRequest, context: grpc.ServicerContext) -> Iterator[supervisor_pb2.RunEvent]:
        """Stream the events after `after_seq`, journalled events first, until the run is terminal or the client ends the call."""
        number = request.evaluation if request.HasField("evaluation") else None
        newest = request.newest if request.HasField("newest") else None
        with self._hub.watching(request.run_id) as watcher:
            if not context.add_callback(watcher.close):
                return  # The call has ended already.
            for event in watch(self._journal, watcher, request.run_id, request.after_seq, number, newest):
                message = to_message(event, supervisor_pb2.RunEvent)
                message.kind = event.kind
                yield message

    def StopRun(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        """Ask a run to stop, without waiting for the end of the run. A terminal run is not changed."""
        return to_message(self._runs.stop(request.run_id), supervisor_pb2.Run)

    def ResumeRun(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        """Queue a stopped, failed or interrupted run again. An active run is not changed; CONFLICT if the run is finished."""
        return to_message(self._runs.resume(request.run_id), supervisor_pb2.Run)

    def FinishRun(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        """Ask a run to end the stream and to make the final evaluations, without waiting for the end of the run."""
        return to_message(self._runs.finish(request.run_id), supervisor_pb2.Run)

    def EvaluateRun(
        self, request: supervisor_pb2.EvaluateRunRequest, context: grpc.ServicerContext
    ) -> supervisor_pb2.RequestedEvaluation:
        """Queue evaluations of a run. The state of the run does not change."""
        order = EvaluationOrder(list(request.handlers), list(request.datasets), list(request.metrics), request.yaml)
        return to_message(self._runs.evaluate(request.run_id, order), supervisor_pb2.RequestedEvaluation)

    def GetEvaluation(
        self, request: supervisor_pb2.EvaluationName, context: grpc.ServicerContext
    ) -> supervisor_pb2.RequestedEvaluation:
        """Return one request for evaluations."""
        return to_message(self._journal.evaluation(request.run_id, request.number), supervisor_pb2.RequestedEvaluation)

    def CancelEvaluation(
        self, request: supervisor_pb2.EvaluationName, context: grpc.ServicerContext
    ) -> supervisor_pb2.RequestedEvaluation:
        """Cancel one request for evaluations. A request that has ended is not changed."""
        return to_message(self._runs.cancel_evaluation(request.run_id, request.number), supervisor_pb2.RequestedEvaluation)

    def ListEvaluations(
        self, request: supervisor_pb2.RunName, context: grpc.ServicerContext
    ) -> Iterator[supervisor_pb2.RequestedEvaluation]:
        """Stream the requests for evaluations of a run, oldest first; NOT_FOUND if there is no such run."""
        for evaluation in self._journal.evaluations(request.run_id):
            yield to_message(evaluation, supervisor_pb2.RequestedEvaluation)

    def ListTriggers(
        self, request: supervisor_pb2.ListTriggersRequest, context: grpc.ServicerContext
    ) -> Iterator[supervisor_pb2.TriggerRecord]:
        """Stream the triggers of a run in order, from the requested first trigger on; NOT_FOUND if there is no such run."""
        for trigger in self._journal.each_trigger(request.run_id, request.first_trigger_id, with_losses=request.with_losses):
            yield to_message(trigger, supervisor_pb2.TriggerRecord)

    def ListChecks(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> Iterator[supervisor_pb2.CheckRecord]:
        """Stream the journalled checks of a run in order; NOT_FOUND if there is no such run."""
        for check in self._journal.each_check(request.run_id):
            yield to_message(check, supervisor_pb2.CheckRecord)

    def RemoveRun(self, request: supervisor_pb2.RemoveRunRequest, context: grpc.ServicerContext) -> common_pb2.Empty:
        """Remove a terminal run from all services; CONFLICT if the run is active or needed."""
        self._runs.remove(request.run_id, even_promoted=request.even_promoted)
        return common_pb2.Empty()

    def RemoveModel(self, request: supervisor_pb2.RemoveModelRequest, context: grpc.ServicerContext) -> common_pb2.Empty:
        """Remove one model version; CONFLICT if the model is promoted or needed."""
        self._runs.remove_model(request.model_id, even_promoted=request.even_promoted)
        return common_pb2.Empty()

    def TellOfDeletion(self, request: common_pb2.DeletedSamples, context: grpc.ServicerContext) -> supervisor_pb2.RunNames:
        """Write an event for each run whose models or scores may depend on the deleted samples; return these runs."""
        return supervisor_pb2.RunNames(run_ids=self._journal.tell_of_deletion(from_message(request, DeletedSamples)))

    def ListPlugins(self, request: common_pb2.Empty, context: grpc.ServicerContext) -> common_pb2.PluginList:
        """Return the trigger policies and evaluation strategies that are registered in this process."""
        return plugins_to_proto(TRIGGERS, EVALUATION_STRATEGIES)

    def ReportLoad(self, request: supervisor_pb2.LoadReport, context: grpc.ServicerContext) -> common_pb2.Empty:
        """Receive the measurements of a prediction server, for trigger policies, for watchers, and for the history of served predictions."""
        versions, loads = [from_message(use, VersionUse) for use in request.versions], self._runs.clients.loads
        load = ServingLoad(request.rate, request.mean_s, request.p99_s, 1)
        loads.report(request.run_id, request.server_id, load, versions)
        self._served.add(request.run_id, versions)
        self._hub.progress(request.run_id, loads.status(request.run_id))
        return common_pb2.Empty()

    def GetServing(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.ServingStatus:
        """Return the present state of a run's prediction servers; NOT_FOUND if the run does not exist."""
        run = self._journal.run(request.run_id)
        return to_message(self._runs.clients.loads.status(run.run_id), supervisor_pb2.ServingStatus)

    def ListServed(
        self, request: supervisor_pb2.RunName, context: grpc.ServicerContext
    ) -> Iterator[supervisor_pb2.ServedInterval]:
        """Stream the counts of a run's served predictions until now, in order of time; NOT_FOUND if there is no such run."""
        for served in self._served.each(request.run_id):
            yield to_message(served, supervisor_pb2.ServedInterval)


def build(context: ServiceContext) -> Sequence[Registration]:
    """Build the service from the configuration. The service takes over the runs of an earlier supervisor."""
    # At shutdown the callbacks run in reverse order. The periodic tasks end first, and the last counts of served predictions are written. Then the
    # runs end, then the alerts about these ends are sent, and the database is closed last.
    config = context.config
    database = open_database(config, "supervisor", "modyn.supervisor.migrations")
    context.on_shutdown(database.close)
    hub = EventHub()
    journal = Journal(database, hub.wake_watchers, config.supervisor.events_kept)
    if (alerts := follow_runs(config.alerts, journal, hub)) is not None:
        context.on_shutdown(alerts.close)
    loads = ServedLoads()
    runs = RunQueue(journal, hub, lambda: open_clients(config, loads), config.supervisor)
    context.on_shutdown(runs.close)
    runs.recover()

    def repeat(name: str, every_s: float, action: Callable[[], object], failed: str) -> None:
        """Repeat an action from the start of the service until the service stops. Args: failed: name of the log event for an error."""
        task = PeriodicTask(name, every_s, [action], lambda error: context.logger.warning(failed, error=str(error)))
        context.when_healthy.append(task.start)
        context.on_shutdown(task.close)

    retention = Retention(journal, runs.removal, runs.clients.model_storage, config.retention)
    repeat("retention", config.retention.every_s, retention.sweep, "retention_failed")
    context.when_healthy.append(runs.reconciler.start)
    served = ServedHistory(journal)
    context.on_shutdown(served.flush)
    repeat("served", FLUSH_S, served.flush, "served_requests_not_written")
    service = SupervisorService(runs, hub, served)
    return [Registration(supervisor_pb2_grpc.add_SupervisorServicer_to_server, service, "modyn.Supervisor")]
