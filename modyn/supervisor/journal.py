"""The durable record of all runs, in PostgreSQL: states, cursors, triggers, steps and events. Reads: journal_queries.py.

Every write is one transaction that holds the lock of its run's row, so that an event and the change that it reports are both there or
neither. Writes may be repeated when it is not known whether they arrived: the second one changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from modyn.db.engine import Database
from modyn.errors import ConflictError, NotFoundError
from modyn.json_codec import sanitize
from modyn.records import DeletedSamples, JobState, RunId
from modyn.supervisor.cursor import Cursor
from modyn.supervisor.error_rows import error_detail, rollback_message
from modyn.supervisor.evaluation_plan import EvaluationTask
from modyn.supervisor.input_checks import input_detail, input_message
from modyn.supervisor.journal_queries import CURSOR_VERSION, JournalQueries, from_row, run_row, unknown_run
from modyn.supervisor.journal_write import IDLE_STATES, Write
from modyn.supervisor.records import EventKind, NewRun, RequestedEvaluation, Run, TriggerRecord, slug, to_row
from modyn.supervisor.states import RunState, TriggerState
from modyn.supervisor.tables import CHECKS, CURSORS, EVALUATIONS, EVENTS, PIPELINES, RUNS, TRIGGERS
from modyn.supervisor.training_warnings import learning_detail, warning_messages
from modyn.supervisor.triggers.base import CheckRecord


class Journal(JournalQueries):
    """All runs of an installation. `committed` is called with the run's id after every write that left an event, by the thread that wrote."""

    def __init__(self, database: Database, committed: Callable[[str], None] = lambda _: None, events_kept: int = 10_000) -> None:
        super().__init__(database)
        self._committed = committed
        self.events_kept = events_kept
        """The newest so many of each run, once `Write.prune` was called."""

    def create(self, new: NewRun) -> Run:
        """Write down a run, unless its submission is there. Its id is the pipeline's name and a number that no other run of it ever had."""
        with self.database.session() as session:
            # Its row is locked until the run is there.
            count = upsert(PIPELINES).values(slug=slug(new.pipeline_name), num_runs=1)
            counted = count.on_conflict_do_update(index_elements=["slug"], set_={"num_runs": PIPELINES.c.num_runs + 1})
            of_pipeline = session.execute(counted.returning(PIPELINES.c.num_runs)).scalar_one()
            earlier = select(RUNS.c.run_id).where(RUNS.c.submission_id == new.submission_id)
            if new.submission_id is not None and (known := session.scalar(earlier)) is not None:
                return from_row(run_row(session, known), Run)
            run_id = RunId(f"{slug(new.pipeline_name)}-{of_pipeline:04d}")
            number = session.scalar(select(func.nextval("supervisor.run_numbers")))
            values = to_row(new, RUNS) | to_row(new.options, RUNS)
            values |= {name: sanitize(values[name]) for name in ("pipeline_name", "file_name")}
            values |= {"run_id": run_id, "number": number, "state": str(RunState.SUBMITTED), "submitted_at": time.time()}
            write = Write(session, run_id, RunState.SUBMITTED, last_seq=0)
            write.event(EventKind.RUN_STATE, {"state": str(RunState.SUBMITTED)})
            session.execute(insert(RUNS).values(values | {"last_seq": len(write.events)}))
            session.execute(insert(EVENTS), write.events)
            # Read here: after the commit nothing may fail any more, or the user takes a run that is there for refused.
            run = from_row(run_row(session, run_id), Run)
        self._committed(run_id)
        return run

    def accept(self, run_id: str) -> None:
        """Record that the submission of a run is complete: it runs, whatever becomes of this supervisor. Counts as its first attempt."""
        with self.database.session() as session:
            session.execute(update(RUNS).where(RUNS.c.run_id == run_id, RUNS.c.attempt == 0).values(attempt=1))

    def announce(self, run_id: str, message: str) -> Run:
        """Record a message that the user gets with the run until it ends."""
        with self.write(run_id) as write:
            write.changes["message"] = sanitize(message)
            write.event(EventKind.MESSAGE, {"message": message})
        return self.run(run_id)

    def claim(self, run_id: str) -> RunJournal:
        """Begin a new attempt to execute the run; return its journal. Attempts before it can no longer write. Raises: NotFoundError."""
        with self.database.session() as session:
            claim = update(RUNS).where(RUNS.c.run_id == run_id).values(attempt=RUNS.c.attempt + 1).returning(RUNS.c.attempt)
            attempt = session.execute(claim).scalar()
        if attempt is None:
            raise unknown_run(run_id)
        return RunJournal(self, RunId(run_id), attempt)

    def become(self, run_id: str, to: RunState, **detail: str) -> Run:
        """Change the state of a run from outside its executor, and with it columns of its row, as `error`.

        Raises: NotFoundError. ConflictError: this transition is not allowed."""
        with self.write(run_id) as write:
            write.become(to, **detail)
        return self.run(run_id)

    def submit_again(self, run_id: str, only: RunState | None = None) -> Run:
        """Queue a run that is terminal and has not finished once more, to go on.

        Args: only: the state that it must be in; None: any that allows it.
        Raises: NotFoundError. ConflictError: the state of the run does not allow it."""
        with self.write(run_id) as write:
            if only is not None and write.state is not only:
                raise ConflictError(
                    f"run {run_id} is {write.state} and not {only} any more; `modyn resume {run_id}` goes on with it"
                )
            write.become(RunState.SUBMITTED)
            write.changes |= {"error": "", "error_reason": "", "message": ""}
        return self.run(run_id)

    def request_finish(self, run_id: str) -> None:
        """Record that the run is to end its stream where it stands, whichever attempt executes it."""
        with self.write(run_id) as write:
            write.changes["finish_requested"] = True
            write.event(EventKind.MESSAGE, {"message": "the run was asked to finish: it reads no more samples"})

    def tell_of_deletion(self, deleted: DeletedSamples) -> list[RunId]:
        """Record the deletion among the events of each run whose models or scores may rest on the samples; return these runs."""
        message = (
            f"{deleted.num_samples:,} samples of dataset '{deleted.dataset}' were deleted, since {deleted.path} was taken again (modyn data "
            "reindex): models and scores from before may rest on them, and no later trigger trains on them"
        )
        told = []
        for run_id in self.users_of(deleted):
            with suppress(NotFoundError, ConflictError):  # It is being removed.
                with self.write(run_id) as write:
                    write.event(EventKind.MESSAGE, {"message": message})
                told.append(run_id)
        return told

    def request_evaluation(self, run_id: str, handlers: Sequence[str], section: Mapping[str, Any] | None) -> RequestedEvaluation:
        """Queue evaluations of a run in any state.

        Args: handlers: their names. section: takes the place of the run's `evaluation`; None: its own.
        """
        with self.write(run_id) as write:  # its lock orders the numbers
            of_run = EVALUATIONS.c.run_id == run_id
            number = 1 + (write.session.scalar(select(func.max(EVALUATIONS.c.number)).where(of_run)) or 0)
            request = RequestedEvaluation(
                run_id=RunId(run_id),
                number=number,
                state=JobState.QUEUED,
                submitted_at=time.time(),
                handlers=list(handlers),
                section=None if section is None else dict(section),
                after_seq=write.last_seq,
            )
            write.session.execute(insert(EVALUATIONS).values(to_row(request, EVALUATIONS)))
        return request

    def end_evaluation(
        self, request: RequestedEvaluation, failures: Sequence[str], error_reason: str = "", *, stopped: bool = False
    ) -> None:
        """Record the end of requested evaluations, unless they have one: failed with these reasons, else finished.

        Args: error_reason: of the first. stopped: the user has cancelled them.
        """
        error = ""
        if failures:
            others = f" ({len(failures) - 1} more failed, see the run's events)" if failures[1:] else ""
            error = sanitize(f"{failures[0]}{others}")
        state, result = (JobState.FAILED, f"failed: {error}") if failures else (JobState.FINISHED, "are made")
        if stopped:
            state, result = JobState.STOPPED, "are cancelled"
        values = {"state": str(state), "error": error, "error_reason": error_reason, "finished_at": time.time()}
        which = (
            EVALUATIONS.c.run_id == request.run_id,
            EVALUATIONS.c.number == request.number,
            EVALUATIONS.c.finished_at.is_(None),
        )
        with self.write(request.run_id) as write:
            ended = update(EVALUATIONS).where(*which).values(**values).returning(EVALUATIONS.c.number)
            if write.session.scalar(ended) is None:
                return
            write.event(EventKind.MESSAGE, {"message": f"requested evaluations {request.number} {result}"})
            write.prune(self.events_kept)

    @contextmanager
    def write(self, run_id: str, attempt: int | None = None) -> Iterator[Write]:
        """Open one transaction on a run. Raises ConflictError: another attempt than `attempt` executes it now, or it is being removed."""
        with self.database.session() as session:
            # The row lock orders all writes of the run, and with them the numbers of its events.
            query = (
                select(RUNS.c.state, RUNS.c.attempt, RUNS.c.last_seq, RUNS.c.removing)
                .where(RUNS.c.run_id == run_id)
                .with_for_update()
            )
            row = session.execute(query).one_or_none()
            if row is None:
                raise unknown_run(run_id)
            if row.removing:
                raise ConflictError(f"run {run_id} is being removed; `modyn rm {run_id}` goes on with that")
            if attempt is not None and row.attempt != attempt:
                raise ConflictError(f"run {run_id} has been taken over by another supervisor (attempt {row.attempt})")
            write = Write(session, run_id, RunState(row.state), row.last_seq)
            yield write
            if write.events:
                if write.replaces_last:
                    last = (EVENTS.c.run_id == run_id, EVENTS.c.seq == write.last_seq, EVENTS.c.kind == str(EventKind.RUN_STATE))
                    session.execute(delete(EVENTS).where(*last, EVENTS.c.detail["state"].astext.in_(IDLE_STATES)))
                session.execute(insert(EVENTS), write.events)
                write.changes["last_seq"] = write.last_seq + len(write.events)
            if write.changes:
                session.execute(update(RUNS).where(RUNS.c.run_id == run_id).values(**write.changes))
        if write.events:
            self._committed(run_id)


class RunJournal:
    """What one attempt to execute a run writes, in the order of a trigger's life.

    A write that is repeated changes nothing; all raise ConflictError once another attempt has begun.
    """

    def __init__(self, journal: Journal, run_id: RunId, attempt: int | None) -> None:
        """Args: attempt: None for a run that could not be claimed; only its `end` may be written then."""
        self._journal = journal
        self.run_id = run_id
        self.attempt = attempt
        self._state: RunState | None = None
        """The state last written from here. A request to stop changes the row from outside; the next write that is not skipped finds it."""
        self._announced: str | None = None  # The message that the run came with; None: not read yet.

    def enter(self, state: RunState) -> None:
        """Record that the run is in `state`; nothing is written if this attempt wrote that state last."""
        if state != self._state:
            with self._write() as write:
                write.become(state)

    def advance(self, cursor: Cursor, policy_state: Mapping[str, Any]) -> None:
        """Replace cursor and state of the policy: a whole batch has been processed, or the stream ended.

        Args: policy_state: what `Trigger.state` returns now.
        """
        values = {**to_row(cursor, CURSORS), "version": CURSOR_VERSION, "policy_state": dict(policy_state)}
        with self._write() as write:
            statement = upsert(CURSORS).values(run_id=self.run_id, **values)
            write.session.execute(statement.on_conflict_do_update(index_elements=["run_id"], set_=values))
            write.prune(self._journal.events_kept)

    def checked(self, record: CheckRecord) -> None:
        """Record the verdict of the policy at one position; a resumed run takes it instead of asking again."""
        with self._write() as write:
            values = to_row(record, CHECKS)
            statement = upsert(CHECKS).values(run_id=self.run_id, **values).on_conflict_do_nothing()
            if write.session.execute(statement.returning(CHECKS.c.position)).scalar() is not None:
                write.event(EventKind.CHECK, {name: value for name, value in values.items() if name != "memory"})

    def selecting(self, trigger: TriggerRecord, num_samples: int, message: str = "") -> None:
        """Record that the policy fired, `num_samples` samples after the last time; the trigger set is fixed next. Args: message: for watchers."""
        with self._write() as write:
            values = to_row(trigger, TRIGGERS)
            statement = upsert(TRIGGERS).values(run_id=self.run_id, **values).on_conflict_do_nothing()
            if write.session.execute(statement.returning(TRIGGERS.c.trigger_id)).scalar() is not None:
                if message:
                    write.event(EventKind.MESSAGE, {"message": message}, trigger.trigger_id)
                names = ("position", "first_timestamp", "last_timestamp", "fired_at_timestamp", "online")
                detail = {name: values[name] for name in names} | {"num_samples": num_samples}
                write.event(EventKind.TRIGGER_FIRED, detail, trigger.trigger_id)
            write.become(RunState.SELECTING)
            write.start_step(trigger.trigger_id, "select")

    def selected_none(self, trigger: TriggerRecord) -> None:
        """Record that the trigger set is fixed and empty, which ends the trigger."""
        with self._write() as write:
            write.update_trigger(trigger)
            write.end_step(trigger.trigger_id, "select", trigger.seconds["select"], num_keys=0)
            message = f"trigger {trigger.trigger_id} selected no samples, so nothing was trained"
            write.event(EventKind.MESSAGE, {"message": message}, trigger.trigger_id)
            write.become(RunState.STREAMING)

    def training(self, trigger: TriggerRecord) -> None:
        """Record that the trigger set is fixed; training on it is next."""
        with self._write() as write:
            write.update_trigger(trigger)
            write.end_step(trigger.trigger_id, "select", trigger.seconds["select"], num_keys=trigger.num_keys)
            write.become(RunState.TRAINING)
            turn = {name: getattr(trigger, name) for name in ("downsampling_turn", "downsampling_score")}
            write.start_step(trigger.trigger_id, "train", **(turn if trigger.downsampling_turn is not None else {}))

    def trained(self, trigger: TriggerRecord) -> None:
        """Record that the trigger's model is stored; the stream goes on."""
        with self._write() as write:
            write.update_trigger(trigger)
            loss, skipped, seconds = trigger.training_result.get("loss"), trigger.num_skipped, trigger.seconds["train"]
            found = {
                "model_id": trigger.model_id,
                "loss": loss,
                "num_skipped": skipped,
                **error_detail(trigger),
                **input_detail(trigger),
                **learning_detail(trigger),
            }
            is_new = write.end_step(trigger.trigger_id, "train", seconds, **found)
            for message in (rollback_message(trigger), input_message(trigger), *warning_messages(trigger)) if is_new else ():
                if message:
                    write.event(EventKind.MESSAGE, {"message": message}, trigger.trigger_id)
            write.become(RunState.STREAMING)

    def untrained(self, trigger: TriggerRecord, reason: str) -> None:
        """Record that the training made no model, for `reason`; the model before stays in use, and the stream goes on."""
        with self._write() as write:
            write.update_trigger(trigger)
            found = {"model_id": None, "reason": sanitize(reason), **error_detail(trigger), **input_detail(trigger)}
            is_new = write.end_step(trigger.trigger_id, "train", trigger.seconds["train"], **found)
            nothing = f"trigger {trigger.trigger_id} trained nothing: {reason}; the model before, if there is one, stays in use"
            is_meant = trigger.state is TriggerState.TESTED
            for message in ("" if is_meant else nothing, input_message(trigger)) if is_new else ():
                if message:
                    write.event(EventKind.MESSAGE, {"message": message}, trigger.trigger_id)
            write.become(RunState.STREAMING)

    def evaluating(self, task: EvaluationTask) -> None:
        """Record that one evaluation of a trigger's model starts."""
        with self._write() as write:
            write.start_step(task.trigger_id, "evaluate", task.step_name, handler=task.handler, dataset=task.dataset)

    def evaluated(self, task: EvaluationTask, seconds: float, error: str | None = None) -> None:
        """Record that one evaluation has its result after `seconds` of work, or failed with `error`. The run goes on in both cases."""
        state, found = ("finished", {}) if error is None else ("failed", {"error": error})
        with self._write() as write:
            write.end_step(
                task.trigger_id, "evaluate", seconds, task.step_name, state, handler=task.handler, dataset=task.dataset, **found
            )

    def message(self, message: str) -> None:
        """Record a message for the run's watchers."""
        with self._write() as write:
            write.event(EventKind.MESSAGE, {"message": message})

    def warn(self, warning: str) -> None:
        """Show a warning with the run, after what was announced with it, and to its watchers; "": the run warns of nothing any more."""
        with self._write() as write:
            if self._announced is None:  # Otherwise the message has a warning from here already.
                self._announced = write.session.scalar(select(RUNS.c.message).where(RUNS.c.run_id == self.run_id))
            write.changes["message"] = "\n".join(filter(None, (self._announced, sanitize(warning))))
            write.event(EventKind.MESSAGE, {"message": warning or "what the run warned of is over"})

    def end(self, to: RunState, *, error: str = "", error_reason: str = "", message: str = "") -> None:
        """Record that the run is terminal. One that an outage hits while it stops is stopped, as the user asked.

        Args: error: why it failed or was interrupted; error_reason: its machine-readable name. message: what else the user should know.
        """
        with self._write() as write:
            if self.attempt is None and write.state is not RunState.SUBMITTED:
                return  # Another supervisor, or a request to stop, has moved the run on.
            if to is RunState.INTERRUPTED and write.state in (RunState.STOPPING, RunState.STOPPED):
                to, error, error_reason = RunState.STOPPED, "", ""
            if to is RunState.STOPPED and write.state not in (RunState.SUBMITTED, RunState.STOPPING, RunState.STOPPED):
                write.become(RunState.STOPPING)
            write.become(to, error=error, error_reason=error_reason, message=message)

    def together(self, writes: Sequence[Callable[[RunJournal], None]]) -> None:
        """Make several writes in one transaction, in their order. Args: writes: are given a journal, and write once to it."""
        with self._write() as write:
            for each in writes:
                each(_OneTransaction(self, write))

    @contextmanager
    def _write(self) -> Iterator[Write]:
        with self._journal.write(self.run_id, self.attempt) as write:
            yield write
        self._state = write.state


class _OneTransaction(RunJournal):
    """Writes of an attempt within a transaction of it."""

    def __init__(self, journal: RunJournal, write: Write) -> None:
        super().__init__(journal._journal, journal.run_id, journal.attempt)
        self._open = write

    @contextmanager
    def _write(self) -> Iterator[Write]:
        yield self._open
