"""Evaluations that users ask for, of runs in any state: a queue of their own, with statuses of their own."""

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
from modyn.storage.client import StorageClient
from modyn.supervisor.evaluation import check_handlers, load_handlers
from modyn.supervisor.evaluation_plan import EvaluationTask, requested_tasks, tasks_of_run, trained_models
from modyn.supervisor.evaluation_queue import EvaluationQueue, RunContext
from modyn.supervisor.events import EventHub
from modyn.supervisor.journal import Journal, RunJournal
from modyn.supervisor.journal_queries import RunSnapshot
from modyn.supervisor.records import RequestedEvaluation
from modyn.supervisor.run_clients import RunClients, report_wait, retry_policy

AT_ONCE = 4
"""Requests that are made at once; further ones wait."""

STOPPED_S = 5.0
"""The time that evaluations get to end once they are cancelled, before their run is removed."""

_LOG = get_logger("supervisor")


@dataclass(frozen=True, slots=True)
class EvaluationOrder:
    """What to evaluate of a run. Everything empty: its manual handlers, and what has failed."""

    handlers: Sequence[str] = ()
    """Names of handlers."""
    datasets: Sequence[str] = ()
    """Evaluate on these, in place of those that the handlers name."""
    metrics: Sequence[str] = ()
    """Measure these, with their defaults, in place of those of the datasets."""
    yaml: str = ""
    """A handler, or a section with `handlers` and `datasets`, in place of the run's own; empty: none."""


class RequestedEvaluations:
    """Makes the evaluations that users ask for. What becomes of them never changes the state of the run. Safe to call from any thread."""

    def __init__(self, journal: Journal, hub: EventHub, open_clients: Callable[[], RunClients], config: SupervisorConfig) -> None:
        """Args: open_clients: called for each request, by the thread that makes it, which closes them."""
        self._journal = journal
        self._hub = hub
        self._open_clients = open_clients
        self._config = config
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="requested-evaluations")
        self._tokens: dict[tuple[str, int], CancellationToken] = {}
        """Of the requests that this supervisor makes now. One is there whenever this supervisor holds the advisory lock to make it."""
        self._taking = Lock()
        """Held while an advisory lock is taken and its token noted: apart, this supervisor would look like another one."""
        self._closing = CancellationToken()
        self._until_closed = Retrier(RetryPolicy(float("inf"), longest_pause_s=2.0), self._closing)

    def recover(self) -> None:
        """Take up the requests that an earlier supervisor left behind."""
        for request in self._journal.open_evaluations():
            self._pool.submit(self._make, request)

    def submit(
        self, run_id: str, order: EvaluationOrder, check_section: Callable[[Mapping[str, Any]], list[Problem]]
    ) -> RequestedEvaluation:
        """Queue evaluations of the models that a run has made so far, whatever it is doing.

        Args: check_section: the evaluator's check of the pipeline with the section that the order describes.
        Raises: InvalidArgumentError: there is nothing to evaluate, or no such handler. ConfigError: lists the mistakes of the section.
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
        """End a request: what waits is not made, what runs is stopped, what is made stays. One that has ended is left as it is.

        Raises: NotFoundError. ConflictError: another supervisor makes it.
        """
        request = self._journal.evaluation(run_id, number)
        if request.finished_at is not None:
            return request
        with ExitStack() as stack:
            with self._taking:
                waits = stack.enter_context(self._journal.database.advisory_lock(_lock_name(request)))
                token = self._tokens.get((run_id, number))
            if not waits and token is None:
                raise ConflictError(f"{_about(request)} are made by another supervisor on the same database; ask that one")
            self._journal.end_evaluation(request, (), stopped=True)
        if token is not None:
            token.cancel(CancelledError(f"{_about(request)} were cancelled"))
        return self._journal.evaluation(run_id, number)

    def cancel_all(self, run_id: str) -> None:
        """End all requests of a run, and wait until nothing of them runs. Raises ConflictError: something still runs, or does elsewhere."""
        for request in self._journal.evaluations(run_id):
            if request.finished_at is None:
                self.cancel(run_id, request.number)
                with self._journal.database.advisory_lock(_lock_name(request), STOPPED_S) as ended:
                    if not ended:
                        raise ConflictError(f"{_about(request)} are cancelled, and still end; try again in a moment")

    def close(self, cause: ModynError) -> None:
        """Break off what runs; the next supervisor takes it up again."""
        # In this order: the token ends the calls and pauses of those that run, for which the pool waits.
        self._closing.cancel(cause)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _make(self, request: RequestedEvaluation) -> None:
        with bind(run_id=request.run_id, evaluation=request.number):
            try:
                self._until_closed.call(self._make_alone, request)
            except Exception:  # noqa: BLE001 - it would end a thread unseen; the next supervisor takes the request up again
                _LOG.exception("requested_evaluations_left", run_id=request.run_id)

    def _make_alone(self, request: RequestedEvaluation) -> None:
        """Make a request, unless it has ended. Raises UnavailableError while another supervisor makes it, which may go away."""
        key = (request.run_id, request.number)
        with ExitStack() as stack:
            stack.callback(self._tokens.pop, key, None)  # last, when the advisory lock is given back
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
            return  # its end is written
        except Exception as error:  # noqa: BLE001 - the user sees it as the end of the request
            if self._closing.cause is not None:
                return
            _LOG.exception("requested_evaluations_failed")
            known = error if isinstance(error, ModynError) else ModynError(f"{type(error).__name__}: {error}")
            failures, reason = [known.message], known.reason
        reason = reason or (ModynError.reason if failures else "")
        self._until_closed.call(self._journal.end_evaluation, request, failures, reason)

    def _evaluate(self, request: RequestedEvaluation, token: CancellationToken) -> list[str]:
        """Make the evaluations; return why some failed. Args: token: of this request alone, since its evaluator may stay away."""
        plain_journal = RunJournal(self._journal, request.run_id, attempt=None)
        retrier = Retrier(retry_policy(self._config), token, partial(report_wait, plain_journal))
        with ExitStack() as stack:
            stack.callback(self._closing.on_cancel(token.cancel))
            clients = stack.enter_context(closing(self._open_clients()))
            # Behind the token: this ends the calls that wait, and the token says that they are not to be repeated.
            stack.callback(self._closing.on_cancel(lambda _: clients.close()))
            snapshot = retrier.call(self._journal.snapshot, request.run_id)
            section = request.section or snapshot.run.pipeline.get("evaluation")
            cache = snapshot.run.pipeline.get("cache") or {}
            identities = _identities(section, snapshot, retrier.wrap(clients.storage))
            journal = retrier.wrap(plain_journal)
            context = RunContext(request.run_id, clients.evaluator, journal, self._hub, retrier, cache, identities)
            evaluations = EvaluationQueue(context, section, snapshot.evaluated)
            stack.callback(evaluations.close)
            evaluations.use_final_workers()
            evaluations.add(_tasks(request, snapshot))
            return evaluations.drain()


def _identities(section: Mapping[str, Any] | None, snapshot: RunSnapshot, storage: StorageClient) -> dict[str, str]:
    """By name the identity of each dataset that is there: those of the run as it was submitted, the others as they are registered now."""
    found = dict(snapshot.evaluation_identities)
    for entry in (section or {}).get("datasets") or []:
        if (name := entry["dataset_id"]) not in found:
            with suppress(NotFoundError):  # each evaluation on it fails with this reason
                found[name] = storage.dataset(name).identity
    return found


def _lock_name(request: RequestedEvaluation) -> str:
    return f"evaluation/{request.run_id}/{request.number}"


def _about(request: RequestedEvaluation) -> str:
    return f"requested evaluations {request.number} of run {request.run_id}"


def corrected_section(pipeline: Mapping[str, Any], order: EvaluationOrder) -> dict[str, Any] | None:
    """Return the `evaluation` section that an order describes; None: the run's own as it is.

    Raises: ConfigError: the text of the order is no YAML, an entry of the section is no mapping, or a dataset has columns of its own.

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
        is_section = "handlers" in given or any(isinstance(entry, Mapping) for entry in given.get("datasets") or [])
        given = given if is_section else {"handlers": [given]}
        refuse(written_columns({"evaluation": given}))
        section |= given
    for part in ("handlers", "datasets"):
        if not all(isinstance(entry, Mapping) for entry in section.get(part) or []):
            raise ConfigError(f"evaluation.{part}: each entry must be a mapping, as `modyn explain evaluation.{part}` shows")
    entries = {str(entry.get("dataset_id")): dict(entry) for entry in section.get("datasets") or []}
    if order.datasets:
        # One that the section does not have is read as the others are, or as the run's own data.
        model = next(iter(entries.values()), {**(pipeline.get("data") or {}), "metrics": []})
        entries = {name: entries.get(name) or {**model, "dataset_id": name} for name in order.datasets}
        section["handlers"] = [{**handler, "datasets": list(order.datasets)} for handler in section.get("handlers") or []]
    if order.metrics:
        entries = {name: {**entry, "metrics": [{"name": m} for m in order.metrics]} for name, entry in entries.items()}
    section["datasets"] = list(entries.values())
    corrected: dict[str, Any] = with_columns({**pipeline, "evaluation": section})["evaluation"]
    return corrected


def _chosen(snapshot: RunSnapshot, order: EvaluationOrder, section: Mapping[str, Any] | None) -> list[str]:
    """The names of the handlers that an order asks for; none: all manual ones and what has failed. Raises InvalidArgumentError."""
    run_id = snapshot.run.run_id
    known = load_handlers(section if section is not None else snapshot.run.pipeline.get("evaluation"))
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


def _tasks(request: RequestedEvaluation, snapshot: RunSnapshot) -> Iterable[EvaluationTask]:
    """The evaluations of a request; with those of the run that failed, under their own names, unless handlers are named."""
    models = trained_models(snapshot.triggers)
    if not models:
        return []
    last = snapshot.cursor.max_timestamp
    stream_end = None if last is None else last + 1
    own = snapshot.run.pipeline.get("evaluation")
    section = own if request.section is None else request.section
    tasks = requested_tasks(section, request.handlers, models, stream_end, f"request {request.number}")
    if request.handlers or not snapshot.failed:
        return tasks
    failed = (task for task in tasks_of_run(own, models, stream_end) if (task.trigger_id, task.step_name) in snapshot.failed)
    return chain(tasks, failed)
