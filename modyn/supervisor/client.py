"""Typed client of the supervisor, and the records that it returns: runs, their events and triggers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import uuid4

from modyn.config.base import Problem
from modyn.proto import common_pb2, supervisor_pb2, supervisor_pb2_grpc
from modyn.records import DeletedSamples, ServingLoad, VersionUse
from modyn.rpc.client import ServiceClient
from modyn.rpc.wire import from_message, to_message
from modyn.supervisor.check_series import (
    DETECTIONS,
    ExplainedCheck,
    SeriesCheck,
    explain_check,
    is_count,
    is_flag,
    is_warming_up,
)
from modyn.supervisor.records import (
    PROGRESS,
    EventKind,
    RequestedEvaluation,
    Run,
    RunEvent,
    RunMode,
    RunOptions,
    ServedInterval,
    ServedVersion,
    ServingStatus,
    TriggerRecord,
    model_at,
)
from modyn.supervisor.states import RunState, TriggerState
from modyn.supervisor.triggers.base import CheckRecord

__all__ = [
    "DETECTIONS",
    "PROGRESS",
    "CheckRecord",
    "EventKind",
    "ExplainedCheck",
    "RequestedEvaluation",
    "Run",
    "RunEvent",
    "RunMode",
    "RunOptions",
    "RunState",
    "SeriesCheck",
    "ServedInterval",
    "ServedVersion",
    "ServingStatus",
    "SupervisorClient",
    "TriggerRecord",
    "TriggerState",
    "explain_check",
    "is_count",
    "is_flag",
    "is_warming_up",
    "model_at",
]

SUBMIT_DEADLINE_S = 300.0
"""A pipeline is checked by every service that acts on it, and one of them may be starting."""

REPORT_DEADLINE_S = 2.0
"""Deadline of a report of load: a later one takes its place."""
REMOVAL_DEADLINE_S = 3600.0
"""Deadline of the removal of one run, which may have tens of thousands of models."""


class SupervisorClient(ServiceClient):
    """Calls of the supervisor. Every method raises from `modyn.errors`: NotFoundError for an unknown run, ConflictError when the run's
    state does not allow the call, UnavailableError when the supervisor cannot be reached."""

    _Stub = supervisor_pb2_grpc.SupervisorStub
    _not_repeatable = frozenset({"EvaluateRun"})

    def validate(self, yaml: str, file_name: str) -> list[Problem]:
        """List every mistake in `yaml`, the text of a pipeline file; empty if it can be submitted. Runs nothing."""
        reply = self._stub.Validate(supervisor_pb2.PipelineText(yaml=yaml, file_name=file_name), timeout=SUBMIT_DEADLINE_S)
        return [from_message(problem, Problem) for problem in reply.problems]

    def submit(self, yaml: str, file_name: str, options: RunOptions) -> Run:
        """Start a run.

        Args: yaml: the text of the pipeline file. file_name: its name in messages.
        Raises: ConfigError: lists every mistake of the file. NotFoundError: a dataset is missing. InvalidArgumentError: there is nothing
            to replay, or the options contradict each other.
        """
        request = to_message(options, supervisor_pb2.SubmitRequest)
        request.pipeline.CopyFrom(supervisor_pb2.PipelineText(yaml=yaml, file_name=file_name))
        request.submission_id = uuid4().hex  # One whose answer gets lost is repeated, and starts no second run.
        return from_message(self._stub.Submit(request, timeout=SUBMIT_DEADLINE_S), Run)

    def runs(self, *, with_pipelines: bool = False) -> list[Run]:
        """List all runs, oldest first. Args: with_pipelines: also `yaml` and `pipeline`, which are empty otherwise."""
        request = supervisor_pb2.ListRunsRequest(with_pipelines=with_pipelines)
        return self._retrier.call(lambda: [from_message(run, Run) for run in self._stub.ListRuns(request)])

    def run(self, run_id: str) -> Run:
        """Return one run. Raises: NotFoundError."""
        return from_message(self._stub.GetRun(supervisor_pb2.RunName(run_id=run_id)), Run)

    def watch(
        self, run_id: str, after_seq: int = 0, evaluation: int | None = None, newest: int | None = None
    ) -> Iterator[RunEvent]:
        """Yield the events that are kept after `after_seq`, then new ones and progress as they happen, until the run is terminal.

        Args: evaluation: number of requested evaluations, whose end counts instead of the run's. newest: begin with the newest so many of
            those that are kept; None: with the oldest.
        Raises: UnavailableError: the supervisor went away; call again with the last `seq` received.
        """
        request = supervisor_pb2.WatchRequest(run_id=run_id, after_seq=after_seq, evaluation=evaluation, newest=newest)
        for event in self._stub.Watch(request):
            yield from_message(event, RunEvent)

    def stop(self, run_id: str) -> Run:
        """Ask the run to end soon; it can be resumed. A terminal run is left as it is."""
        return from_message(self._stub.StopRun(supervisor_pb2.RunName(run_id=run_id)), Run)

    def resume(self, run_id: str) -> Run:
        """Go on where the run was stopped, failed or was interrupted. An active run is left as it is; a finished one is a conflict."""
        return from_message(self._stub.ResumeRun(supervisor_pb2.RunName(run_id=run_id)), Run)

    def finish(self, run_id: str) -> Run:
        """Ask the run to end its stream where it stands, to make its final evaluations and to finish."""
        return from_message(self._stub.FinishRun(supervisor_pb2.RunName(run_id=run_id)), Run)

    def evaluate(
        self,
        run_id: str,
        handlers: Sequence[str] = (),
        datasets: Sequence[str] = (),
        metrics: Sequence[str] = (),
        yaml: str = "",
    ) -> RequestedEvaluation:
        """Evaluate the models that a run in any state has made; `watch` with the number that is returned follows it.

        Args: handlers: names; none: all manual ones and what has failed. datasets, metrics: in place of those of the handlers. yaml: text of
            a handler or an `evaluation` section in place of the run's own.
        """
        request = supervisor_pb2.EvaluateRunRequest(
            run_id=run_id, handlers=list(handlers), datasets=list(datasets), metrics=list(metrics), yaml=yaml
        )
        return from_message(self._stub.EvaluateRun(request), RequestedEvaluation)

    def evaluation(self, run_id: str, number: int) -> RequestedEvaluation:
        """Return the evaluations that a run was asked for under a number.

        Args: number: as `evaluate` returned it.
        Raises: NotFoundError.
        """
        name = supervisor_pb2.EvaluationName(run_id=run_id, number=number)
        return from_message(self._stub.GetEvaluation(name), RequestedEvaluation)

    def cancel_evaluation(self, run_id: str, number: int) -> RequestedEvaluation:
        """End evaluations that a run was asked for; what is made of them stays. Those that have ended are left as they are.

        Args: number: as `evaluate` returned it.
        Raises: NotFoundError. ConflictError: another supervisor on the same database makes them.
        """
        name = supervisor_pb2.EvaluationName(run_id=run_id, number=number)
        return from_message(self._stub.CancelEvaluation(name), RequestedEvaluation)

    def evaluations(self, run_id: str) -> list[RequestedEvaluation]:
        """List the evaluations of a run that were asked for, oldest first. Raises: NotFoundError."""
        name = supervisor_pb2.RunName(run_id=run_id)
        return self._retrier.call(
            lambda: [from_message(asked, RequestedEvaluation) for asked in self._stub.ListEvaluations(name)]
        )

    def report_load(self, run_id: str, server_id: str, load: ServingLoad, versions: Sequence[VersionUse] = ()) -> None:
        """Report what a server of a run's predictions measures.

        Args: server_id: the same for all reports of one process. load: trigger policies of the run may go by it; forgotten after some seconds.
        versions: what the server does with each version, and their requests since the last report, which are counted and kept.
        """
        report = to_message(load, supervisor_pb2.LoadReport)
        report.run_id, report.server_id = run_id, server_id
        report.versions.extend(to_message(use, supervisor_pb2.VersionUse) for use in versions)
        self._stub.ReportLoad(report, timeout=REPORT_DEADLINE_S)

    def serving(self, run_id: str) -> ServingStatus:
        """Return what the servers of a run's predictions do now. Raises: NotFoundError."""
        return from_message(self._stub.GetServing(supervisor_pb2.RunName(run_id=run_id)), ServingStatus)

    def served(self, run_id: str) -> list[ServedInterval]:
        """List what servers have reported of each version of a run, in order of time. Raises: NotFoundError."""
        request = supervisor_pb2.RunName(run_id=run_id)
        return self._retrier.call(lambda: [from_message(served, ServedInterval) for served in self._stub.ListServed(request)])

    def checks(self, run_id: str) -> list[CheckRecord]:
        """List the checks of the trigger policy that looked at data, in order. Raises: NotFoundError."""
        request = supervisor_pb2.RunName(run_id=run_id)
        return self._retrier.call(lambda: [from_message(check, CheckRecord) for check in self._stub.ListChecks(request)])

    def remove(self, run_id: str, *, even_promoted: bool = False) -> None:
        """Remove a terminal run from all services: journal, trigger sets, models, results, files of its trainings. Repeated, it goes on.

        Args: even_promoted: also if one of its models is promoted.
        Raises: NotFoundError. ConflictError: it is active, or a model of it is promoted or needed by another run.
        """
        request = supervisor_pb2.RemoveRunRequest(run_id=run_id, even_promoted=even_promoted)
        self._stub.RemoveRun(request, timeout=REMOVAL_DEADLINE_S)

    def remove_model(self, model_id: int, *, even_promoted: bool = False) -> None:
        """Remove one model version.

        Args: even_promoted: also if it is promoted.
        Raises: NotFoundError. ConflictError: it is promoted, or a run needs it to go on.
        """
        self._stub.RemoveModel(supervisor_pb2.RemoveModelRequest(model_id=model_id, even_promoted=even_promoted))

    def tell_of_deletion(self, deleted: DeletedSamples) -> list[str]:
        """Leave an event with each run whose models or scores may rest on the samples; return the ids of these runs."""
        return list(self._stub.TellOfDeletion(to_message(deleted, common_pb2.DeletedSamples)).run_ids)

    def triggers(self, run_id: str, first: int = 0, *, with_losses: bool = True) -> list[TriggerRecord]:
        """List the triggers of a run, in order.

        Args: first: id of the first of them. with_losses: also all losses in their `training_result`, which are long.
        """
        request = supervisor_pb2.ListTriggersRequest(run_id=run_id, with_losses=with_losses, first_trigger_id=first)
        return self._retrier.call(lambda: [from_message(trigger, TriggerRecord) for trigger in self._stub.ListTriggers(request)])
