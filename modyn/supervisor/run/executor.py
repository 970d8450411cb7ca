"""Execute one run: samples → triggers → trigger sets → models → evaluations, each step journalled before and after.

A resumed run continues from its cursor, after the last whole batch. The run may reach triggers that the journal already contains. The decisions
about these triggers must be the same; each step of these triggers is finished or repeated, and no step takes effect twice.
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
from modyn.records import RunRegistration, SampleBatch
from modyn.rpc.logs import bind
from modyn.rpc.retry import CancellationToken, Retrier
from modyn.storage.client import LateLabelBatch
from modyn.supervisor.evaluation import load_evaluation
from modyn.supervisor.evaluation.plan import EvaluationSchedule, TrainedModels, parent_model
from modyn.supervisor.evaluation.queue import EvaluationQueue, RunContext
from modyn.supervisor.journal.cursor import Cursor, explain_end
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.journal import RunJournal
from modyn.supervisor.journal.queries import RunSnapshot
from modyn.supervisor.journal.records import EvaluationTask, RunMode, TriggerRecord
from modyn.supervisor.journal.run_events import StreamProgress
from modyn.supervisor.journal.states import TRIGGER_TRANSITIONS, RunState, TriggerState
from modyn.supervisor.journal.work_clock import WorkClock, stage_seconds
from modyn.supervisor.run.convergence import ConvergenceCheck
from modyn.supervisor.run.late_labels import LateLabelQueue
from modyn.supervisor.run.run_evidence import Decoding, RunEvidence, RunTrainings
from modyn.supervisor.run.run_warnings import CheckLag, ShownWarning
from modyn.supervisor.run.scored_turns import scored_turns
from modyn.supervisor.run.stream import SampleStream, StreamSource
from modyn.supervisor.run.stream_labels import StreamLabels
from modyn.supervisor.run.trigger_track import TriggeredSamples, TriggerTrack, diverged, first_due, open_tracks
from modyn.supervisor.services.run_clients import RunClients, report_wait, retry_policy, training_progress
from modyn.supervisor.services.run_selector import RunSelector
from modyn.trainer_server.client import TrainingRequest, TrainingStatus

MODELS_TRAINED = Counter("modyn_supervisor_models_trained", "Trainings that ended with a stored model")
SAMPLES_SEEN = Counter("modyn_supervisor_samples_seen", "Samples of streams that were processed")


class RunExecutor:
    """Executes a run from its state in the journal to its end."""

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
        """Args: token: ends the run. finishing: ends the stream of the run; the run then makes the remaining evaluations."""
        self._finishing = finishing or CancellationToken()
        self._run = snapshot.run
        self._run_id = snapshot.run.run_id
        self._pipeline = load_pipeline(snapshot.run.yaml, snapshot.file_name)
        self._snapshot = snapshot
        self._hub = hub
        self._batch_size = config.stream_batch_size
        self._retrier = Retrier(retry_policy(config, snapshot.run), token, partial(report_wait, journal))
        self._journal = journal.retried(self._retrier, online=self._pipeline.online is not None)
        self._selector = RunSelector(clients.selector, self._run_id, self._retrier)
        self._trainer_server = clients.trainer_server
        self._storage = clients.storage
        evaluation = load_evaluation(self._pipeline.evaluation)
        self._schedule = EvaluationSchedule(evaluation)
        cache, identities = self._pipeline.section("cache"), snapshot.evaluation_identities
        context = RunContext(self._run_id, clients.evaluator, self._journal, hub, self._retrier, cache, identities)
        self._evaluations = EvaluationQueue(context, evaluation, snapshot.evaluated)
        self._turns = scored_turns(self._pipeline.turns, evaluation.handlers, self._evaluations, snapshot.triggers)
        self._due: list[EvaluationTask] = []
        """Evaluations that are due for the newest model."""
        self._labels = StreamLabels(self._pipeline.label_delay, self._selector, snapshot.cursor)
        self._known = {trigger.trigger_id: trigger for trigger in snapshot.triggers}
        decoded = Decoding.of_pipeline(self._pipeline)
        self._trained = TrainedModels()
        trainings = RunTrainings(self._run_id, self._pipeline, self._trained.training_of, snapshot.dataset_identity)
        load = partial(clients.loads.of, self._run_id) if self._run.mode is RunMode.PRODUCTION else lambda: None
        evidence = RunEvidence(self._run_id, decoded, clients.evaluator, clients.selector, self._retrier, trainings, load)
        self._retrainings, self._online = open_tracks(self._pipeline, self._journal, snapshot.cursor, snapshot.checks, evidence)
        self._tracks = [self._retrainings] if self._online is None else [self._retrainings, self._online]
        self._warning = ShownWarning(self._journal)
        self._lag: CheckLag | None = None
        if self._run.mode is RunMode.PRODUCTION:
            dataset_id, every_s = self._pipeline.dataset_id, config.lag_look_s
            self._lag = CheckLag(self._run_id, lambda: clients.storage.dataset(dataset_id).next_key, every_s)
        online = self._pipeline.online
        self._convergence = ConvergenceCheck(None if online is None else online.convergence)

    @property
    def _cursor(self) -> Cursor:
        """Position of the run in the stream, with the pending samples of the next retraining."""
        return self._retrainings.cursor

    def execute(self) -> str:
        """Execute the run to the end and return the message for the user. Every error ends the run."""
        try:
            self._restore()
            if not self._cursor.stream_ended:
                self._follow_stream()
            return self._finish()
        finally:
            # The journal is closed after the evaluations, because running evaluations write to the journal.
            self._evaluations.close()
            self._journal.close()
            if self._lag is not None:
                self._lag.close()

    def _restore(self) -> None:
        """Register the run at the selector, and restore policies and evaluations at the cursor."""
        pipeline, snapshot = self._pipeline, self._snapshot
        self._selector.register(
            RunRegistration(
                run_id=self._run_id,
                dataset=pipeline.dataset_id,
                selection_strategy=pipeline.selection_strategy,
                seed=snapshot.selection_seed,
                data=pipeline.section("data"),
                dataset_identity=snapshot.dataset_identity,
                online=pipeline.section(ONLINE) or None,
            )
        )
        if (state := snapshot.policy_state) is not None:
            self._retrainings.load_state(state if self._online is None else state["policy"])
            if self._online is not None:
                self._online.load_state(state["online"])
        # Evaluations of earlier triggers that have not ended are started again.
        for trigger_id in range(self._cursor.num_triggers):
            self._add(trigger := self._known[trigger_id])
            if trigger.model_id is not None:
                self._start_evaluations()

    def _follow_stream(self) -> None:
        """Process the samples and labels of the stream after the cursor, until the stream ends or the run has enough triggers."""
        self._journal.enter(RunState.STREAMING)
        self._repeat_held_samples()
        held, mode, dataset, interval = self._snapshot, self._run.mode, self._pipeline.dataset_id, self._run.options.interval
        first_label = self._retrier.call(self._labels.first, mode, dataset, self._cursor, self._storage)
        bounds = held.end_key, held.dataset_identity, held.end_label, first_label
        source = StreamSource(dataset, mode, interval, self._batch_size, *bounds)
        if not self._has_enough() and (come := self._labels.held(self._cursor, self._storage, source, self._retrier)) is not None:
            self._process_labels(*come)
            self._commit()
            source = replace(source, first_label=self._cursor.next_label)
        late = LateLabelQueue(interval, self._labels.received)
        wait_for_data = partial(self._journal.enter, RunState.WAITING_FOR_DATA)
        stream = SampleStream(self._storage, source, self._cursor.last, self._retrier)
        unregister = self._finishing.on_cancel(lambda _: stream.end())  # `modyn finish` wakes a run that waits for data.
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
        # The run may be stopped after its last read. A stopped run must not record that its stream has ended.
        self._retrier.token.check()
        # More than one trigger may be needed, because a trigger of online steps takes at most `online.max_samples` samples.
        while self._run.final_trigger and self._num_untrained():
            self._journal.enter(RunState.STREAMING)  # `modyn finish` may have ended the stream in state WAITING_FOR_DATA.
            self._trigger(self._final_track)
        self._commit(stream_ended=True)

    def _repeat_held_samples(self) -> None:
        """Process the samples after the cursor that the selector received before an interruption.

        These samples are read from the selector, not from storage: policies have decided on exactly these samples, and storage may have changed.
        """
        while not self._has_enough():
            batch = self._selector.samples(self._cursor.position, self._batch_size)
            if not len(batch):
                return
            self._process(batch)
            self._commit()

    def _process(self, batch: SampleBatch) -> None:
        """Send a batch to the selector, and train at each position at which a policy fires."""
        # The whole batch is sent first, because a policy may read samples after the position at which the policy fires. A resumed run does the same.
        batch, received = self._labels.inform(self._cursor, batch), 0
        for track in self._tracks:
            track.begin(batch)
        while True:
            track = first_due(self._tracks)
            at = track.next_check
            # The policies observe the samples before the next check, or the rest of the batch if no further check is due.
            self._receive(batch.slice(received, len(batch) if at is None else at))
            if at is None:
                return
            received = at
            if self._check(track):
                self._trigger(track)
                if self._has_enough():
                    return
            track.advance()

    def _process_labels(self, labelled: SampleBatch, next_label: int) -> None:
        """Send labels that arrive between two samples to the selector, and train if the trigger policy fires because of these labels."""
        track = self._retrainings
        if len(labelled):
            batch = self._labels.come(self._cursor, labelled)
            # A policy that counts labels decides again at this position, although no sample has arrived since the last decision.
            track.begin(batch, again=True)
            is_due = track.next_check is not None
            self._receive(batch)
            if is_due and self._check(track):
                self._trigger(track)
        track.cursor = replace(track.cursor, next_label=next_label)

    def _check(self, track: TriggerTrack) -> bool:
        """Return whether the policy of a track fires at the cursor."""
        fires = track.check(has_model=bool(self._trained.models))
        self._look_at_lag()
        return fires

    @property
    def _final_track(self) -> TriggerTrack:
        """Return the track that trains on the last samples of the stream: the track of online steps, if there is a model to continue from."""
        return self._online if self._online is not None and self._trained.models else self._retrainings

    def _num_untrained(self) -> int:
        """Return the number of samples that wait for a training; 0 if the run has reached its maximum number of triggers."""
        return 0 if self._has_enough() else self._final_track.cursor.num_pending

    def _receive(self, samples: SampleBatch) -> None:
        """Move the cursor after the next samples, or after labels that arrive between two samples."""
        if len(samples) or len(samples.labelled):
            for track in self._tracks:
                track.observe(samples)
            SAMPLES_SEEN.inc(len(samples))
            cursor = self._cursor
            progress = StreamProgress(cursor.position, self._run.total_samples or 0, cursor.max_timestamp)
            self._hub.progress(self._run_id, progress)

    def _trigger(self, track: TriggerTrack) -> None:
        """Select, train and start the evaluations of a trigger. Steps that are finished in the journal are not repeated."""
        cursor, known = self._cursor, self._known.get(self._cursor.num_triggers)
        due = track.take(partial(self._selector.samples, labelled=True))
        # After a restart, the policies must fire the journalled triggers. Otherwise, the models of the run would not match the decisions.
        if known is not None and (known.position, known.online) != (cursor.position, track.online):
            raise diverged(self._run_id, f"fired trigger {known.trigger_id} after {known.position} samples", cursor.position)
        fired = TriggerRecord.fired(cursor, (due.first, due.last), known, online=track.online)
        for each in self._tracks:
            each.triggered(replace(fired.outcome(), num_new=due.number))
        trigger = known or fired
        # A state without transitions is final: this trigger was completed before a restart.
        if TRIGGER_TRANSITIONS[trigger.state]:
            with bind(trigger_id=trigger.trigger_id):
                trigger = self._select(trigger, due)
                if trigger.state is TriggerState.SELECTED:
                    trigger = self._train(trigger)
        self._add(trigger)
        for each in self._tracks:
            each.ended(trigger.outcome())
        if trigger.model_id is not None:
            self._start_evaluations()

    def _add(self, trigger: TriggerRecord) -> None:
        """Record a trigger that has ended, for evaluations, for the convergence check, and as the parent of later models."""
        self._trained.add(trigger)
        self._convergence.add(trigger)

    def _tests_only(self, trigger: TriggerRecord) -> bool:
        """Return whether the samples of a trigger are only tested, because steps pause."""
        return trigger.online and self._convergence.paused

    def _select(self, trigger: TriggerRecord, due: TriggeredSamples) -> TriggerRecord:
        """Let the selector select the trigger set."""
        online = trigger.online
        self._journal.begin_selection(trigger, due.number, self._convergence.change if online else "")
        started, tests_only = time.monotonic(), self._tests_only(trigger)
        trigger_set = self._selector.trigger(trigger.trigger_id, due.stop, online=online, tests_only=tests_only)
        # If an earlier attempt finished the selection, the journalled seconds are kept.
        trigger = replace(trigger, seconds={"select": time.monotonic() - started, **trigger.seconds})
        if trigger.keys_checksum not in (None, trigger_set.keys_checksum):
            raise CorruptStateError(
                f"the trigger set of trigger {trigger.trigger_id} of run {self._run_id} is not the one that was journalled; "
                "the selector's files were changed or lost, submit the pipeline again"
            )
        trigger = replace(trigger, num_keys=trigger_set.num_keys, keys_checksum=trigger_set.keys_checksum)
        if trigger_set.num_keys == 0:
            trigger = replace(trigger, state=TriggerState.EMPTY)
            self._journal.end_empty(trigger)
            return trigger
        previous = self._trained.models[-1].model_id if self._trained.models else None
        continues = online or self._pipeline.training.use_previous_model
        parent = parent_model(previous, continues, self._pipeline.training.initial_model_id)
        trigger = replace(trigger, state=TriggerState.SELECTED, parent_model_id=parent)
        if self._turns is not None and not online:
            trigger = self._turns.decide(trigger, self._due)
        self._journal.begin_training(trigger)
        return trigger

    def _train(self, trigger: TriggerRecord) -> TriggerRecord:
        """Train on the trigger set; the trainer server stores the model."""
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
        # The seconds of the trainer's stages include attempts that this process did not follow.
        seconds = max(clock.seconds, sum(status.result.seconds.values()))
        stages = stage_seconds({**trigger.seconds, "train": seconds}, status.result)
        trigger = replace(trigger, finished_at=time.time(), training_result=status.result, seconds=stages)
        if status.model_id is None:
            trigger = replace(trigger, state=TriggerState.TESTED if request.tests_only else TriggerState.UNTRAINED)
            self._journal.record_no_model(trigger, status.result.nothing_trained)
            return trigger
        state, digest = TriggerState.TRAINED, status.weights_sha256
        trigger = replace(trigger, state=state, model_id=status.model_id, weights_sha256=digest)
        self._journal.record_model(trigger)
        MODELS_TRAINED.inc()
        return trigger

    def _start_evaluations(self) -> None:
        """Queue the evaluations that are due for the newest model."""
        self._due = self._schedule.add(self._trained.models[-1])
        self._evaluations.add(self._due)

    def _commit(self, *, stream_ended: bool = False) -> None:
        """Move the journal's cursor to the end of the batch that was processed."""
        waiting = self._labels.first_waiting
        for track in self._tracks:
            track.cursor = replace(track.cursor, first_waiting=waiting, stream_ended=stream_ended)
        cursor, missed = self._cursor, self._known.get(self._cursor.num_triggers)
        # The policy may still fire exactly at the cursor, before the first sample of the next batch.
        if missed is not None and (missed.position < cursor.position or stream_ended):
            raise diverged(self._run_id, f"fired trigger {missed.trigger_id} after {missed.position} samples", cursor.position)
        for track in self._tracks:
            track.refuse_missed()
        state = self._retrainings.state()
        self._journal.advance(cursor, state if self._online is None else {"policy": state, "online": self._online.state()})
        self._look_at_lag(batch_ends=True)
        self._warn()

    def _warn(self) -> None:
        """Show a warning if policies do not fire, or if checks are slower than the data."""
        of_policy = self._retrainings.warning or (self._lag.warning if self._lag else "")
        self._warning.show(of_policy, self._online.warning if self._online else "")

    def _look_at_lag(self, *, batch_ends: bool = False) -> None:
        """Update the warning about slow checks. The run calls this method after each check, because a batch may have many checks."""
        seconds = sum(track.seconds for track in self._tracks)
        if self._lag is not None and self._lag.look(self._cursor, seconds, batch_ends=batch_ends):
            self._warn()

    def _finish(self) -> str:
        self._journal.enter(RunState.EVALUATING)
        self._evaluations.drain()
        self._trained.check_any()
        if self._trained.models:
            # `use_final_workers` replaces the pool of threads, and therefore needs a drained queue.
            self._evaluations.use_final_workers()
            self._evaluations.add(self._schedule.at_end(self._stream_end()))
            # A failed evaluation does not fail the run.
            self._evaluations.drain()
        track, policy = self._final_track, self._retrainings.policy
        if (online := self._pipeline.online) is None or track is self._retrainings:
            return explain_end(self._cursor, self._pipeline.trigger, policy.end_warning())
        cursor = replace(track.cursor, num_pending=self._num_untrained())
        return explain_end(cursor, online.trigger, track.policy.end_warning() or policy.end_warning())

    def _has_enough(self) -> bool:
        return self._run.max_triggers is not None and self._cursor.num_triggers >= self._run.max_triggers

    def _stream_end(self) -> int | None:
        return None if self._cursor.max_timestamp is None else self._cursor.max_timestamp + 1

    def _report_training_progress(self, clock: WorkClock, status: TrainingStatus) -> None:
        clock.report(status.state)
        self._hub.progress(self._run_id, training_progress(status), status.trigger_id)
