"""Evaluations that users request for runs in any state. Requests have a separate queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any

from modyn.config.base import Problem, refuse
from modyn.config.evaluation import Evaluation
from modyn.config.preprocessing import with_columns, written_columns
from modyn.config.system import SupervisorConfig
from modyn.config.yaml_source import load_yaml
from modyn.errors import (
    CancelledError,
    ConfigError,
    ConflictError,
    InvalidArgumentError,
    ModynError,
    NotFoundError,
    UnavailableError,
)
from modyn.registry import nearest
from modyn.rpc.logs import bind, get_logger
from modyn.rpc.retry import CancellationToken, Retrier, RetryPolicy
from modyn.storage.client import DatasetInfo
from modyn.supervisor.evaluation import check_handlers
from modyn.supervisor.evaluation.plan import requested_tasks, tasks_of_run, trained_models
from modyn.supervisor.evaluation.queue import EvaluationQueue, RunContext
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.journal import Journal, RunJournal
from modyn.supervisor.journal.queries import RunSnapshot
from modyn.supervisor.journal.records import EvaluationTask, RequestedEvaluation
from modyn.supervisor.services.run_clients import RunClients, report_wait, retry_policy

AT_ONCE = 4
"""Largest number of requests processed at the same time; further requests wait."""

STOPPED_S = 5.0
"""Seconds in which cancelled evaluations must end before the run is removed."""

_LOG = get_logger("supervisor")


@dataclass(frozen=True, slots=True)
class EvaluationOrder:
    """The evaluations of a run that a user requests. An empty order stands for the run's manual handlers and the evaluations that failed."""

    handlers: Sequence[str] = ()
    """Names of the handlers to evaluate."""
    datasets: Sequence[str] = ()
    """Datasets that replace the datasets of the handlers."""
    metrics: Sequence[str] = ()
    """Metrics, with default options, that replace the metrics of the datasets."""
    yaml: str = ""
    """YAML text of a handler, or of a section with `handlers` and `datasets`, that replaces the run's own section; empty to replace nothing."""


class RequestedEvaluations:
    """Makes requested evaluations, which never change the state of the run. Each method may be called from any thread."""

    def __init__(self, journal: Journal, hub: EventHub, open_clients: Callable[[], RunClients], config: SupervisorConfig) -> None:
        """Args: open_clients: opens clients of the services. The thread of each request calls this function and closes the clients."""
        self._journal = journal
        self._hub = hub
        self._open_clients = open_clients
        self._config = config
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="requested-evaluations")
        self._tokens: dict[tuple[str, int], CancellationToken] = {}
        """Tokens of the requests that this supervisor executes now. This supervisor holds the advisory lock of each of these requests."""
        self._taking = Lock()
        """Lock that a thread holds while it acquires an advisory lock and stores the token of the request: `cancel` finds both or neither."""
        self._closing = CancellationToken()
        # Retries failed calls of PostgreSQL, and requests that another supervisor executes now, until this supervisor closes.
        self._until_closed = Retrier(RetryPolicy(float("inf"), longest_pause_s=2.0), self._closing)

    def recover(self) -> None:
        """Queue the requests that an earlier supervisor has left unfinished."""
        for request in self._journal.open_evaluations():
            self._pool.submit(self._make, request)

    def submit(
        self, run_id: str, order: EvaluationOrder, check_section: Callable[[Mapping[str, Any]], list[Problem]]
    ) -> RequestedEvaluation:
        """Queue evaluations of the models that a run has made so far. The run may be in any state.

        Args: check_section: the evaluator's check of the pipeline with the section that the order describes.
        Raises: InvalidArgumentError: there is no evaluation to make, or the run has no such handler. ConfigError: lists the mistakes of the section.
        """
        snapshot = self._journal.snapshot(run_id)
        pipeline = snapshot.run.pipeline
        section = corrected_section(pipeline, order)
        if section is not None:
            refuse([*check_handlers(section), *check_section({**pipeline, "evaluation": section})])
        handlers = _chosen(snapshot, order, section)
        request = self._journal.request_evaluation(run_id, handlers, section)
        self._pool.submit(self._make, request)
        return request

    def cancel(self, run_id: str, number: int) -> RequestedEvaluation:
        """Cancel a request: drop waiting evaluations, stop running evaluations, and keep results. A request that has ended is not changed.

        Raises: NotFoundError. ConflictError: another supervisor executes the request.
        """
        request = self._journal.evaluation(run_id, number)
        if request.finished_at is not None:
            return request
        with ExitStack() as stack:
            with self._taking:
                # The lock is free if no supervisor executes the request. The lock is held until the end is recorded, so that no other thread starts
                # the request.
                waits = stack.enter_context(self._journal.database.advisory_lock(_lock_name(request)))
                token = self._tokens.get((run_id, number))
            if not waits and token is None:
                raise ConflictError(f"{_about(request)} are made by another supervisor on the same database; ask that one")
            self._journal.end_evaluation(request, (), stopped=True)
        if token is not None:
            token.cancel(CancelledError(f"{_about(request)} were cancelled"))
        return self._journal.evaluation(run_id, number)

    def cancel_all(self, run_id: str) -> None:
        """Cancel all requests of a run and wait for their end. Raises: ConflictError: a request still runs, here or at another supervisor."""
        for request in self._journal.evaluations(run_id):
            if request.finished_at is None:
                self.cancel(run_id, request.number)
                # The thread or supervisor that executes the request holds this lock until its evaluations have ended.
                with self._journal.database.advisory_lock(_lock_name(request), STOPPED_S) as ended:
                    if not ended:
                        raise ConflictError(f"{_about(request)} are cancelled, and still end; try again in a moment")

    def close(self, cause: ModynError) -> None:
        """Interrupt running requests; the next supervisor executes these requests again."""
        # The token is cancelled first, because it ends running requests, and the shutdown of the pool waits for running requests.
        self._closing.cancel(cause)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _make(self, request: RequestedEvaluation) -> None:
        with bind(run_id=request.run_id, evaluation=request.number):
            try:
                self._until_closed.call(self._make_alone, request)
            except Exception:  # noqa: BLE001 - an error would end the thread without a trace; the next supervisor repeats the request
                _LOG.exception("requested_evaluations_left", run_id=request.run_id)

    def _make_alone(self, request: RequestedEvaluation) -> None:
        """Execute a request, unless the request has ended. Raises: UnavailableError: another supervisor executes the request. The caller retries,
        because the other supervisor may end before the request is finished.
        """
        key = (request.run_id, request.number)
        with ExitStack() as stack:
            stack.callback(self._tokens.pop, key, None)  # The entry is removed last, after the advisory lock is released.
            with self._taking:
                held = stack.enter_context(self._journal.database.advisory_lock(_lock_name(request)))
                if held:
                    self._tokens[key] = CancellationToken()
            if self._journal.evaluation(request.run_id, request.number).finished_at is not None:
                return
            if not held:
                raise UnavailableError(
                    f"{_about(request)} are made by another supervisor on the same database; wait for it, or stop it"
                )
            self._make_locked(request, self._tokens[key])

    def _make_locked(self, request: RequestedEvaluation, token: CancellationToken) -> None:
        try:
            failures, reason = self._evaluate(request, token), ""
        except CancelledError:
            return  # `cancel` has already written the end of the request.
        except Exception as error:  # noqa: BLE001 - the user sees it as the end of the request
            if self._closing.cause is not None:
                return
            _LOG.exception("requested_evaluations_failed")
            known = error if isinstance(error, ModynError) else ModynError(f"{type(error).__name__}: {error}")
            failures, reason = [known.message], known.reason
        reason = reason or (ModynError.reason if failures else "")
        self._until_closed.call(self._journal.end_evaluation, request, failures, reason)

    def _evaluate(self, request: RequestedEvaluation, token: CancellationToken) -> list[str]:
        """Make the evaluations; return the errors of the failed evaluations. Args: token: cancellation token of this request only."""
        plain_journal = RunJournal(self._journal, request.run_id, attempt=None)
        retrier = Retrier(retry_policy(self._config), token, partial(report_wait, plain_journal))
        with ExitStack() as stack:
            stack.callback(self._closing.on_cancel(token.cancel))  # `on_cancel` returns a function that removes the token again.
            clients = stack.enter_context(closing(self._open_clients()))
            # The clients are closed after the token is cancelled. Closing the clients ends waiting calls, and the token prevents retries.
            stack.callback(self._closing.on_cancel(lambda _: clients.close()))
            snapshot = retrier.call(self._journal.snapshot, request.run_id)
            evaluation = request.evaluation or snapshot.run.evaluation
            identities = _identities(evaluation, snapshot, lambda name: retrier.call(clients.storage.dataset, name))
            journal = plain_journal.retried(retrier)
            context = RunContext(request.run_id, clients.evaluator, journal, self._hub, retrier, snapshot.run.cache, identities)
            evaluations = EvaluationQueue(context, evaluation, snapshot.evaluated)
            stack.callback(evaluations.close)
            evaluations.use_final_workers()
            evaluations.add(_tasks(request, evaluation, snapshot))
            return evaluations.drain()


def _identities(evaluation: Evaluation, snapshot: RunSnapshot, find: Callable[[str], DatasetInfo]) -> dict[str, str]:
    """Return the identity of each dataset by name. Datasets of the run have the identity at its submission; other datasets have the present
    identity.
    """
    found = dict(snapshot.evaluation_identities)
    for name in evaluation.datasets:
        if name not in found:
            with suppress(NotFoundError):  # Each evaluation on the missing dataset fails.
                found[name] = find(name).identity
    return found


def _lock_name(request: RequestedEvaluation) -> str:
    return f"evaluation/{request.run_id}/{request.number}"


def _about(request: RequestedEvaluation) -> str:
    return f"requested evaluations {request.number} of run {request.run_id}"


def corrected_section(pipeline: Mapping[str, Any], order: EvaluationOrder) -> dict[str, Any] | None:
    """Return the `evaluation` section that an order describes; None if the order uses the run's own section.

    Raises: ConfigError: the text of the order is not YAML, an entry of the section is not a mapping, or a dataset has its own columns.

    >>> own = {"datasets": [{"dataset_id": "test", "metrics": [{"name": "Accuracy"}]}], "handlers": [{"name": "h", "datasets": ["test"]}]}
    >>> corrected_section({"evaluation": own}, EvaluationOrder(metrics=["RocAuc"]))["datasets"]
    [{'dataset_id': 'test', 'metrics': [{'name': 'RocAuc'}]}]
    """
    if not (order.yaml or order.datasets or order.metrics):
        return None
    section = dict(pipeline.get("evaluation") or {})
    if order.yaml:
        given = dict(load_yaml(order.yaml, "the handler's file").data)
        given = dict(given.get("evaluation") or given)
        # The text may be a pipeline with the section, the section alone, or one handler.
        is_section = "handlers" in given or any(isinstance(entry, Mapping) for entry in given.get("datasets") or [])
        given = given if is_section else {"handlers": [given]}
        refuse(written_columns({"evaluation": given}))
        section |= given
    for part in ("handlers", "datasets"):
        if not all(isinstance(entry, Mapping) for entry in section.get(part) or []):
            raise ConfigError(f"evaluation.{part}: each entry must be a mapping, as `modyn explain evaluation.{part}` shows")
    entries = {str(entry.get("dataset_id")): dict(entry) for entry in section.get("datasets") or []}
    if order.datasets:
        # A dataset without an entry in the section gets the options of the first entry, or of the run's own data.
        model = next(iter(entries.values()), {**(pipeline.get("data") or {}), "metrics": []})
        entries = {name: entries.get(name) or {**model, "dataset_id": name} for name in order.datasets}
        section["handlers"] = [{**handler, "datasets": list(order.datasets)} for handler in section.get("handlers") or []]
    if order.metrics:
        entries = {name: {**entry, "metrics": [{"name": m} for m in order.metrics]} for name, entry in entries.items()}
    section["datasets"] = list(entries.values())
    corrected: dict[str, Any] = with_columns({**pipeline, "evaluation": section})["evaluation"]
    return corrected


def _chosen(snapshot: RunSnapshot, order: EvaluationOrder, section: Mapping[str, Any] | None) -> list[str]:
    """Return the names of the requested handlers; an empty list means all manual handlers and failed evaluations. Raises: InvalidArgumentError."""
    run_id = snapshot.run.run_id
    known = (snapshot.run.evaluation if section is None else Evaluation.of(section)).handlers
    names = [handler.name for handler in known]
    for name in order.handlers:
        if name not in names:
            raise InvalidArgumentError(
                f"run {run_id} has no evaluation handler '{name}'{nearest(name, names) or ';'} it has: {', '.join(names) or 'none'}"
            )
    if order.handlers:
        return list(order.handlers)
    if section is not None:
        return names
    if not snapshot.failed and not any(handler.execution_time == "manual" for handler in known):
        raise InvalidArgumentError(
            f"run {run_id} has no handler with `execution_time: manual` and no evaluation that failed; "
            f"name those to evaluate: {', '.join(names) or 'none'}"
        )
    return []


def _tasks(request: RequestedEvaluation, evaluation: Evaluation, snapshot: RunSnapshot) -> Iterable[EvaluationTask]:
    """Return the evaluations of a request. If the request names no handlers, the run's failed evaluations are included, and keep their step names."""
    models = trained_models(snapshot.triggers)
    if not models:
        return []
    last = snapshot.cursor.max_timestamp
    stream_end = None if last is None else last + 1
    tasks = requested_tasks(evaluation, request.handlers, models, stream_end, f"request {request.number}")
    if request.handlers or not snapshot.failed:
        return tasks
    failed = (
        task
        for task in tasks_of_run(snapshot.run.evaluation, models, stream_end)
        if (task.trigger_id, task.step_name) in snapshot.failed
    )
    return chain(tasks, failed)
