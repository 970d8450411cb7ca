"""The supervisor's gRPC servicer: decode, call, encode. Records and messages are converted by field name (`modyn.rpc.wire`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import grpc

from modyn.db.engine import open_database
from modyn.periodic_task import PeriodicTask
from modyn.proto import common_pb2, supervisor_pb2, supervisor_pb2_grpc
from modyn.records import DeletedSamples, ServingLoad, VersionUse
from modyn.rpc.server import Registration, ServiceContext
from modyn.rpc.wire import from_message, plugins_to_proto, problems_to_proto, to_message
from modyn.supervisor.alerts import follow_runs
from modyn.supervisor.evaluation import EVALUATION_STRATEGIES
from modyn.supervisor.events import EventHub, watch
from modyn.supervisor.journal import Journal
from modyn.supervisor.orphaned_runs import SCAN_PERIOD_S
from modyn.supervisor.queue import RunQueue
from modyn.supervisor.records import EventKind, RunOptions
from modyn.supervisor.requested_evaluations import EvaluationOrder
from modyn.supervisor.retention import Retention
from modyn.supervisor.run_clients import open_clients
from modyn.supervisor.served_history import FLUSH_S, ServedHistory
from modyn.supervisor.served_loads import ServedLoads
from modyn.supervisor.triggers import TRIGGERS


class SupervisorService(supervisor_pb2_grpc.SupervisorServicer):
    """Each method decodes, carries out and encodes the call of the same name in protos/modyn/proto/supervisor.proto."""

    def __init__(self, runs: RunQueue, hub: EventHub, served: ServedHistory) -> None:
        self._runs, self._served = runs, served
        self._journal = runs.journal
        self._hub = hub

    def Validate(self, request: supervisor_pb2.PipelineText, context: grpc.ServicerContext) -> common_pb2.SectionReply:
        """Problems that the services find in a pipeline file; empty if it can be submitted."""
        return problems_to_proto(self._runs.validate(request.yaml, request.file_name))

    def Submit(self, request: supervisor_pb2.SubmitRequest, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        """Check a pipeline and queue a run of it, a new one unless there is one of this submission."""
        pipeline, options = request.pipeline, from_message(request, RunOptions)
        submission_id = request.submission_id or None
        return to_message(self._runs.submit(pipeline.yaml, pipeline.file_name, options, submission_id), supervisor_pb2.Run)

    def ListRuns(self, request: supervisor_pb2.ListRunsRequest, context: grpc.ServicerContext) -> Iterator[supervisor_pb2.Run]:
        """Stream all runs, oldest first."""
        for run in self._journal.each_run(with_pipelines=request.with_pipelines):
            yield to_message(run, supervisor_pb2.Run)

    def GetRun(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        """A run as it is journalled; NOT_FOUND if there is none."""
        return to_message(self._journal.run(request.run_id), supervisor_pb2.Run)

    def Watch(self, request: supervisor_pb2.WatchRequest, context: grpc.ServicerContext) -> Iterator[supervisor_pb2.RunEvent]:
        """Stream the events after `after_seq`, kept ones first, until the run is terminal or the client leaves."""
        number = request.evaluation if request.HasField("evaluation") else None
        newest = request.newest if request.HasField("newest") else None
        with self._hub.watching(request.run_id) as watcher:
            if not context.add_callback(watcher.close):
                return  # The call has ended already.
            for event in watch(self._journal, watcher, request.run_id, request.after_seq, number, newest):
                yield to_message(event, supervisor_pb2.RunEvent)

    def StopRun(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        """Ask a run to stop, without waiting for it; a terminal one is left as it is."""
        return to_message(self._runs.stop(request.run_id), supervisor_pb2.Run)

    def ResumeRun(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        """Queue a stopped, failed or interrupted run again; an active one is left alone, a finished one is CONFLICT."""
        return to_message(self._runs.resume(request.run_id), supervisor_pb2.Run)

    def FinishRun(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.Run:
        """Ask a run to end its stream and to make its final evaluations, without waiting for it."""
        return to_message(self._runs.finish(request.run_id), supervisor_pb2.Run)

    def EvaluateRun(
        self, request: supervisor_pb2.EvaluateRunRequest, context: grpc.ServicerContext
    ) -> supervisor_pb2.RequestedEvaluation:
        """Queue evaluations of a run, whose state does not change."""
        order = EvaluationOrder(list(request.handlers), list(request.datasets), list(request.metrics), request.yaml)
        return to_message(self._runs.evaluate(request.run_id, order), supervisor_pb2.RequestedEvaluation)

    def GetEvaluation(
        self, request: supervisor_pb2.EvaluationName, context: grpc.ServicerContext
    ) -> supervisor_pb2.RequestedEvaluation:
        """Return evaluations that were asked for."""
        return to_message(self._journal.evaluation(request.run_id, request.number), supervisor_pb2.RequestedEvaluation)

    def CancelEvaluation(
        self, request: supervisor_pb2.EvaluationName, context: grpc.ServicerContext
    ) -> supervisor_pb2.RequestedEvaluation:
        """End evaluations that were asked for; those that have ended are left as they are."""
        return to_message(self._runs.cancel_evaluation(request.run_id, request.number), supervisor_pb2.RequestedEvaluation)

    def ListEvaluations(
        self, request: supervisor_pb2.RunName, context: grpc.ServicerContext
    ) -> Iterator[supervisor_pb2.RequestedEvaluation]:
        """Stream the evaluations of a run that were asked for, oldest first; NOT_FOUND if there is no such run."""
        for evaluation in self._journal.evaluations(request.run_id):
            yield to_message(evaluation, supervisor_pb2.RequestedEvaluation)

    def ListTriggers(
        self, request: supervisor_pb2.ListTriggersRequest, context: grpc.ServicerContext
    ) -> Iterator[supervisor_pb2.TriggerRecord]:
        """Stream the triggers of a run in order, from the first that is asked for; NOT_FOUND if there is no such run."""
        for trigger in self._journal.each_trigger(request.run_id, request.first_trigger_id, with_losses=request.with_losses):
            yield to_message(trigger, supervisor_pb2.TriggerRecord)

    def ListChecks(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> Iterator[supervisor_pb2.CheckRecord]:
        """Stream the journalled checks of a run in order; NOT_FOUND if there is no such run."""
        for check in self._journal.each_check(request.run_id):
            yield to_message(check, supervisor_pb2.CheckRecord)

    def RemoveRun(self, request: supervisor_pb2.RemoveRunRequest, context: grpc.ServicerContext) -> common_pb2.Empty:
        """Remove a terminal run from all services; CONFLICT if it is active or needed."""
        self._runs.remove(request.run_id, even_promoted=request.even_promoted)
        return common_pb2.Empty()

    def RemoveModel(self, request: supervisor_pb2.RemoveModelRequest, context: grpc.ServicerContext) -> common_pb2.Empty:
        """Remove one model version; CONFLICT if it is promoted or needed."""
        self._runs.remove_model(request.model_id, even_promoted=request.even_promoted)
        return common_pb2.Empty()

    def TellOfDeletion(self, request: common_pb2.DeletedSamples, context: grpc.ServicerContext) -> supervisor_pb2.RunNames:
        """Leave an event with each run whose models or scores may rest on the samples; return these runs."""
        return supervisor_pb2.RunNames(run_ids=self._journal.tell_of_deletion(from_message(request, DeletedSamples)))

    def ListPlugins(self, request: common_pb2.Empty, context: grpc.ServicerContext) -> common_pb2.PluginList:
        """The trigger policies and evaluation strategies that are registered here."""
        return plugins_to_proto(TRIGGERS, EVALUATION_STRATEGIES)

    def ReportLoad(self, request: supervisor_pb2.LoadReport, context: grpc.ServicerContext) -> common_pb2.Empty:
        """Take what a server of predictions measures: for trigger policies that ask for it, for watchers, and to be kept."""
        versions, loads = [from_message(use, VersionUse) for use in request.versions], self._runs.clients.loads
        load = ServingLoad(request.rate, request.mean_s, request.p99_s, 1)
        loads.report(request.run_id, request.server_id, load, versions)
        self._served.add(request.run_id, versions)
        self._hub.progress(request.run_id, EventKind.SERVING, asdict(loads.status(request.run_id)))
        return common_pb2.Empty()

    def GetServing(self, request: supervisor_pb2.RunName, context: grpc.ServicerContext) -> supervisor_pb2.ServingStatus:
        """What the servers of a run's predictions do now; NOT_FOUND if there is no such run."""
        run = self._journal.run(request.run_id)
        return to_message(self._runs.clients.loads.status(run.run_id), supervisor_pb2.ServingStatus)

    def ListServed(
        self, request: supervisor_pb2.RunName, context: grpc.ServicerContext
    ) -> Iterator[supervisor_pb2.ServedInterval]:
        """Stream what was served of a run until now, in order of time; NOT_FOUND if there is no such run."""
        for served in self._served.each(request.run_id):
            yield to_message(served, supervisor_pb2.ServedInterval)


def build(context: ServiceContext) -> Sequence[Registration]:
    """Build the service from its configuration. Runs that an earlier one has left behind are taken up again."""
    config = context.config
    database = open_database(config, "supervisor", "modyn.supervisor.migrations")
    context.on_shutdown(database.close)
    hub = EventHub()
    journal = Journal(database, hub.committed, config.supervisor.events_kept)
    if (alerts := follow_runs(config.alerts, journal, hub)) is not None:
        context.on_shutdown(alerts.close)
    loads = ServedLoads()
    runs = RunQueue(journal, hub, lambda: open_clients(config, loads), config.supervisor)
    context.on_shutdown(runs.close)
    runs.recover()
    retention = Retention(journal, runs.removal, runs.clients.model_storage, config.retention)

    def report(error: Exception) -> None:
        context.logger.warning("retention_goes_on_later", error=str(error))

    sweeps = PeriodicTask("retention", config.retention.every_s, [retention.sweep], report)
    context.when_healthy.append(sweeps.start)
    context.on_shutdown(sweeps.close)

    def report_scan(error: Exception) -> None:
        context.logger.warning("orphaned_runs_are_searched_later", error=str(error))

    orphan_scans = PeriodicTask("orphaned-runs", SCAN_PERIOD_S, [runs.scan_for_orphans], report_scan)
    context.when_healthy.append(orphan_scans.start)
    context.on_shutdown(orphan_scans.close)
    served = ServedHistory(journal)
    context.on_shutdown(served.flush)

    def report_served(error: Exception) -> None:
        context.logger.warning("served_requests_are_written_later", error=str(error))

    flushes = PeriodicTask("served", FLUSH_S, [served.flush], report_served)
    context.when_healthy.append(flushes.start)
    context.on_shutdown(flushes.close)
    service = SupervisorService(runs, hub, served)
    return [Registration(supervisor_pb2_grpc.add_SupervisorServicer_to_server, service, "modyn.Supervisor")]
