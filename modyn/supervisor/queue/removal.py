"""Remove runs and single models from all services. The journal is changed last, so that a supervisor repeats an interrupted removal."""

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
from modyn.supervisor.evaluation.plan import tasks_of_run, trained_models
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.journal.records import Run
from modyn.supervisor.journal.states import TERMINAL, RunState
from modyn.supervisor.journal.tables import CHECKS, CURSORS, EVALUATIONS, EVENTS, RUNS, SERVED, STEPS, TRIGGERS
from modyn.supervisor.services.run_clients import RunClients

OWNER_ENDS_S = 5.0
"""Seconds to wait for the lock of a run. The lock is held for a moment after the end of the run is written."""

_LOG = get_logger("supervisor")


class RunRemoval:
    """Removes runs and models from all services. Each method may be called from any thread, and each step may be repeated."""

    def __init__(self, journal: Journal, clients: RunClients) -> None:
        self._journal = journal
        self._clients = clients
        # The newest plan: the run, the run's last event when the plan was made, and the open evaluations. The tuple is replaced as a whole, so that
        # any thread may read it.
        self._open_evaluations: tuple[tuple[str, int], Mapping[int, str]] = (("", 0), {})

    def remove_run(
        self, run_id: str, *, even_promoted: bool = False, end_evaluations: Callable[[str], object] = lambda _: None
    ) -> None:
        """Remove all data of a terminal run: files of trainings, evaluations and kept outputs, samples and trigger sets, models, observations that
        wait for labels in the run's servers on this machine, and the journal.

        Args: even_promoted: remove the run even if one of the run's models is promoted. end_evaluations: called first with the run's id; without this
        function, the run is not removed while evaluations are under way.
        Raises: NotFoundError. ConflictError: the run is active, a server takes labels for the run, or a model is promoted or needed by another run.
        """
        wait_s = OWNER_ENDS_S if self._journal.run(run_id).is_terminal else 0.0
        with self._journal.database.advisory_lock(f"run/{run_id}", wait_s) as held:
            if not held:
                raise ConflictError(
                    f"run {run_id} is executed; stop it (`modyn stop {run_id}`) or wait for its end, then remove it"
                )
            # The locks of the servers' folders are held until the end, so that no server starts during the removal.
            with ExitStack() as servers:
                waiting = self._lock_waiting(run_id, servers)
                self._remove_locked(RunId(run_id), even_promoted, end_evaluations, waiting)

    def _lock_waiting(self, run_id: str, stack: ExitStack) -> Path | None:
        """Return the folder with the observations of the run's servers that wait for labels, if such a folder exists.

        Args: stack: holds the locks of the folder, so that no server starts. Raises: ConflictError: a server has a lock.
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
        # A removal that has begun is always continued, because its checks have passed.
        if not self._journal.is_removing(run_id):
            self._refuse_needed(models, even_promoted, besides=run_id)
            if self._journal.run(run_id).is_terminal:
                end_evaluations(run_id)
        self._mark(run_id)
        # The services that may still write about the run come first, then the services that store data of other services.
        self._clients.trainer_server.delete_run(run_id)
        self._clients.evaluator.delete_run(run_id, [model.model_id for model in models])
        self._clients.selector.delete_run(run_id)
        # The newest version first, because earlier versions do not need it.
        for model in reversed(self._clients.model_storage.list(run_id)):
            self._delete(model.version.model_id, even_promoted=True)
        if waiting is not None:
            try:
                shutil.rmtree(waiting)
            except OSError as error:
                raise UnavailableError(
                    f"cannot remove {waiting}: {error.strerror or error}; make it writable for the supervisor, or remove it"
                ) from error
        # The rows are deleted last, in one transaction. If the removal is interrupted earlier, the run's row remains, and the removal is repeated.
        with self._journal.database.session() as session:
            for table in (EVENTS, EVALUATIONS, STEPS, CHECKS, TRIGGERS, CURSORS, SERVED, RUNS):
                session.execute(delete(table).where(table.c.run_id == run_id))
        _LOG.info("removed", run_id=run_id, num_models=len(models))

    def _mark(self, run_id: RunId) -> None:
        """Mark a terminal run as being removed, so that the run's state cannot change. Raises: ConflictError: the run is active."""
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
            write.changes |= {"removing": True, "message": f"is being removed; `modyn rm {run_id}` continues that"}

    def remove_model(self, model_id: int, *, even_promoted: bool = False) -> None:
        """Remove one model version; the scores of the model stay with the run.

        Args: even_promoted: remove the model even if the model is promoted.
        Raises: NotFoundError. ConflictError: the model is promoted, or a run needs the model to continue or for evaluations.
        """
        model = self._clients.model_storage.describe(model_id).version
        self._refuse_needed([model], even_promoted)
        with suppress(NotFoundError):  # The model is imported, or the run of the model is removed.
            run = self._journal.run(model.run_id)
            self._refuse_under_way(run.run_id)
            if run.state is not RunState.FINISHED and model_id in self._journal.newest_models(run.run_id):
                raise ConflictError(
                    f"model {model_id} is needed by run {run.run_id}, which is {run.state}; finish it (`modyn finish {run.run_id}`) or remove it"
                )
            if run.state is not RunState.FINISHED:
                self._refuse_to_evaluate(run, model_id)
        self._delete(model_id, even_promoted)  # Model storage checks again, because the model may have been promoted.
        _LOG.info("model_removed", model_id=model_id, run_id=model.run_id)

    def _refuse_under_way(self, run_id: RunId) -> None:
        if any(request.run_id == run_id for request in self._journal.open_evaluations()):
            raise ConflictError(
                f"requested evaluations of run {run_id} are under way; wait for their end, or cancel them "
                f"(`modyn evaluate {run_id} --cancel NUMBER`), then remove it"
            )

    def _refuse_to_evaluate(self, run: Run, model_id: int) -> None:
        """Raise ConflictError if the run may continue and has not made all evaluations of the model."""
        # Each change of the open evaluations writes an event. Without a new event, several removals of models share one plan.
        last_event = (run.run_id, self._journal.last_seq(run.run_id, before=math.inf))
        planned_at, still_open = self._open_evaluations
        if planned_at != last_event:
            still_open = self._plan_evaluations(run)
            self._open_evaluations = (last_event, still_open)
        if (by := still_open.get(model_id)) is not None:
            raise ConflictError(
                f"model {model_id} is still to be evaluated by run {run.run_id} ({by}), which is {run.state}; wait for that, "
                f"finish the run (`modyn finish {run.run_id}`) or remove it"
            )

    def _plan_evaluations(self, run: Run) -> dict[int, str]:
        """Return the models with missing evaluations, each with the handler and dataset of the first missing evaluation."""
        triggers = list(self._journal.each_trigger(run.run_id, with_losses=False))
        stream_end = triggers[-1].fired_at_timestamp + 1 if triggers else None
        evaluated = self._journal.evaluated(run.run_id)
        found: dict[int, str] = {}
        for task in tasks_of_run(run.evaluation, trained_models(triggers), stream_end):
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
        with suppress(NotFoundError):  # An earlier attempt has deleted the model.
            self._clients.model_storage.delete(model_id, even_promoted=even_promoted)
