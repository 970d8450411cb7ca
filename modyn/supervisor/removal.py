"""Remove runs and single models from all services. The journal goes last: a removal that was cut off is repeated, and goes on."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from sqlalchemy import delete, func, select

from modyn.errors import ConflictError, NotFoundError, UnavailableError
from modyn.records import ModelVersion, RunId
from modyn.rpc.logs import get_logger
from modyn.state_folders import hold_lock
from modyn.supervisor.evaluation_plan import tasks_of_run, trained_models
from modyn.supervisor.journal import Journal
from modyn.supervisor.records import Run
from modyn.supervisor.run_clients import RunClients
from modyn.supervisor.states import TERMINAL, RunState
from modyn.supervisor.tables import CHECKS, CURSORS, EVALUATIONS, EVENTS, RUNS, SERVED, STEPS, TRIGGERS

OWNER_ENDS_S = 5.0
"""A run whose end is written holds its lock for a moment longer."""

_LOG = get_logger("supervisor")


class RunRemoval:
    """Removes what a run has left in all services. Safe to use from any thread; each step may be repeated."""

    def __init__(self, journal: Journal, clients: RunClients) -> None:
        self._journal = journal
        self._clients = clients
        # As planned last: of which run, after which of its events, and what is open. Replaced as one, so that any thread may read it.
        self._open_evaluations: tuple[tuple[str, int], Mapping[int, str]] = (("", 0), {})

    def remove_run(
        self, run_id: str, *, even_promoted: bool = False, end_evaluations: Callable[[str], object] = lambda _: None
    ) -> None:
        """Remove a terminal run: files of its trainings, evaluations and kept outputs, samples and trigger sets, models, what waits for labels in
        servers of it on this machine, journal.

        Args: even_promoted: also if one of its models is promoted. end_evaluations: called before with the run's id; by default, evaluations that
            are under way keep the run.
        Raises: NotFoundError. ConflictError: it is active, a server takes labels for it, or a model of it is promoted or needed by another run.
        """
        wait_s = OWNER_ENDS_S if self._journal.run(run_id).is_terminal else 0.0
        with self._journal.database.advisory_lock(f"run/{run_id}", wait_s) as held:
            if not held:
                raise ConflictError(
                    f"run {run_id} is executed; stop it (`modyn stop {run_id}`) or wait for its end, then remove it"
                )
            with ExitStack() as servers:
                waiting = self._lock_waiting(run_id, servers)
                self._remove_locked(RunId(run_id), even_promoted, end_evaluations, waiting)

    def _lock_waiting(self, run_id: str, stack: ExitStack) -> Path | None:
        """Return the folder of what waits for its label in servers of the run, if there is one. Args: stack: holds their locks, so that none begins.

        Raises: ConflictError: a server has it.
        """
        folder = None if self._clients.serving_dir is None else self._clients.serving_dir / run_id
        if folder is None or not folder.is_dir():
            return None
        for lock in sorted(folder.glob("*/lock")):
            stack.enter_context(
                hold_lock(lock, f"a server takes labels for run {run_id}; stop `modyn serve {run_id}`, then remove it")
            )
        return folder

    def _remove_locked(
        self, run_id: RunId, even_promoted: bool, end_evaluations: Callable[[str], object], waiting: Path | None
    ) -> None:
        models = [info.version for info in self._clients.model_storage.list(run_id)]
        if not self._journal.is_removing(run_id):
            self._refuse_needed(models, even_promoted, besides=run_id)
            if self._journal.run(run_id).is_terminal:
                end_evaluations(run_id)
        self._mark(run_id)
        # First what may still make something, then what was made.
        self._clients.trainer_server.delete_run(run_id)
        self._clients.evaluator.delete_run(run_id, [model.model_id for model in models])
        self._clients.selector.delete_run(run_id)
        for model in self._clients.model_storage.list(run_id):
            self._delete(model.version.model_id, even_promoted=True)
        if waiting is not None:
            try:
                shutil.rmtree(waiting)
            except OSError as error:
                raise UnavailableError(
                    f"cannot remove {waiting}: {error.strerror or error}; make it writable for the supervisor, or remove it"
                ) from error
        with self._journal.database.session() as session:
            for table in (EVENTS, EVALUATIONS, STEPS, CHECKS, TRIGGERS, CURSORS, SERVED, RUNS):
                session.execute(delete(table).where(table.c.run_id == run_id))
        _LOG.info("removed", run_id=run_id, num_models=len(models))

    def _mark(self, run_id: RunId) -> None:
        """Mark a terminal run as being removed: nothing moves it on any more. Raises ConflictError for an active one."""
        if self._journal.is_removing(run_id):
            return
        with self._journal.write(run_id) as write:
            if write.state not in TERMINAL:
                raise ConflictError(
                    f"run {run_id} is {write.state}; stop it (`modyn stop {run_id}`) or wait for its end, then remove it"
                )
            under_way = select(func.count()).where(EVALUATIONS.c.run_id == run_id, EVALUATIONS.c.finished_at.is_(None))
            if write.session.scalar(under_way):
                raise ConflictError(f"evaluations of run {run_id} are under way; wait for their end, then remove it")
            write.changes |= {"removing": True, "message": f"is being removed; `modyn rm {run_id}` goes on with that"}

    def remove_model(self, model_id: int, *, even_promoted: bool = False) -> None:
        """Remove one model version; the scores that it was given stay with its run.

        Args: even_promoted: also if it is promoted.
        Raises: NotFoundError. ConflictError: it is promoted, or a run needs it to go on or for evaluations.
        """
        model = self._clients.model_storage.describe(model_id).version
        self._refuse_needed([model], even_promoted)
        with suppress(NotFoundError):  # imported, or its run is removed
            run = self._journal.run(model.run_id)
            self._refuse_under_way(run.run_id)
            if run.state is not RunState.FINISHED and model_id in self._journal.newest_models(run.run_id):
                raise ConflictError(
                    f"model {model_id} is needed by run {run.run_id}, which is {run.state}; finish it (`modyn finish {run.run_id}`) or remove it"
                )
            if run.state is not RunState.FINISHED:
                self._refuse_to_evaluate(run, model_id)
        self._delete(model_id, even_promoted)  # storage checks again: it may be promoted meanwhile
        _LOG.info("model_removed", model_id=model_id, run_id=model.run_id)

    def _refuse_under_way(self, run_id: RunId) -> None:
        if any(request.run_id == run_id for request in self._journal.open_evaluations()):
            raise ConflictError(
                f"requested evaluations of run {run_id} are under way; wait for their end, or cancel them "
                f"(`modyn evaluate {run_id} --cancel NUMBER`), then remove it"
            )

    def _refuse_to_evaluate(self, run: Run, model_id: int) -> None:
        """Raise ConflictError if the run, which may go on, has not made all evaluations of the model."""
        # Each change of what is open leaves an event: models that are removed one after another share the plan.
        stands_at = (run.run_id, self._journal.last_seq(run.run_id, before=math.inf))
        planned_at, still_open = self._open_evaluations
        if planned_at != stands_at:
            still_open = self._plan_evaluations(run)
            self._open_evaluations = (stands_at, still_open)
        if (by := still_open.get(model_id)) is not None:
            raise ConflictError(
                f"model {model_id} is still to be evaluated by run {run.run_id} ({by}), which is {run.state}; wait for that, "
                f"finish the run (`modyn finish {run.run_id}`) or remove it"
            )

    def _plan_evaluations(self, run: Run) -> dict[int, str]:
        """Return the models that the run has not made all evaluations of, each with handler and dataset of the first of them."""
        triggers = list(self._journal.each_trigger(run.run_id, with_losses=False))
        stream_end = triggers[-1].fired_at_timestamp + 1 if triggers else None
        evaluated = self._journal.evaluated(run.run_id)
        found: dict[int, str] = {}
        for task in tasks_of_run(run.pipeline.get("evaluation"), trained_models(triggers), stream_end):
            if (task.trigger_id, task.step_name) not in evaluated:
                found.setdefault(task.model_id, f"handler '{task.handler}' on dataset '{task.dataset}'")
        return found

    def _refuse_needed(self, models: Sequence[ModelVersion], even_promoted: bool, besides: str = "") -> None:
        if not even_promoted and (promoted := [str(model.model_id) for model in models if model.promoted]):
            raise ConflictError(
                f"model {', '.join(promoted)} is promoted, so it may be in use; `--even-promoted` removes it all the same"
            )
        needed_by = [
            run_id for run_id in self._journal.active_runs_from([model.model_id for model in models]) if run_id != besides
        ]
        if needed_by:
            raise ConflictError(
                f"runs begin with one of these models (training.initial_model_id): {', '.join(needed_by)}; remove them first"
            )

    def _delete(self, model_id: int, even_promoted: bool) -> None:
        with suppress(NotFoundError):  # by an attempt before this one
            self._clients.model_storage.delete(model_id, even_promoted=even_promoted)
