"""Simulate many trigger policies on a stream: their triggers, and the forecast cost of trainings. Nothing is trained.

The simulation calls each policy in the same order as `executor.py`, so that each policy decides as in a run. Only the evidence source calls
services. All policies advance to their next questions about drift. Each distinct question is asked once, in one call with all questions about the
same model and the same metrics. Then each policy reads its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from modyn.errors import ModynError
from modyn.evaluator.client import DriftQuestion
from modyn.records import Int64Array, SampleBatch, all_labelled
from modyn.supervisor.journal.cursor import Cursor, SamplesSummary
from modyn.supervisor.run.trigger_track import TriggeredSamples
from modyn.supervisor.simulation.training_forecast import TrainingForecast
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, Trigger, TriggerOutcome, next_position
from modyn.supervisor.triggers.measures.label_clock import LabelClock, LateBatch
from modyn.supervisor.triggers.measures.questions import NO_EVIDENCE, EvidenceSource
from modyn.supervisor.triggers.measures.shared_evidence import SERVICE_ERRORS, SharedEvidence

_MOST_RECEIVED: Final = 10_000
"""Largest number of cached slices of a batch. Several policies use the same slices."""


class SimulatedTrigger(NamedTuple):
    """A trigger that a policy would have fired. Times are seconds since 1970."""

    trigger_id: int
    position: int
    """Number of samples of the stream before the trigger."""
    fired_at: int
    """Stream time of the decision: the largest timestamp so far."""
    num_pending: int
    """Number of samples since the previous trigger."""
    num_keys: int
    """Number of samples of the trigger set, by the rule of the selection."""
    num_trained: int | None
    """Number of samples trained on, over all epochs; None if the reference run trained nothing here."""
    total_s: float | None
    """Seconds of selection and training; None if the seconds are not known."""


class Received(NamedTuple):
    """Samples that a policy receives in one call."""

    samples: SampleBatch
    summary: SamplesSummary
    waited: int
    """Sum of the waiting times of these samples until the last of these samples arrives, in sample·seconds."""


class Arrivals:
    """A batch with the stream time at which each sample arrived: the largest timestamp so far. The times are computed once for all policies."""

    def __init__(self, batch: SampleBatch, newest: int | None) -> None:
        """Args: batch: not empty. newest: largest timestamp before the batch, or None for the first batch."""
        self.batch = batch
        reached = np.maximum.accumulate(batch.timestamps)
        self._newest: Int64Array = reached if newest is None else np.maximum(reached, newest)
        self._base = int(self._newest[0])
        span = int(self._newest[-1]) - self._base
        # If timestamps are far apart, sums of int64 could overflow. Python integers are used instead.
        offsets = self._newest.astype(object if span * len(batch) >= 2**63 else np.int64) - self._base
        self._sums = np.concatenate([[0], np.cumsum(offsets)])
        self._received: dict[tuple[int, int], Received] = {}

    @property
    def newest(self) -> int:
        """The largest timestamp so far."""
        return int(self._newest[-1])

    def received(self, start: int, stop: int) -> Received:
        """Return samples [start, stop) of the batch, at least one. The result is cached, because many policies receive the same samples."""
        if (start, stop) not in self._received:
            samples = self.batch.slice(start, stop)
            if len(self._received) >= _MOST_RECEIVED:
                self._received.clear()
            self._received[start, stop] = Received(samples, SamplesSummary.of(samples), self.waited(start, stop))
        return self._received[start, stop]

    def waited(self, start: int, stop: int) -> int:
        """Return the sum of waiting times, in sample·seconds, of the samples whose labels arrive with the samples [start, stop) of the batch. The
        samples wait until the last sample of this range arrives.
        """
        if isinstance(self.batch, LateBatch):
            came_at = self.batch.slice(start, stop).came_at
            return sum(int(self._newest[stop - 1]) - at for at in came_at.tolist())
        # The sum of (last - arrival) over the samples, from cumulative sums of the arrivals.
        last = int(self._newest[stop - 1]) - self._base
        return (stop - start) * last - int(self._sums[stop] - self._sums[start])


class SimulatedPolicy:
    """One policy in the simulation. The policy gets the same calls as in a run, and a forecast replaces each training."""

    def __init__(self, policy: Trigger, forecast: TrainingForecast, source: EvidenceSource = NO_EVIDENCE) -> None:
        """Args: source: answers the policy's questions at its checks."""
        self._policy = policy
        self._forecast = forecast
        self._source = source
        self.cursor = Cursor()
        self._last_check = 0
        """The newest position at which the policy has decided."""
        self.triggers: list[SimulatedTrigger] = []
        self._positions: list[int] = []
        """The positions of `triggers`."""
        self._numbers: list[int] = []
        """The number of samples with labels at each position of `_positions`."""
        self.num_checks = 0
        """Number of checks that measured data."""
        self.waiting = 0
        """Sample·seconds of stream time that samples have waited for their trigger: the area under the curve of the number of waiting samples."""
        self.failed = ""
        """Reason why the policy failed before the end of the stream; empty if the policy did not fail."""

    def process(self, arrivals: Arrivals) -> Iterator[Sequence[DriftQuestion]]:
        """Decide on a batch. Before each check, yield the questions that the check will ask. Raises the errors of the policy."""
        batch = arrivals.batch
        decided, received = max(self._last_check - self.cursor.position, -1), 0
        while True:
            at = next_position(self._policy, batch, decided)
            stop = len(batch) if at is None else at
            if stop > received:
                self._receive(arrivals, received, stop)
            if at is None:
                return
            received = decided = at
            context = CheckContext(self.cursor.position, self.cursor.num_pending, self._source)
            if questions := self._policy.questions(context):
                yield questions
            self._check(context)

    def _receive(self, arrivals: Arrivals, start: int, stop: int) -> None:
        received, cursor = arrivals.received(start, stop), self.cursor
        self._policy.observe(received.samples)
        self.cursor = after = cursor.after(received.summary)
        assert after.max_timestamp is not None
        # Sample-seconds of waiting: all pending samples waited for the time between the two newest timestamps.
        since = 0 if cursor.max_timestamp is None else after.max_timestamp - cursor.max_timestamp
        self.waiting += cursor.num_pending * since + received.waited

    def _check(self, context: CheckContext) -> None:
        check = self._policy.check(context)
        self.num_checks += bool(check.evidence)
        timestamp = self.cursor.max_timestamp
        record = CheckRecord(context.position, check.fires, check.evidence, memory=check.memory, timestamp=timestamp)
        self._policy.checked(record)
        self._last_check = context.position
        if check.fires:
            self._trigger()

    def _trigger(self) -> None:
        cursor = self.cursor
        assert cursor.max_timestamp is not None
        due = TriggeredSamples.pending(cursor)
        fired = TriggerOutcome(len(self.triggers), cursor.position, due.first, due.last, due.number)
        # The order of a run: the policy receives the trigger first, and the outcome after the training.
        self._policy.triggered(fired)
        outcome = self._forecast.outcome(fired, self._positions, [*self._numbers, cursor.num_labelled])
        assert outcome.num_keys is not None
        self.triggers.append(
            SimulatedTrigger(
                fired.trigger_id,
                fired.position,
                cursor.max_timestamp,
                cursor.num_pending,
                outcome.num_keys,
                outcome.num_trained,
                outcome.seconds["total"] if self._forecast.knows_seconds and "total" in outcome.seconds else None,
            )
        )
        self._positions.append(fired.position)
        self._numbers.append(cursor.num_labelled)
        self.cursor = cursor.after_trigger()
        self._policy.ended(outcome)


class Simulation:
    """Many policies, by name, on one stream."""

    def __init__(
        self,
        policies: Mapping[str, SimulatedPolicy],
        shared: SharedEvidence | None = None,
        note: str = "",
        labels: LabelClock | None = None,
    ) -> None:
        """Args: shared: source that all policies share. None: each policy has its own source. note: message about the origin of the trainings'
        seconds. labels: decides which labels arrive with which samples. None: each label arrives with its sample.
        """
        self._labels = labels
        self.policies = policies
        self.note = note
        self._shared = shared
        self.position = 0
        """Number of samples on which all policies have decided."""
        self._newest: int | None = None
        """The largest timestamp of the stream so far; None before the first sample."""

    def process(self, batch: SampleBatch, between: Callable[[], None] = lambda: None) -> None:
        """Let each policy decide on the next samples of the stream. If a policy fails, the other policies continue.

        Args: between: called each time before the simulation calls a service.
        Raises: ModynError: for example, a service cannot be reached; the message names one of the policies with open questions.
        """
        if not len(batch):
            return
        # From the first sample without a label on, the clock decides which samples have labels.
        if self._labels is None and not all_labelled(batch.labels):
            self._labels = LabelClock(0)
        arrivals = Arrivals(batch if self._labels is None else self._labels.take(self.position, batch), self._newest)
        active = {name: policy.process(arrivals) for name, policy in self.policies.items() if not policy.failed}
        while asked := {name: questions for name, steps in active.items() if (questions := self._advance(name, steps))}:
            if self._shared is not None:
                between()
                try:
                    self._shared.prepare([question for questions in asked.values() for question in questions])
                except SERVICE_ERRORS as error:
                    raise type(error)(f"policy '{next(iter(asked))}': {error.message}") from error
            # Policies without questions have decided on the whole batch, or have failed. The other policies continue with the answers.
            active = {name: active[name] for name in asked}
        self.position += len(batch)
        self._newest = arrivals.newest

    def _advance(self, name: str, steps: Iterator[Sequence[DriftQuestion]]) -> Sequence[DriftQuestion]:
        """Let a policy decide up to its next questions, and return the questions; empty if the policy has finished the batch or failed."""
        policy = self.policies[name]
        try:
            return next(steps, ())
        except SERVICE_ERRORS as error:
            raise type(error)(f"policy '{name}': {error.message}") from error
        except Exception as error:  # noqa: BLE001 - policies may be of other packages
            why = error.message if isinstance(error, ModynError) else f"{type(error).__name__}: {error}"
            policy.failed = f"after {policy.cursor.position:,} samples: {why}"
            return ()
