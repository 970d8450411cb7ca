"""Drives one run: samples → triggers → trigger sets → models → evaluations, each step journalled before and after.

A run that is driven again goes on from its cursor, which stands behind the last whole batch. Triggers that it meets again on the way
are found in the journal: their decisions must be the same, their steps are finished or repeated, never doubled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from prometheus_client import Counter

from modyn.config.pipeline import Pipeline, load_pipeline
from modyn.config.system import SupervisorConfig
from modyn.errors import CancelledError, CorruptStateError, ModynError, UnavailableError
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Interval, SampleBatch
from modyn.rpc.logs import bind, get_logger
from modyn.rpc.retry import CancellationToken, Retrier, RetryPolicy
from modyn.supervisor.client import EventKind, TriggerRecord
from modyn.supervisor.clients import RunClients
from modyn.supervisor.evaluation_plan import TrainedModel, parent_model, split
from modyn.supervisor.evaluation_queue import EvaluationQueue, Schedule
from modyn.supervisor.events import EventHub
from modyn.supervisor.journal import RunSnapshot
from modyn.supervisor.run_journal import RunJournal
from modyn.supervisor.states import RunState, TriggerState
from modyn.supervisor.stream import SampleStream, StreamSource
from modyn.supervisor.triggers import TriggerContext, build_trigger
from modyn.trainer_server.client import TrainingRequest, TrainingStatus

T = TypeVar("T")

MODELS_TRAINED = Counter("modyn_supervisor_models_trained", "Trainings that ended with a stored model")
SAMPLES_SEEN = Counter("modyn_supervisor_samples_seen", "Samples of streams that were processed")

ADVICE = "start the service again (`modyn up`), then resume the run"

_LOG = get_logger("supervisor")


class RunExecutor:
    """Takes a run from where its journal stands to its end. `drive` returns the message for the user; whatever it raises ends the run."""

    def __init__(
        self,
        snapshot: RunSnapshot,
        journal: RunJournal,
        clients: RunClients,
        hub: EventHub,
        config: SupervisorConfig,
        signals: CancellationToken,
    ) -> None:
        self.run = snapshot.run
        self.pipeline: Pipeline = load_pipeline(snapshot.run.yaml, snapshot.file_name)
        self._recorded = snapshot
        self._journal = journal
        self._clients = clients
        self._hub = hub
        self._config = config
        self._signals = signals
        policy = RetryPolicy(config.patience_s, longest_pause_s=2.0, advice=ADVICE)
        self._patience = Retrier(policy, signals, self._tell_outage)
        self._policy = build_trigger(self.pipeline.trigger, TriggerContext(self.pipeline.seed))
        self._schedule = Schedule(self.pipeline.evaluation)
        self._evaluations = EvaluationQueue(
            run_id=self.run.run_id,
            evaluation=self.pipeline.evaluation,
            evaluator=clients.evaluator,
            journal=journal,
            hub=hub,
            patience=self._patience,
            signals=signals,
            evaluated=snapshot.evaluated,
        )
        self._cursor = snapshot.cursor
        self._known = {trigger.trigger_id: trigger for trigger in snapshot.triggers}
        self._triggers: list[TriggerRecord] = []
        self._training: int | None = None
        self._training_lock = threading.Lock()
        signals.on_cancel(self._call_off_training)

    def drive(self) -> str:
        try:
            if self._recorded.manual_handlers is not None:
                return self._evaluate_by_hand(self._recorded.manual_handlers)
            self._prepare()
            if not self._cursor.stream_ended:
                self._follow_stream()
            return self._finish()
        finally:
            self._evaluations.close()

    def _prepare(self) -> None:
        """Makes the run known to the selector and brings the policy and the evaluations to where the cursor stands."""
        self._do(
            lambda: self._clients.selector.register_run(
                self.run.run_id,
                self.pipeline.dataset_id,
                self.pipeline.selection_strategy,
                self._recorded.selection_seed,
                self.pipeline.section("data"),
            )
        )
        if self._recorded.policy_state is not None:
            self._policy.load_state(self._recorded.policy_state)
        for trigger_id in range(self._cursor.num_triggers):
            self._triggers.append(self._known[trigger_id])
            self._begin_evaluations()

    def _follow_stream(self) -> None:
        self._enter(RunState.STREAMING)
        storage = self._clients.storage
        interval = Interval(
            MIN_TIMESTAMP if self.run.from_timestamp is None else self.run.from_timestamp,
            MAX_TIMESTAMP if self.run.to_timestamp is None else self.run.to_timestamp,
        )
        source = StreamSource(self.pipeline.dataset_id, self.run.mode, interval, self._config.stream_batch_size)
        stream = SampleStream(storage, source, self._cursor.last, self._patience)
        try:
            while not self._has_enough() and (batch := stream.read(lambda: self._enter(RunState.WAITING_FOR_DATA))) is not None:
                self._enter(RunState.STREAMING)
                self._process(batch)
                self._commit()
        finally:
            stream.close()
        self._signals.check()
        self._cursor = replace(self._cursor, stream_ended=True)
        self._commit()

    def _process(self, batch: SampleBatch) -> None:
        """Brings a batch to the selector, and trains wherever the policy fires in it."""
        for start, stop, fires in split(len(batch), self._policy.cuts(batch), self.pipeline.trigger["id"]):
            part = batch.slice(start, stop)
            if len(part):
                self._do(lambda part=part: self._clients.selector.inform(self.run.run_id, self._cursor.position, part))  # type: ignore[misc]
                self._cursor = self._cursor.plus(part)
                SAMPLES_SEEN.inc(len(part))
            if fires and self._cursor.pending.num_samples:
                self._trigger()
                if self._has_enough():
                    return
            self._tell_stream_progress()

    def _trigger(self) -> None:
        """Selects, trains and begins to evaluate; what the journal holds already is not done again."""
        record = self._decided()
        if record.state not in (TriggerState.TRAINED, TriggerState.EMPTY):
            with bind(trigger_id=record.trigger_id):
                record = self._train(record)
        self._cursor = self._cursor.after_trigger()
        self._triggers.append(record)
        if record.model_id is not None:
            self._policy.inform_model(record.trigger_id, record.model_id)
            self._begin_evaluations()

    def _decided(self) -> TriggerRecord:
        """The record of the trigger that fires here."""
        cursor, pending = self._cursor, self._cursor.pending
        assert pending.first_timestamp is not None
        assert pending.last_timestamp is not None
        assert cursor.max_timestamp is not None
        known = self._known.get(cursor.num_triggers)
        if known is not None:
            if known.position != cursor.position:
                raise self._diverged(known)
            return known
        return TriggerRecord(
            trigger_id=cursor.num_triggers,
            position=cursor.position,
            first_timestamp=pending.first_timestamp,
            last_timestamp=pending.last_timestamp,
            fired_at_timestamp=cursor.max_timestamp,
            state=TriggerState.FIRED,
            started_at=time.time(),
        )

    def _train(self, record: TriggerRecord) -> TriggerRecord:
        run_id, trigger_id, journal = self.run.run_id, record.trigger_id, self._journal
        self._do(lambda: journal.selecting(record, self._cursor.pending.num_samples))
        trigger_set = self._do(lambda: self._clients.selector.trigger(run_id, trigger_id, record.position))
        if record.keys_checksum not in (None, trigger_set.keys_checksum):
            raise CorruptStateError(
                f"the trigger set of trigger {trigger_id} of run {run_id} is not the one that was journalled; "
                "the selector's files were changed or lost, submit the pipeline again"
            )
        if trigger_set.num_keys == 0:
            self._do(lambda: journal.selected_none(trigger_id, trigger_set))
            return replace(record, state=TriggerState.EMPTY, num_keys=0, keys_checksum=trigger_set.keys_checksum)
        pipeline = self.pipeline
        parent = parent_model(
            [t.model_id for t in self._triggers if t.model_id is not None], pipeline.use_previous_model, pipeline.initial_model_id
        )
        self._do(lambda: journal.training(trigger_id, trigger_set, parent))
        status = self._follow_training(
            TrainingRequest(
                run_id=run_id,
                trigger_id=trigger_id,
                pipeline=pipeline.as_dict(),
                parent_model_id=parent,
                num_samples_to_pass=pipeline.num_samples_to_pass(trigger_id),
                seed=pipeline.seed,
            )
        )
        assert status.model_id is not None
        model_id = status.model_id
        model = self._do(lambda: self._clients.model_storage.describe(model_id)).version
        self._do(lambda: journal.trained(trigger_id, model, status.result))
        MODELS_TRAINED.inc()
        return replace(record, state=TriggerState.TRAINED, num_keys=trigger_set.num_keys, model_id=model.model_id)

    def _follow_training(self, request: TrainingRequest) -> TrainingStatus:
        trainer = self._clients.trainer_server
        with self._training_lock:
            self._training = request.trigger_id
        try:
            return self._patience.follow(
                start=lambda: trainer.start(request),
                watch=lambda: trainer.watch(request.run_id, request.trigger_id),
                report=self._tell_training_progress,
            )
        finally:
            if self._signals.cause is not None:
                # The request to stop may have come before the training was known to the server.
                self._call_off_training(self._signals.cause)
            with self._training_lock:
                self._training = None

    def _begin_evaluations(self) -> None:
        """What the newest trigger makes due."""
        if self._triggers[-1].model_id is not None:
            self._evaluations.begin(self._schedule.after_training(trained_models(self._triggers)))

    def _commit(self) -> None:
        """The journal's cursor follows, now that a whole batch is behind the run."""
        cursor = self._cursor
        missed = self._known.get(cursor.num_triggers)
        if missed is not None and missed.position <= cursor.position and not cursor.stream_ended:
            raise self._diverged(missed)
        state = self._policy.state()
        self._do(lambda: self._journal.advance(cursor, state))

    def _finish(self) -> str:
        self._enter(RunState.EVALUATING)
        models = trained_models(self._triggers)
        self._evaluations.drain()
        if models:
            self._use_final_workers()
            self._evaluations.begin(self._schedule.at_end(models, self._stream_end()))
            self._evaluations.drain()
        return "" if self._triggers else self._why_nothing_fired()

    def _evaluate_by_hand(self, handlers: tuple[str, ...]) -> str:
        self._enter(RunState.EVALUATING)
        if models := trained_models(self._recorded.triggers):
            self._use_final_workers()
            self._evaluations.begin(self._schedule.by_hand(handlers, models, self._stream_end()))
            self._evaluations.drain()
        return self.run.message

    def _use_final_workers(self) -> None:
        self._evaluations.use_workers(int((self.pipeline.evaluation or {}).get("after_pipeline_evaluation_workers", 5)))

    def _has_enough(self) -> bool:
        return self.run.max_triggers is not None and self._cursor.num_triggers >= self.run.max_triggers

    def _stream_end(self) -> int | None:
        return None if self._cursor.max_timestamp is None else self._cursor.max_timestamp + 1

    def _enter(self, state: RunState) -> None:
        self._do(lambda: self._journal.enter(state))

    def _do(self, action: Callable[[], T]) -> T:
        return self._patience.call(action)

    def _call_off_training(self, cause: ModynError) -> None:
        """On the user's request only: a training that is interrupted may as well go on, it is found again."""
        with self._training_lock:
            trigger_id = self._training
        if trigger_id is None or not isinstance(cause, CancelledError):
            return
        try:
            self._clients.trainer_server.stop(self.run.run_id, trigger_id)
        except ModynError as error:
            _LOG.warning("training_not_stopped", run_id=self.run.run_id, trigger_id=trigger_id, error=error.message)

    def _diverged(self, trigger: TriggerRecord) -> CorruptStateError:
        return CorruptStateError(
            f"run {self.run.run_id} fired trigger {trigger.trigger_id} after {trigger.position} samples, but does not when it goes on "
            f"from its journal (now after {self._cursor.position}): samples were added to or deleted from the past of dataset "
            f"'{self.pipeline.dataset_id}', or the triggering policy is another one; submit the pipeline again"
        )

    def _why_nothing_fired(self) -> str:
        cursor, trigger = self._cursor, self.pipeline.trigger
        if cursor.max_timestamp is None:
            return "the stream held no samples, so nothing was trained; ingest data, or choose another interval"
        first = cursor.pending.first_timestamp
        options = ", ".join(f"{name}={value}" for name, value in trigger.items() if name != "id")
        return (
            f"no trigger fired in {cursor.position} samples from {_date(first)} to {_date(cursor.max_timestamp)}, so nothing was trained; "
            f"let {trigger['id']} ({options}) fire earlier, or replay a longer interval"
        )

    def _tell_outage(self, message: str) -> None:
        _LOG.warning("waiting", run_id=self.run.run_id, reason=message)
        try:
            self._journal.message(message)
        except UnavailableError:
            _LOG.warning("journal_unavailable", run_id=self.run.run_id)

    def _tell_stream_progress(self) -> None:
        detail = {
            "num_samples": self._cursor.position,
            "total_samples": self.run.total_samples or 0,
            "timestamp": self._cursor.max_timestamp,
        }
        self._hub.progress(self.run.run_id, EventKind.STREAM_PROGRESS, detail)

    def _tell_training_progress(self, status: TrainingStatus) -> None:
        detail = {
            "samples_seen": status.samples_seen,
            "samples_total": status.samples_total or 0,
            "batches_seen": status.batches_seen,
            "loss": status.loss,
            "samples_per_s": status.samples_per_s,
        }
        self._hub.progress(self.run.run_id, EventKind.TRAINING_PROGRESS, detail, status.trigger_id)


def trained_models(triggers: list[TriggerRecord] | tuple[TriggerRecord, ...]) -> list[TrainedModel]:
    """The models of these triggers, in order. Samples of a trigger that trained nothing count to the next model's."""
    models: list[TrainedModel] = []
    first = last = None
    for trigger in triggers:
        first = trigger.first_timestamp if first is None else min(first, trigger.first_timestamp)
        last = trigger.last_timestamp if last is None else max(last, trigger.last_timestamp)
        if trigger.model_id is not None:
            models.append(TrainedModel(trigger.trigger_id, trigger.model_id, Interval(first, last + 1)))
            first = last = None
    return models


def _date(timestamp: int | None) -> str:
    try:
        return str(datetime.fromtimestamp(timestamp or 0, UTC).date())
    except (OverflowError, ValueError, OSError):
        return str(timestamp)
