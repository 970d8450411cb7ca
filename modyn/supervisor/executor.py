"""Execute one run: samples → triggers → trigger sets → models → evaluations, each step journalled before and after.

A run that is executed again goes on from its cursor, which stands behind the last whole batch. Triggers that it meets again on the way
are found in the journal: their decisions must be the same, their steps are finished or repeated, never doubled.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from prometheus_client import Counter

from modyn.config.online import ONLINE
from modyn.config.pipeline import load_pipeline
from modyn.config.system import SupervisorConfig
from modyn.errors import CorruptStateError
from modyn.records import SampleBatch
from modyn.rpc.logs import bind
from modyn.rpc.retry import CancellationToken, Retrier
from modyn.storage.client import LateLabelBatch
from modyn.supervisor.check_lag import CheckLag
from modyn.supervisor.convergence import convergence_of
from modyn.supervisor.cursor import explain_end
from modyn.supervisor.decisions import TriggerDecisions, diverged
from modyn.supervisor.deferred_journal import DeferredJournal
from modyn.supervisor.evaluation_plan import EvaluationSchedule, EvaluationTask, TrainedModels, parent_model
from modyn.supervisor.evaluation_queue import EvaluationQueue, RunContext
from modyn.supervisor.events import EventHub
from modyn.supervisor.journal import RunJournal
from modyn.supervisor.journal_queries import RunSnapshot
from modyn.supervisor.late_labels import LateLabelQueue
from modyn.supervisor.online_steps import OnlineSteps, TriggeredSamples
from modyn.supervisor.records import EventKind, RunMode, TriggerRecord
from modyn.supervisor.run_clients import RunClients, report_wait, retry_policy, stream_progress, training_progress
from modyn.supervisor.run_evidence import DecodedBy, RunEvidence, RunTrainings
from modyn.supervisor.scored_turns import scored_turns
from modyn.supervisor.states import TRIGGER_TRANSITIONS, RunState, TriggerState
from modyn.supervisor.stream import SampleStream, StreamSource
from modyn.supervisor.stream_labels import StreamLabels
from modyn.supervisor.triggers import TriggerContext, build_trigger
from modyn.supervisor.triggers.base import DueChecks
from modyn.supervisor.work_clock import WorkClock, stage_seconds, trained_seconds
from modyn.trainer_server.client import TrainingRequest, TrainingStatus

MODELS_TRAINED = Counter("modyn_supervisor_models_trained", "Trainings that ended with a stored model")
SAMPLES_SEEN = Counter("modyn_supervisor_samples_seen", "Samples of streams that were processed")


class RunExecutor:
    """Takes a run from where its journal stands to its end."""

    def __init__(
        self,
        snapshot: RunSnapshot,
        journal: RunJournal,
        clients: RunClients,
        hub: EventHub,
        config: SupervisorConfig,
        token: CancellationToken,
        finishing: CancellationToken | None = None,
    ) -> None:
        """Args: token: ends the run as it is. finishing: ends its stream; what is left of its evaluations is made."""
        self._finishing = finishing or CancellationToken()
        self._run = snapshot.run
        self._run_id = snapshot.run.run_id
        self._pipeline = load_pipeline(snapshot.run.yaml, snapshot.file_name)
        self._snapshot = snapshot
        self._hub = hub
        self._batch_size = config.stream_batch_size
        self._retrier = Retrier(retry_policy(config, snapshot.run), token, partial(report_wait, journal))
        self._journal, self._close_journal = DeferredJournal.of(
            self._retrier.wrap(journal), online=bool(self._pipeline.section(ONLINE))
        )
        self._selector = self._retrier.wrap(clients.selector)
        self._trainer_server = clients.trainer_server
        self._storage = clients.storage
        delay = self._pipeline.label_delay
        self._policy = build_trigger(self._pipeline.trigger, TriggerContext(self._pipeline.training.seed, label_delay=delay))
        self._schedule = EvaluationSchedule(self._pipeline.evaluation)
        cache, identities = self._pipeline.section("cache"), snapshot.evaluation_identities
        context = RunContext(self._run_id, clients.evaluator, self._journal, hub, self._retrier, cache, identities)
        self._evaluations = EvaluationQueue(context, self._pipeline.evaluation, snapshot.evaluated)
        self._turns = scored_turns(self._pipeline, self._evaluations, snapshot.triggers)
        self._due: list[EvaluationTask] = []
        """Evaluations that the newest model has made due."""
        self._cursor = snapshot.cursor
        self._labels = StreamLabels(self._run_id, delay, self._selector, self._cursor)
        self._known = {trigger.trigger_id: trigger for trigger in snapshot.triggers}
        decoded = DecodedBy.pipeline(self._pipeline)
        self._trained = TrainedModels()
        trainings = RunTrainings(self._run_id, self._pipeline, self._trained.training_of, snapshot.dataset_identity)
        load = partial(clients.loads.of, self._run_id) if self._run.mode is RunMode.PRODUCTION else lambda: None
        evidence = RunEvidence(self._run_id, decoded, clients.evaluator, clients.selector, self._retrier, trainings, load)
        asked = self._journal, self._run_id, snapshot.checks, self._cursor.max_timestamp, evidence
        self._decisions = TriggerDecisions(self._policy, *asked)
        self._online = OnlineSteps.of(self._pipeline, lambda policy: TriggerDecisions(policy, *asked, online=True))
        self._lag: CheckLag | None = None
        if self._run.mode is RunMode.PRODUCTION:
            dataset_id, every_s = self._pipeline.dataset_id, config.lag_look_s
            self._lag = CheckLag(self._run_id, lambda: clients.storage.dataset(dataset_id).next_key, every_s)
        self._convergence = convergence_of(self._pipeline)

    def execute(self) -> str:
        """Bring the run to its end and return the message for the user; every error that is raised ends the run."""
        try:
            self._restore()
            if not self._cursor.stream_ended:
                self._follow_stream()
            return self._finish()
        finally:
            self._evaluations.close()
            self._close_journal()
            if self._lag is not None:
                self._lag.close()

    def _restore(self) -> None:
        """Make the run known to the selector, and bring the policy and the evaluations to where the cursor stands."""
        pipeline, snapshot = self._pipeline, self._snapshot
        data, seed, identity = pipeline.section("data"), snapshot.selection_seed, snapshot.dataset_identity
        strategy, online = pipeline.selection_strategy, pipeline.section(ONLINE) or None
        self._selector.register_run(self._run_id, pipeline.dataset_id, strategy, seed, data, identity, online)
        if (state := snapshot.policy_state) is not None:
            self._policy.load_state(state if self._online is None else state["policy"])
            if self._online is not None:
                self._online.load_state(state["online"])
        for trigger_id in range(self._cursor.num_triggers):
            self._add(trigger := self._known[trigger_id])
            if trigger.model_id is not None:
                self._start_evaluations()

    def _follow_stream(self) -> None:
        self._journal.enter(RunState.STREAMING)
        self._repeat_held_samples()
        held, mode, dataset, interval = self._snapshot, self._run.mode, self._pipeline.dataset_id, self._run.options.interval
        first_label = self._labels.first(mode, dataset, self._cursor, self._retrier.wrap(self._storage))
        bounds = held.end_key, held.dataset_identity, held.end_label, first_label
        source = StreamSource(dataset, mode, interval, self._batch_size, *bounds)
        if not self._has_enough() and (come := self._labels.held(self._cursor, self._storage, source, self._retrier)) is not None:
            self._process_labels(*come)
            self._commit()
            source = replace(source, first_label=self._cursor.next_label)
        late = LateLabelQueue(interval, self._labels.received)
        wait_for_data = partial(self._journal.enter, RunState.WAITING_FOR_DATA)
        stream = SampleStream(self._storage, source, self._cursor.last, self._retrier)
        unregister = self._finishing.on_cancel(lambda _: stream.end())
        try:
            while not self._has_enough() and (batch := stream.read(wait_for_data)) is not None:
                self._journal.enter(RunState.STREAMING)
                if isinstance(batch, LateLabelBatch):
                    late.add(batch)
                else:
                    self._process(batch)
                    self._commit()
                while not self._has_enough() and (come := late.take(self._cursor)) is not None:
                    self._process_labels(*come)
                    self._commit()
        finally:
            unregister()
            stream.close()
        self._retrier.token.check()
        while self._run.final_trigger and self._num_untrained():
            self._journal.enter(RunState.STREAMING)  # A stream that was asked to end was waiting for data.
            self._trigger(online=self._steps_may_be_taken())
        self._cursor = replace(self._cursor, stream_ended=True)
        self._commit()

    def _repeat_held_samples(self) -> None:
        """Process what the selector was informed of behind the cursor, before the run was interrupted.

        From the selector, not once more from storage: what was decided on was these samples, whatever has come or was deleted since.
        """
        while not self._has_enough():
            batch = self._selector.samples(self._run_id, self._cursor.position, self._batch_size)
            if not len(batch):
                return
            self._process(batch)
            self._commit()

    def _process(self, batch: SampleBatch) -> None:
        """Bring a batch to the selector, and train wherever the policy fires in it."""
        # All of it first: a policy may look at samples after the position at which it fires, and decides so again when the run is resumed.
        batch = self._labels.inform(self._cursor, batch)
        received, begin = 0, self._cursor.position
        due = DueChecks(batch, self._policy, self._cursor.last_check - begin)
        steps = None if self._online is None else DueChecks(batch, self._online.policy, self._online.last_check - begin)
        while True:
            online = steps is not None and steps.before(due)
            at = steps.at if steps is not None and online else due.at
            self._receive(batch.slice(received, len(batch) if at is None else at))
            if at is None:
                return
            received = at
            if self._steps_are_due() if online else self._decide():
                self._trigger(online=online)
                if self._has_enough():
                    return
            (steps if steps is not None and online else due).go_on()

    def _process_labels(self, labelled: SampleBatch, next_label: int) -> None:
        """Bring labels that come between two samples to the selector, and train if the policy fires for them."""
        if len(labelled):
            batch = self._labels.come(self._cursor, labelled)
            # What counts labels decides here again, although no sample has come since.
            is_due = DueChecks(batch, self._policy, -1).at is not None
            self._receive(batch)
            if is_due and self._decide():
                self._trigger()
        self._cursor = replace(self._cursor, next_label=next_label)

    def _decide(self) -> bool:
        """Whether the trigger policy fires where the cursor stands."""
        fires = self._decisions.check(self._cursor)
        self._cursor = replace(self._cursor, last_check=self._cursor.position)
        self._look_at_lag()
        return fires

    def _steps_are_due(self) -> bool:
        """Whether steps of proactive training are taken where the cursor stands."""
        if self._online is None:
            return False
        fires = self._online.check(self._cursor, has_model=bool(self._trained.models))
        self._look_at_lag()
        return fires

    def _steps_may_be_taken(self) -> bool:
        """Whether there is a model that steps of proactive training go on from."""
        return self._online is not None and bool(self._trained.models)

    def _num_untrained(self) -> int:
        """Samples of the stream so far that wait for a training; none, once the run has all triggers that it may have."""
        if self._has_enough():
            return 0
        return self._online.pending.num_pending if self._online and self._trained.models else self._cursor.num_pending

    def _receive(self, samples: SampleBatch) -> None:
        """Go on after the next samples, or labels that come between two of them."""
        if len(samples) or len(samples.labelled):
            self._decisions.observe(samples)
            if self._online is not None:
                self._online.observe(samples)
            self._cursor = self._cursor.plus(samples) if len(samples) else self._cursor.with_labels(samples.labelled)
            SAMPLES_SEEN.inc(len(samples))
            self._hub.progress(self._run_id, EventKind.STREAM_PROGRESS, stream_progress(self._cursor, self._run.total_samples))

    def _trigger(self, *, online: bool = False) -> None:
        """Select, train and start to evaluate; what the journal holds already is not done again."""
        due = TriggeredSamples.pending(self._cursor)
        if online and self._online is not None:
            due = self._online.due(self._cursor, partial(self._selector.samples, self._run_id, labelled=True))
        cursor, known = self._cursor, self._known.get(self._cursor.num_triggers)
        if known is not None and (known.position, known.online) != (cursor.position, online):
            raise diverged(self._run_id, f"fired trigger {known.trigger_id} after {known.position} samples", cursor.position)
        fired = TriggerRecord.fired(cursor, (due.first, due.last), known, online=online)
        began = replace(fired.outcome(), num_new=due.number)
        if not online:
            self._policy.triggered(began)
        trigger = self._known.get(fired.trigger_id, fired)
        if TRIGGER_TRANSITIONS[trigger.state]:
            with bind(trigger_id=trigger.trigger_id):
                trigger = self._select(trigger, due)
                if trigger.state is TriggerState.SELECTED:
                    trigger = self._train(trigger)
        self._cursor = self._cursor.after_steps() if online else self._cursor.after_trigger()
        if self._online is not None:
            self._online.triggered(began)
        self._add(trigger)
        if self._online is not None:
            self._online.ended(trigger.outcome())
        if not online:
            self._policy.ended(trigger.outcome())
        if trigger.model_id is not None:
            self._start_evaluations()

    def _add(self, trigger: TriggerRecord) -> None:
        """Take note of the next trigger, once it has ended."""
        self._trained.add(trigger)
        self._convergence.add(trigger)

    def _tests_only(self, trigger: TriggerRecord) -> bool:
        """Whether the samples of a trigger are only tested, for steps pause."""
        return trigger.online and self._convergence.paused

    def _select(self, trigger: TriggerRecord, due: TriggeredSamples) -> TriggerRecord:
        """Fix the trigger set."""
        online, token = trigger.online, self._retrier.token
        self._journal.selecting(trigger, due.number, self._convergence.change if online else "")
        started, how = time.monotonic(), {"online": online, "tests_only": self._tests_only(trigger)}
        trigger_set = self._selector.trigger(self._run_id, trigger.trigger_id, due.stop, token, **how)
        # Of a trigger that was selected before, the seconds that are journalled.
        trigger = replace(trigger, seconds={"select": time.monotonic() - started, **trigger.seconds})
        if trigger.keys_checksum not in (None, trigger_set.keys_checksum):
            raise CorruptStateError(
                f"the trigger set of trigger {trigger.trigger_id} of run {self._run_id} is not the one that was journalled; "
                "the selector's files were changed or lost, submit the pipeline again"
            )
        trigger = replace(trigger, num_keys=trigger_set.num_keys, keys_checksum=trigger_set.keys_checksum)
        if trigger_set.num_keys == 0:
            trigger = replace(trigger, state=TriggerState.EMPTY)
            self._journal.selected_none(trigger)
            return trigger
        previous = self._trained.models[-1].model_id if self._trained.models else None
        goes_on = online or self._pipeline.training.use_previous_model
        parent = parent_model(previous, goes_on, self._pipeline.training.initial_model_id)
        trigger = replace(trigger, state=TriggerState.SELECTED, parent_model_id=parent)
        if self._turns is not None and not online:
            trigger = self._turns.decide(trigger, self._due)
        self._journal.training(trigger)
        return trigger

    def _train(self, trigger: TriggerRecord) -> TriggerRecord:
        """Train on the trigger set; the model is stored by the trainer server."""
        trainer, pipeline = self._trainer_server, self._pipeline
        request = TrainingRequest(
            run_id=self._run_id,
            trigger_id=trigger.trigger_id,
            pipeline=pipeline.as_dict(),
            parent_model_id=trigger.parent_model_id,
            num_samples_to_pass=pipeline.num_samples_to_pass(trigger.trigger_id),
            seed=pipeline.training.seed,
            downsampling_turn=trigger.downsampling_turn,
            online=trigger.online,
            tests_only=self._tests_only(trigger),
        )
        clock = WorkClock()
        status = self._retrier.follow(
            start=lambda: trainer.start(request),
            watch=lambda: trainer.watch(self._run_id, trigger.trigger_id),
            report=partial(self._report_training_progress, clock),
            stop=lambda: trainer.stop(self._run_id, trigger.trigger_id),
        )
        # The trainer has measured stages only, but also those of attempts that were not followed from here.
        seconds = max(clock.seconds, sum(trained_seconds(status.result).values()))
        stages = stage_seconds({**trigger.seconds, "train": seconds}, status.result)
        trigger = replace(trigger, finished_at=time.time(), training_result=dict(status.result), seconds=stages)
        if status.model_id is None:
            trigger = replace(trigger, state=TriggerState.TESTED if request.tests_only else TriggerState.UNTRAINED)
            self._journal.untrained(trigger, status.nothing_trained)
            return trigger
        state, digest = TriggerState.TRAINED, status.weights_sha256
        trigger = replace(trigger, state=state, model_id=status.model_id, weights_sha256=digest)
        self._journal.trained(trigger)
        MODELS_TRAINED.inc()
        return trigger

    def _start_evaluations(self) -> None:
        """Queue what the newest model makes due."""
        self._due = self._schedule.add(self._trained.models[-1])
        self._evaluations.add(self._due)

    def _commit(self) -> None:
        """Move the journal's cursor behind the batch that was processed."""
        cursor = self._cursor = replace(self._cursor, first_waiting=self._labels.first_waiting)
        missed = self._known.get(cursor.num_triggers)
        # At its very position it may still fire, before the first sample of the next batch.
        if missed is not None and (missed.position < cursor.position or cursor.stream_ended):
            raise diverged(self._run_id, f"fired trigger {missed.trigger_id} after {missed.position} samples", cursor.position)
        self._decisions.refuse_missed(cursor)
        if self._online is not None:
            self._online.refuse_missed(cursor)
        state = self._policy.state()
        self._journal.advance(cursor, state if self._online is None else {"policy": state, "online": self._online.state()})
        self._look_at_lag(batch_ends=True)
        self._warn()

    def _warn(self) -> None:
        """Show what keeps policies from firing, and checks from keeping up."""
        self._decisions.warn(self._lag.warning if self._lag else "", self._online.warning if self._online else "")

    def _look_at_lag(self, *, batch_ends: bool = False) -> None:
        """Warn early if checks take long: there may be very many of them in a batch."""
        of_steps = self._online.check_seconds if self._online else 0.0
        if self._lag is not None and self._lag.look(self._cursor, self._decisions.seconds + of_steps, batch_ends=batch_ends):
            self._warn()

    def _finish(self) -> str:
        self._journal.enter(RunState.EVALUATING)
        self._evaluations.drain()
        self._trained.check_any()
        if self._trained.models:
            self._evaluations.use_final_workers()
            self._evaluations.add(self._schedule.at_end(self._stream_end()))
            # One that failed is a status of its own; the run has done its part.
            self._evaluations.drain()
        if self._online is None or not self._trained.models:
            return explain_end(self._cursor, self._pipeline.trigger, self._policy.lacking())
        cursor = replace(self._cursor, num_pending=self._num_untrained(), last_check=self._online.last_check)
        trigger, lacking = self._pipeline.section(ONLINE)["trigger"], self._online.policy.lacking()
        return explain_end(cursor, trigger, lacking or self._policy.lacking())

    def _has_enough(self) -> bool:
        return self._run.max_triggers is not None and self._cursor.num_triggers >= self._run.max_triggers

    def _stream_end(self) -> int | None:
        return None if self._cursor.max_timestamp is None else self._cursor.max_timestamp + 1

    def _report_training_progress(self, clock: WorkClock, status: TrainingStatus) -> None:
        clock.report(status.state)
        self._hub.progress(self._run_id, EventKind.TRAINING_PROGRESS, training_progress(status), status.trigger_id)
