"""Typed client of the supervisor, and the records that it returns: runs, their events and triggers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import uuid4

from modyn.config.base import Problem
from modyn.proto import common_pb2, supervisor_pb2, supervisor_pb2_grpc
from modyn.records import DeletedSamples, ServingLoad, VersionUse
from modyn.rpc.client import ServiceClient
from modyn.rpc.wire import from_message, from_struct, to_message
from modyn.supervisor.evidence import (
    DETECTIONS,
    IN_A_ROW,
    UNUSUAL,
    WARMING_UP,
    Evidence,
    EvidenceColumn,
    EvidenceKind,
    column_names,
    columns_of,
)
from modyn.supervisor.journal.records import (
    RequestedEvaluation,
    Run,
    RunMode,
    RunOptions,
    ServedInterval,
    ServedVersion,
    ServingStatus,
    TriggerRecord,
    model_at,
)
from modyn.supervisor.journal.run_events import (
    EvaluateStep,
    EvaluationProgress,
    RunEvent,
    RunMessage,
    SelectStep,
    StateChange,
    StepState,
    StreamProgress,
    TrainStep,
    TriggerFired,
    TriggerProgress,
    detail_from_json,
)
from modyn.supervisor.journal.states import RunState, TriggerState
from modyn.supervisor.triggers.base import CheckRecord

__all__ = [
    "DETECTIONS",
    "IN_A_ROW",
    "UNUSUAL",
    "WARMING_UP",
    "CheckRecord",
    "EvaluateStep",
    "EvaluationProgress",
    "Evidence",
    "EvidenceColumn",
    "EvidenceKind",
    "RequestedEvaluation",
    "Run",
    "RunEvent",
    "RunMessage",
    "RunMode",
    "RunOptions",
    "RunState",
    "SelectStep",
    "ServedInterval",
    "ServedVersion",
    "ServingStatus",
    "StateChange",
    "StepState",
    "StreamProgress",
    "SupervisorClient",
    "TrainStep",
    "TriggerFired",
    "TriggerProgress",
    "TriggerRecord",
    "TriggerState",
    "column_names",
    "columns_of",
    "model_at",
]

SUBMIT_DEADLINE_S = 300.0
"""Deadline of a submission in seconds. Every service that uses the pipeline checks the pipeline, and a service may still be starting."""

REPORT_DEADLINE_S = 2.0
"""Deadline of a report of load in seconds. The deadline is short, because a later report replaces a lost report."""
REMOVAL_DEADLINE_S = 3600.0
"""Deadline of the removal of one run in seconds. A run may have tens of thousands of models."""


class SupervisorClient(ServiceClient):
    """Client of the supervisor. Every method raises from `modyn.errors`: NotFoundError: unknown run. ConflictError: the run's state does not allow
    the call. UnavailableError: the supervisor cannot be reached."""

    _Stub = supervisor_pb2_grpc.SupervisorStub
    _not_repeatable = frozenset({"EvaluateRun"})

    def validate(self, yaml: str, file_name: str) -> list[Problem]:
        """List every mistake in `yaml`, the text of a pipeline file; empty if the file can be submitted. No run is started."""
        reply = self._stub.Validate(supervisor_pb2.PipelineText(yaml=yaml, file_name=file_name), timeout=SUBMIT_DEADLINE_S)
        return [from_message(problem, Problem) for problem in reply.problems]

    def submit(self, yaml: str, file_name: str, options: RunOptions) -> Run:
        """Start a run.

        Args: yaml: the text of the pipeline file. file_name: name of the file in messages.
        Raises: ConfigError: lists every mistake of the file. NotFoundError: a dataset is missing. InvalidArgumentError: there are no samples to
        replay, or the options contradict each other.
        """
        request = to_message(options, supervisor_pb2.SubmitRequest)
        request.pipeline.CopyFrom(supervisor_pb2.PipelineText(yaml=yaml, file_name=file_name))
        # A submission whose answer is lost is repeated. The submission id prevents a second run.
        request.submission_id = uuid4().hex
        return from_message(self._stub.Submit(request, timeout=SUBMIT_DEADLINE_S), Run)

    def runs(self, *, with_pipelines: bool = False) -> list[Run]:
        """List all runs, oldest first. Args: with_pipelines: fill the fields `yaml` and `pipeline`, which are empty otherwise."""
        request = supervisor_pb2.ListRunsRequest(with_pipelines=with_pipelines)
        return self._retrier.call(lambda: [from_message(run, Run) for run in self._stub.ListRuns(request)])

    def run(self, run_id: str) -> Run:
        """Return one run. Raises: NotFoundError."""
        return from_message(self._stub.GetRun(supervisor_pb2.RunName(run_id=run_id)), Run)

    def watch(
        self, run_id: str, after_seq: int = 0, evaluation: int | None = None, newest: int | None = None
    ) -> Iterator[RunEvent]:
        """Yield the journalled events after `after_seq`, then new events and progress as soon as each occurs, until the run is terminal.

        Args: evaluation: `RequestedEvaluation.number` of a request. The iteration then ends with this request instead of with the run. newest:
        number of the newest journalled events to start with; None to start with all of them.
        Raises: UnavailableError: the supervisor became unavailable; call again with the last `seq` received.
        """
        request = supervisor_pb2.WatchRequest(run_id=run_id, after_seq=after_seq, evaluation=evaluation, newest=newest)
        for event in self._stub.Watch(request):
            trigger_id = event.trigger_id if event.HasField("trigger_id") else None
            yield RunEvent(event.seq, event.time, trigger_id, detail_from_json(event.kind, from_struct(event.detail)))

    def stop(self, run_id: str) -> Run:
        """Ask the run to end soon; the run can be resumed later. A terminal run is not changed."""
        return from_message(self._stub.StopRun(supervisor_pb2.RunName(run_id=run_id)), Run)

    def resume(self, run_id: str) -> Run:
        """Resume a stopped, failed or interrupted run. An active run is not changed. Raises: ConflictError: the run is finished."""
        return from_message(self._stub.ResumeRun(supervisor_pb2.RunName(run_id=run_id)), Run)

    def finish(self, run_id: str) -> Run:
        """Ask the run to end the stream now, to make the final evaluations, and to finish."""
        return from_message(self._stub.FinishRun(supervisor_pb2.RunName(run_id=run_id)), Run)

    def evaluate(
        self,
        run_id: str,
        handlers: Sequence[str] = (),
        datasets: Sequence[str] = (),
        metrics: Sequence[str] = (),
        yaml: str = "",
    ) -> RequestedEvaluation:
        """Evaluate the models of a run, in any state of the run. To follow the evaluations, pass the returned number to `watch`.

        Args: handlers: names of handlers; if empty, all manual handlers and failed evaluations are evaluated. datasets, metrics: replace the datasets
        and metrics of the handlers. yaml: text of a handler or an `evaluation` section that replaces the run's own section.
        """
        request = supervisor_pb2.EvaluateRunRequest(
            run_id=run_id, handlers=list(handlers), datasets=list(datasets), metrics=list(metrics), yaml=yaml
        )
        return from_message(self._stub.EvaluateRun(request), RequestedEvaluation)

    def evaluation(self, run_id: str, number: int) -> RequestedEvaluation:
        """Return one request for evaluations of a run.

        Args: number: number of the request, as `evaluate` returned it.
        Raises: NotFoundError.
        """
        name = supervisor_pb2.EvaluationName(run_id=run_id, number=number)
        return from_message(self._stub.GetEvaluation(name), RequestedEvaluation)

    def cancel_evaluation(self, run_id: str, number: int) -> RequestedEvaluation:
        """Cancel one request for evaluations; results are kept. A request that has ended is not changed.

        Args: number: number of the request, as `evaluate` returned it.
        Raises: NotFoundError. ConflictError: another supervisor on the same database executes the request.
        """
        name = supervisor_pb2.EvaluationName(run_id=run_id, number=number)
        return from_message(self._stub.CancelEvaluation(name), RequestedEvaluation)

    def evaluations(self, run_id: str) -> list[RequestedEvaluation]:
        """List the requests for evaluations of a run, oldest first. Raises: NotFoundError."""
        name = supervisor_pb2.RunName(run_id=run_id)
        return self._retrier.call(
            lambda: [from_message(asked, RequestedEvaluation) for asked in self._stub.ListEvaluations(name)]
        )

    def report_load(self, run_id: str, server_id: str, load: ServingLoad, versions: Sequence[VersionUse] = ()) -> None:
        """Report the measurements of a prediction server.

        Args: server_id: id that is the same in all reports of a process. load: load for trigger policies of the run; the load is dropped after a few
        seconds. versions: for each version, how the server uses it, and the requests that it has answered since the last report. These requests are
        counted.
        """
        report = to_message(load, supervisor_pb2.LoadReport)
        report.run_id, report.server_id = run_id, server_id
        report.versions.extend(to_message(use, supervisor_pb2.VersionUse) for use in versions)
        self._stub.ReportLoad(report, timeout=REPORT_DEADLINE_S)

    def serving(self, run_id: str) -> ServingStatus:
        """Return the present state of a run's prediction servers. Raises: NotFoundError."""
        return from_message(self._stub.GetServing(supervisor_pb2.RunName(run_id=run_id)), ServingStatus)

    def served(self, run_id: str) -> list[ServedInterval]:
        """List the reports of servers about each version of a run, in order of time. Raises: NotFoundError."""
        request = supervisor_pb2.RunName(run_id=run_id)
        return self._retrier.call(lambda: [from_message(served, ServedInterval) for served in self._stub.ListServed(request)])

    def checks(self, run_id: str) -> list[CheckRecord]:
        """List the checks in which the trigger policy measured data, in order. Raises: NotFoundError."""
        request = supervisor_pb2.RunName(run_id=run_id)
        return self._retrier.call(lambda: [from_message(check, CheckRecord) for check in self._stub.ListChecks(request)])

    def remove(self, run_id: str, *, even_promoted: bool = False) -> None:
        """Remove a terminal run from all services: journal, trigger sets, models, results, training files. The call may be repeated after an error.

        Args: even_promoted: remove the run even if one of the run's models is promoted.
        Raises: NotFoundError. ConflictError: the run is active, or a model of the run is promoted or needed by another run.
        """
        request = supervisor_pb2.RemoveRunRequest(run_id=run_id, even_promoted=even_promoted)
        self._stub.RemoveRun(request, timeout=REMOVAL_DEADLINE_S)

    def remove_model(self, model_id: int, *, even_promoted: bool = False) -> None:
        """Remove one model version.

        Args: even_promoted: remove the model even if the model is promoted.
        Raises: NotFoundError. ConflictError: the model is promoted, or a run needs the model to continue.
        """
        self._stub.RemoveModel(supervisor_pb2.RemoveModelRequest(model_id=model_id, even_promoted=even_promoted))

    def tell_of_deletion(self, deleted: DeletedSamples) -> list[str]:
        """Write an event for each run whose models or scores may depend on the deleted samples; return the ids of these runs."""
        return list(self._stub.TellOfDeletion(to_message(deleted, common_pb2.DeletedSamples)).run_ids)

    def triggers(self, run_id: str, first: int = 0, *, with_losses: bool = True) -> list[TriggerRecord]:
        """List the triggers of a run, in order.

        Args: first: id of the first trigger. with_losses: include all losses in `training_result`; these lists are long.
        """
        request = supervisor_pb2.ListTriggersRequest(run_id=run_id, with_losses=with_losses, first_trigger_id=first)
        return self._retrier.call(lambda: [from_message(trigger, TriggerRecord) for trigger in self._stub.ListTriggers(request)])
