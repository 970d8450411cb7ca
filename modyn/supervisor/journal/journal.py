"""Writes of the journal, the durable record of all runs in PostgreSQL: states, cursors, triggers, steps and events. Reads are in queries.py.

Every write is one transaction that holds the lock of its run's row, so that a change and the event that reports it are committed together. If it is
unknown whether a commit has succeeded, the write is repeated. A repeated write changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from modyn.db.engine import Database
from modyn.errors import ConflictError, NotFoundError
from modyn.json_codec import sanitize
from modyn.records import DeletedSamples, JobState, RunId
from modyn.rpc.retry import Retrier, RetryPolicy
from modyn.supervisor.journal.cursor import Cursor
from modyn.supervisor.journal.outbox import Change, Outbox
from modyn.supervisor.journal.queries import CURSOR_VERSION, JournalQueries, from_row, run_row, unknown_run
from modyn.supervisor.journal.records import EvaluationTask, NewRun, RequestedEvaluation, Run, TriggerRecord, slug, to_row
from modyn.supervisor.journal.run_events import EvaluateStep, SelectStep, StateChange, StepState, TrainStep, TriggerFired
from modyn.supervisor.journal.states import RunState, TriggerState
from modyn.supervisor.journal.tables import CHECKS, CURSORS, EVALUATIONS, EVENTS, PIPELINES, RUNS, TRIGGERS
from modyn.supervisor.journal.training_events import ended_training, training_messages
from modyn.supervisor.journal.write import IDLE_STATES, Write
from modyn.supervisor.triggers.base import CheckRecord

_NO_RETRIES: Final = Retrier(RetryPolicy(0.0))


class Journal(JournalQueries):
    """Writes about all runs of an installation."""

    def __init__(self, database: Database, committed: Callable[[str], None] = lambda _: None, events_kept: int = 10_000) -> None:
        """Args: committed: called with the run's id after each write that added an event, in the thread that wrote. events_kept: the number of newest
        events of each run that `Write.prune` keeps."""
        super().__init__(database)
        self._committed = committed
        self.events_kept = events_kept

    def create(self, new: NewRun) -> Run:
        """Record a run, unless the submission is already recorded. The run's id is the pipeline's name and a number, which is never reused."""
        with self.database.session() as session:
            # The pipeline's row is locked until the row of the run is written, so that simultaneous submissions get different numbers.
            count = upsert(PIPELINES).values(slug=slug(new.pipeline_name), num_runs=1)
            counted = count.on_conflict_do_update(index_elements=["slug"], set_={"num_runs": PIPELINES.c.num_runs + 1})
            of_pipeline = session.execute(counted.returning(PIPELINES.c.num_runs)).scalar_one()
            earlier = select(RUNS.c.run_id).where(RUNS.c.submission_id == new.submission_id)
            # A repeated submission skips a number. This is allowed, because numbers must be unique but not consecutive.
            if new.submission_id is not None and (known := session.scalar(earlier)) is not None:
                return from_row(run_row(session, known), Run)
            run_id = RunId(f"{slug(new.pipeline_name)}-{of_pipeline:04d}")
            number = session.scalar(select(func.nextval("supervisor.run_numbers")))
            values = to_row(new, RUNS) | to_row(new.options, RUNS)
            values |= {name: sanitize(values[name]) for name in ("pipeline_name", "file_name")}
            values |= {"run_id": run_id, "number": number, "state": str(RunState.SUBMITTED), "submitted_at": time.time()}
            write = Write(session, run_id, RunState.SUBMITTED, last_seq=0)
            write.event(StateChange(RunState.SUBMITTED))
            session.execute(insert(RUNS).values(values | {"last_seq": len(write.events)}))
            session.execute(insert(EVENTS), write.events)
            # The run is read within the transaction: after the commit, the user would take an error of this read for a refusal of the run.
            run = from_row(run_row(session, run_id), Run)
        self._committed(run_id)
        return run

    def accept(self, run_id: str) -> None:
        """Record that the submission of a run is complete. The run is then executed even if this supervisor ends. The acceptance is attempt 1."""
        with self.database.session() as session:
            session.execute(update(RUNS).where(RUNS.c.run_id == run_id, RUNS.c.attempt == 0).values(attempt=1))

    def announce(self, run_id: str, message: str) -> Run:
        """Record a message that is shown with the run until the run ends."""
        with self.write(run_id) as write:
            write.changes["message"] = sanitize(message)
            write.message(message)
        return self.run(run_id)

    def claim(self, run_id: str) -> RunJournal:
        """Begin a new attempt to execute the run; return its journal. Earlier attempts can no longer write. Raises: NotFoundError."""
        with self.database.session() as session:
            claim = update(RUNS).where(RUNS.c.run_id == run_id).values(attempt=RUNS.c.attempt + 1).returning(RUNS.c.attempt)
            attempt = session.execute(claim).scalar()
        if attempt is None:
            raise unknown_run(run_id)
        return RunJournal(self, RunId(run_id), attempt)

    def become(self, run_id: str, to: RunState, **texts: str) -> Run:
        """Change the state of a run, and columns of the run's row such as `error`. The executor of a run does not use this method.

        Raises: NotFoundError. ConflictError: this transition is not allowed."""
        with self.write(run_id) as write:
            write.become(to, **texts)
        return self.run(run_id)

    def submit_again(self, run_id: str, only: RunState | None = None) -> Run:
        """Queue a terminal, unfinished run again, so that the run continues.

        Args: only: the state that the run must be in; None to accept each state that allows a resumption.
        Raises: NotFoundError. ConflictError: the state of the run does not allow a resumption, or is not `only`."""
        with self.write(run_id) as write:
            if only is not None and write.state is not only:
                raise ConflictError(
                    f"run {run_id} is {write.state} and not {only} any more; `modyn resume {run_id}` continues it"
                )
            write.become(RunState.SUBMITTED)
            write.changes |= {"error": "", "error_reason": "", "message": ""}
        return self.run(run_id)

    def request_finish(self, run_id: str) -> None:
        """Record that the run must end its stream now. Every later attempt to execute the run obeys this record too."""
        with self.write(run_id) as write:
            write.changes["finish_requested"] = True
            write.message("the run was asked to finish: it reads no more samples")

    def tell_of_deletion(self, deleted: DeletedSamples) -> list[RunId]:
        """Record a deletion as an event of each run whose models or scores may depend on the samples; return these runs."""
        message = (
            f"{deleted.num_samples:,} samples of dataset '{deleted.dataset}' were deleted, since {deleted.path} was taken again (modyn data "
            "reindex): earlier models and scores may depend on them, and no later trigger trains on them"
        )
        notified = []
        for run_id in self.users_of(deleted):
            with suppress(NotFoundError, ConflictError):  # The run is being removed.
                with self.write(run_id) as write:
                    write.message(message)
                notified.append(run_id)
        return notified

    def request_evaluation(self, run_id: str, handlers: Sequence[str], section: Mapping[str, Any] | None) -> RequestedEvaluation:
        """Queue evaluations of a run in any state.

        Args: handlers: names of the evaluation handlers. section: replaces the run's `evaluation`; None to use the run's own section.
        """
        with self.write(run_id) as write:  # The lock of the run's row keeps the numbers of requests unique.
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
        """Record the end of requested evaluations, unless the end is already recorded. The evaluations failed if `failures` is not empty.

        Args: error_reason: machine-readable reason of the first failure. stopped: the user has cancelled the evaluations.
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
            write.message(f"requested evaluations {request.number} {result}")
            write.prune(self.events_kept)

    @contextmanager
    def write(self, run_id: str, attempt: int | None = None) -> Iterator[Write]:
        """Open one transaction on a run. Raises: ConflictError: an attempt other than `attempt` executes the run now, or the run is being removed."""
        with self.database.session() as session:
            # The row lock orders all writes of the run, and therefore the numbers of the run's events.
            query = (
                select(RUNS.c.state, RUNS.c.attempt, RUNS.c.last_seq, RUNS.c.removing)
                .where(RUNS.c.run_id == run_id)
                .with_for_update()
            )
            row = session.execute(query).one_or_none()
            if row is None:
                raise unknown_run(run_id)
            if row.removing:
                raise ConflictError(f"run {run_id} is being removed; `modyn rm {run_id}` continues that")
            if attempt is not None and row.attempt != attempt:
                raise ConflictError(f"run {run_id} has been taken over by another supervisor (attempt {row.attempt})")
            write = Write(session, run_id, RunState(row.state), row.last_seq)
            yield write
            if write.events:
                if write.replaces_last:
                    last = (EVENTS.c.run_id == run_id, EVENTS.c.seq == write.last_seq, EVENTS.c.kind == "run_state")
                    # Otherwise, a run that often waits for data would fill its journal with the two idle states.
                    session.execute(delete(EVENTS).where(*last, EVENTS.c.detail["state"].astext.in_(IDLE_STATES)))
                session.execute(insert(EVENTS), write.events)
                write.changes["last_seq"] = write.last_seq + len(write.events)
            if write.changes:
                session.execute(update(RUNS).where(RUNS.c.run_id == run_id).values(**write.changes))
        if write.events:
            self._committed(run_id)  # Called after the commit, so that a woken watcher finds the events.


class RunJournal:
    """Writes of one attempt to execute a run. The methods follow the order of a trigger's states.

    A write that is repeated changes nothing. Every write raises ConflictError once another attempt has begun.
    """

    def __init__(
        self, journal: Journal, run_id: RunId, attempt: int | None, retrier: Retrier = _NO_RETRIES, *, online: bool = False
    ) -> None:
        """Args: attempt: None to write without a claim: requested evaluations, or the `end` of a run that could not be claimed. retrier: retries
        writes. online: whether the run may take online steps. Writes of online steps go through an outbox, and every other write waits until the
        outbox is empty.
        """
        self._journal = journal
        self.run_id = run_id
        self.attempt = attempt
        self._retrier = retrier
        self._outbox = Outbox(self._transact) if online else None
        self._state: RunState | None = None
        """The state that this attempt wrote last. A request to stop changes the state in the row; this attempt notices the request at its next write.
        """
        self._announced: str | None = None  # The message of the run's submission; None before the first warning.

    def retried(self, retrier: Retrier, *, online: bool = False) -> RunJournal:
        """Return a journal of the same attempt that repeats its writes with `retrier`."""
        return RunJournal(self._journal, self.run_id, self.attempt, retrier, online=online)

    def close(self) -> None:
        """Wait for the last write. Raises nothing."""
        if self._outbox is not None:
            self._outbox.close()

    def enter(self, state: RunState) -> None:
        """Record that the run is in `state`. Nothing is written if this attempt wrote the same state last."""
        self._flush()
        if state != self._state:
            self._write(lambda write: write.become(state))

    def advance(self, cursor: Cursor, policy_state: Mapping[str, Any]) -> None:
        """Replace the cursor and the state of the policy, after a whole batch was processed or the stream ended.

        Args: policy_state: what `Trigger.state` returns now.
        """
        values = {**to_row(cursor, CURSORS), "version": CURSOR_VERSION, "policy_state": dict(policy_state)}

        def change(write: Write) -> None:
            statement = upsert(CURSORS).values(run_id=self.run_id, **values)
            write.session.execute(statement.on_conflict_do_update(index_elements=["run_id"], set_=values))
            write.prune(self._journal.events_kept)

        self._write(change)

    def record_check(self, record: CheckRecord) -> None:
        """Record the verdict of the policy at one position; a resumed run replays the verdict."""

        def change(write: Write) -> None:
            shown = replace(record, memory={})
            values = to_row(record, CHECKS) | {"evidence": shown.to_mapping().get("evidence", [])}
            statement = upsert(CHECKS).values(run_id=self.run_id, **values).on_conflict_do_nothing()
            # A resumed run repeats the call. Only the first call adds a row and an event.
            if write.session.execute(statement.returning(CHECKS.c.position)).scalar() is not None:
                write.event(shown)

        self._write(change)

    def begin_selection(self, trigger: TriggerRecord, num_samples: int, message: str = "") -> None:
        """Record that the policy fired, `num_samples` samples after the last trigger; the selection is next. Args: message: text for watchers."""

        def change(write: Write) -> None:
            values = to_row(trigger, TRIGGERS)
            statement = upsert(TRIGGERS).values(run_id=self.run_id, **values).on_conflict_do_nothing()
            # A resumed run repeats the call. Only the first call adds a row and an event.
            if write.session.execute(statement.returning(TRIGGERS.c.trigger_id)).scalar() is not None:
                if message:
                    write.message(message, trigger.trigger_id)
                fired = TriggerFired(trigger.position, trigger.fired_at_timestamp, num_samples, trigger.online)
                write.event(fired, trigger.trigger_id)
            write.become(RunState.SELECTING)
            write.start_step(trigger.trigger_id, SelectStep(StepState.STARTED))

        self._write_of(trigger, change)

    def end_empty(self, trigger: TriggerRecord) -> None:
        """Record that the selector has selected an empty trigger set, which ends the trigger."""

        def change(write: Write) -> None:
            write.update_trigger(trigger)
            write.end_step(trigger.trigger_id, SelectStep(StepState.FINISHED, trigger.seconds["select"], num_keys=0))
            message = f"trigger {trigger.trigger_id} selected no samples, so nothing was trained"
            write.message(message, trigger.trigger_id)
            write.become(RunState.STREAMING)

        self._write_of(trigger, change, ends=True)

    def begin_training(self, trigger: TriggerRecord) -> None:
        """Record that the selector has selected the trigger set, and that the training is next. All earlier writes are made first, because the
        journal must contain a trigger before the trigger's training starts.
        """
        self._flush()

        def change(write: Write) -> None:
            write.update_trigger(trigger)
            write.end_step(
                trigger.trigger_id, SelectStep(StepState.FINISHED, trigger.seconds["select"], num_keys=trigger.num_keys)
            )
            write.become(RunState.TRAINING)
            turn, score = trigger.downsampling_turn, trigger.downsampling_score
            step = TrainStep(StepState.STARTED, downsampling_turn=turn, downsampling_score=score)
            write.start_step(trigger.trigger_id, step)

        self._write_of(trigger, change)

    def record_model(self, trigger: TriggerRecord) -> None:
        """Record that the trigger's model is stored; the run continues its stream."""

        def change(write: Write) -> None:
            write.update_trigger(trigger)
            if write.end_step(trigger.trigger_id, ended_training(trigger)):
                for message in training_messages(trigger):
                    write.message(message, trigger.trigger_id)
            write.become(RunState.STREAMING)

        self._write_of(trigger, change, ends=True)

    def record_no_model(self, trigger: TriggerRecord, reason: str) -> None:
        """Record that the training made no model, for `reason`. The previous model stays in use, and the run continues its stream."""

        def change(write: Write) -> None:
            write.update_trigger(trigger)
            nothing = f"trigger {trigger.trigger_id} trained nothing: {reason}; the model before, if there is one, stays in use"
            if write.end_step(trigger.trigger_id, ended_training(trigger, reason)):
                # A test without training is intended, and needs no message.
                is_meant = trigger.state is TriggerState.TESTED
                for message in (*(() if is_meant else (nothing,)), *training_messages(trigger)):
                    write.message(message, trigger.trigger_id)
            write.become(RunState.STREAMING)

        self._write_of(trigger, change, ends=True)

    def begin_evaluation(self, task: EvaluationTask) -> None:
        """Record that one evaluation of a trigger's model starts."""

        def change(write: Write) -> None:
            step = EvaluateStep(StepState.STARTED, handler=task.handler, dataset=task.dataset)
            write.start_step(task.trigger_id, step, task.step_name)

        self._write(change)

    def end_evaluation_task(self, task: EvaluationTask, seconds: float, error: str | None = None) -> None:
        """Record that one evaluation has finished after `seconds` of work, or has failed with `error`. The run continues in both cases."""
        state = StepState.FINISHED if error is None else StepState.FAILED
        step = EvaluateStep(state, seconds, task.handler, task.dataset, error or "")

        def change(write: Write) -> None:
            write.end_step(task.trigger_id, step, task.step_name)

        self._write(change)

    def message(self, message: str) -> None:
        """Record a message for the run's watchers."""
        self._write(lambda write: write.message(message))

    def warn(self, warning: str) -> None:
        """Send a warning to watchers, and show it after the message of the run's submission. Args: warning: empty to remove the warning."""

        def change(write: Write) -> None:
            if self._announced is None:  # Read before the first warning changes the message.
                self._announced = write.session.scalar(select(RUNS.c.message).where(RUNS.c.run_id == self.run_id))
            write.changes["message"] = "\n".join(filter(None, (self._announced, sanitize(warning))))
            write.message(warning or "the warning no longer applies")

        self._write(change)

    def end(self, to: RunState, *, error: str = "", error_reason: str = "", message: str = "") -> None:
        """Record that the run is terminal. If an outage interrupts a stopping run, the run becomes stopped, as the user asked.

        Args: error: why the run failed or was interrupted; error_reason: machine-readable name of the error. message: information for the user.
        """

        def change(write: Write) -> None:
            if self.attempt is None and write.state is not RunState.SUBMITTED:
                return  # Another supervisor, or a request to stop, has changed the state.
            if to is RunState.INTERRUPTED and write.state in (RunState.STOPPING, RunState.STOPPED):
                write.become(RunState.STOPPED, error="", error_reason="", message=message)
                return
            if to is RunState.STOPPED and write.state not in (RunState.SUBMITTED, RunState.STOPPING, RunState.STOPPED):
                write.become(RunState.STOPPING)
            write.become(to, error=error, error_reason=error_reason, message=message)

        self._write(change)

    def _flush(self) -> None:
        if self._outbox is not None:
            self._outbox.flush()

    def _write(self, change: Change) -> None:
        """Make a change now, after all waiting changes. Raises: the error of an earlier write."""
        self._flush()
        self._transact([change])

    def _write_of(self, trigger: TriggerRecord, change: Change, *, ends: bool = False) -> None:
        """Make a change of a trigger. A change of an online trigger is queued: the run continues immediately. Args: ends: the trigger has ended."""
        if self._outbox is not None and trigger.online:
            # If a change of an online trigger is lost, only the trigger's steps are repeated. The run waits for the commit of all other changes.
            self._outbox.put(change, ends_trigger=ends)
        else:
            self._write(change)

    def _transact(self, changes: Sequence[Change]) -> None:
        self._state = self._retrier.call(self._transact_once, changes)

    def _transact_once(self, changes: Sequence[Change]) -> RunState:
        with self._journal.write(self.run_id, self.attempt) as write:
            for change in changes:
                change(write)
        return write.state
