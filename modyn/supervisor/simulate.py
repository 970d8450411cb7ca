"""Simulate trigger policies on a stream, many at once: where each fires, and what its trainings would have cost. Nothing is trained.

Each policy is driven as `executor.py` drives that of a run, so that it decides as it would there. Calls of services are those of the evidence
source alone. What policies ask about drift is asked for all of them together: each goes on to its next question, and the questions of all are
answered by as few calls as there are models and metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple

import numpy as np

from modyn.errors import CorruptStateError, ModynError
from modyn.evaluator.client import DriftQuestion
from modyn.records import Int64Array, SampleBatch, has_label
from modyn.supervisor.cursor import Cursor, Stretch
from modyn.supervisor.online_steps import TriggeredSamples
from modyn.supervisor.training_forecast import TrainingForecast
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, Trigger, TriggerOutcome, next_position
from modyn.supervisor.triggers.evidence import NO_EVIDENCE, EvidenceSource
from modyn.supervisor.triggers.label_clock import LabelClock, LateBatch
from modyn.supervisor.triggers.shared_evidence import OF_SERVICES, SharedEvidence, SharedLater, UnansweredQuestion

_VERSION: Final = 3
_RECEIVED: Final = 10_000
"""Stretches of a batch that are kept for the next policy."""


class SimulatedTrigger(NamedTuple):
    """A trigger that a policy would have fired. Times are seconds since 1970."""

    trigger_id: int
    position: int
    """Samples of the stream before it."""
    fired_at: int
    """Stream time of the decision: the largest timestamp seen until then."""
    num_pending: int
    """Samples since the trigger before it."""
    num_keys: int
    """Samples of its trigger set, as the selection's rule says."""
    num_trained: int | None
    """Samples trained on, over all epochs; None: the reference run trained nothing here."""
    total_s: float | None
    """Seconds of selection and training; None: not known."""


class Received(NamedTuple):
    """Samples that a policy receives at once."""

    samples: SampleBatch
    stretch: Stretch
    waited: int
    """Sample·seconds that they have waited when the last of them arrives."""


class Arrivals:
    """A batch, and when its samples arrived in stream time: at the largest timestamp up to each. Computed once for all policies."""

    def __init__(self, batch: SampleBatch, newest: int | None) -> None:
        """Args: batch: not empty. newest: largest timestamp before it; None: it is the first."""
        self.batch = batch
        reached = np.maximum.accumulate(batch.timestamps)
        self._newest: Int64Array = reached if newest is None else np.maximum(reached, newest)
        self._base = int(self._newest[0])
        span = int(self._newest[-1]) - self._base
        # Sums of whole seconds; of timestamps from a far future as objects, which do not overflow.
        offsets = self._newest.astype(object if span * len(batch) >= 2**63 else np.int64) - self._base
        self._sums = np.concatenate([[0], np.cumsum(offsets)])
        self._received: dict[tuple[int, int], Received] = {}

    @property
    def newest(self) -> int:
        """The largest timestamp so far."""
        return int(self._newest[-1])

    def received(self, start: int, stop: int) -> Received:
        """Samples [start, stop) of the batch, at least one; most of many policies receive the same ones."""
        if (start, stop) not in self._received:
            samples = self.batch.slice(start, stop)
            if len(self._received) >= _RECEIVED:
                self._received.clear()
            self._received[start, stop] = Received(samples, Stretch.of(samples), self.waited(start, stop))
        return self._received[start, stop]

    def waited(self, start: int, stop: int) -> int:
        """Sample·seconds that samples whose labels come with [start, stop) of the batch, at least one, have waited when the last of these arrives."""
        if isinstance(self.batch, LateBatch):
            came_at = self.batch.slice(start, stop).came_at
            return sum(int(self._newest[stop - 1]) - at for at in came_at.tolist())
        last = int(self._newest[stop - 1]) - self._base
        return (stop - start) * last - int(self._sums[stop] - self._sums[start])


class SimulatedPolicy:
    """One policy on its way through the stream. It is asked and informed as in a run, and `trained` is answered by a forecast."""

    def __init__(self, policy: Trigger, forecast: TrainingForecast, source: EvidenceSource = NO_EVIDENCE) -> None:
        """Args: source: answers what the policy asks when it checks; SharedEvidence: with what others ask."""
        self._policy = policy
        self._forecast = forecast
        self._source = SharedLater(source) if isinstance(source, SharedEvidence) else source
        self.cursor = Cursor()
        self._last_check = 0
        """The newest position that the policy has decided on."""
        self.triggers: list[SimulatedTrigger] = []
        self._positions: list[int] = []
        """Of `triggers`."""
        self._numbers: list[int] = []
        """How many samples had labels at each of them."""
        self.num_checks = 0
        """Checks that looked at data."""
        self.waiting = 0
        """Sample·seconds of stream time that samples have waited for their trigger: the area under the number of samples waiting."""
        self._unanswered: DriftQuestion
        """That the check before has ended with."""
        self.failed = ""
        """Why it has ended before the stream; empty: it has not."""

    def process(self, arrivals: Arrivals) -> Iterator[DriftQuestion]:
        """Decide on a batch. Yields what is to be answered by the SharedEvidence before it goes on. Raises what the policy raises."""
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
            while (fires := self._check()) is None:
                yield self._unanswered
            if fires:
                self._trigger()

    def _receive(self, arrivals: Arrivals, start: int, stop: int) -> None:
        received, cursor = arrivals.received(start, stop), self.cursor
        self._policy.observe(received.samples)
        self.cursor = after = cursor.after(received.stretch)
        assert after.max_timestamp is not None
        since = 0 if cursor.max_timestamp is None else after.max_timestamp - cursor.max_timestamp
        self.waiting += cursor.num_pending * since + received.waited

    def _check(self) -> bool | None:
        """Whether it fires; None: it asks what is not answered yet, and is to be asked again."""
        cursor = self.cursor
        try:
            check = self._policy.check(CheckContext(cursor.position, cursor.num_pending, self._source))
        except UnansweredQuestion as unanswered:
            self._unanswered = unanswered.question
            return None
        self.num_checks += bool(check.evidence)
        self._policy.checked(
            CheckRecord(cursor.position, check.fires, check.evidence, memory=check.memory, timestamp=cursor.max_timestamp)
        )
        self._last_check = cursor.position
        return check.fires

    def _trigger(self) -> None:
        cursor = self.cursor
        assert cursor.max_timestamp is not None
        due = TriggeredSamples.pending(cursor)
        fired = TriggerOutcome(len(self.triggers), cursor.position, due.first, due.last, due.number)
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

    def state(self) -> dict[str, Any]:
        """What a simulation that is resumed needs, as JSON, between batches."""
        return {
            "policy": None if self.failed else self._policy.state(),
            "cursor": asdict(self.cursor),
            "last_check": self._last_check,
            "triggers": self.triggers,
            "numbers": self._numbers,
            "num_checks": self.num_checks,
            "waiting": self.waiting,
            "failed": self.failed,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`. Raises: CorruptStateError."""
        self.failed = state["failed"]
        if not self.failed:
            self._policy.load_state(state["policy"])
        self.cursor, self._last_check = Cursor(**state["cursor"]), state["last_check"]
        self.triggers = [SimulatedTrigger(*values) for values in state["triggers"]]
        self._positions = [trigger.position for trigger in self.triggers]
        self._numbers = list(state["numbers"])
        self.num_checks, self.waiting = state["num_checks"], state["waiting"]


class Simulation:
    """Many policies, by name, on one stream."""

    def __init__(
        self,
        policies: Mapping[str, SimulatedPolicy],
        shared: SharedEvidence | None = None,
        note: str = "",
        labels: LabelClock | None = None,
    ) -> None:
        """Args: shared: the source of the policies, if it is one. note: what seconds of trainings rest on. labels: says which come with which
        samples; None: each with its sample."""
        self.labels = labels
        self.policies = policies
        self.note = note
        self._shared = shared
        self.position = 0
        """Samples that all of them have decided on."""
        self.last: tuple[int, int] | None = None
        """(timestamp, key) of the newest of them."""
        self.newest: int | None = None
        """The largest timestamp of the stream so far; None before the first sample."""
        self.first_waiting: int | None = None
        """See `LabelClock.first_waiting`."""

    def process(self, batch: SampleBatch, between: Callable[[], None] = lambda: None) -> None:
        """Let each policy decide on the next samples of the stream. One that fails is not asked again, and the others go on.

        Args: between: called while the policies stand at different samples, before services are asked.
        Raises: ModynError: of a service that cannot be reached, say, with the name of a policy that asked it.
        """
        if not len(batch):
            return
        if self.labels is None and not has_label(batch.labels).all():
            self.labels = LabelClock(0)
        arrivals = Arrivals(batch if self.labels is None else self.labels.take(self.position, batch), self.newest)
        going = {name: policy.process(arrivals) for name, policy in self.policies.items() if not policy.failed}
        while asked := {name: question for name, steps in going.items() if (question := self._go_on(name, steps))}:
            assert self._shared is not None, "questions are left open for shared evidence alone"
            between()
            try:
                self._shared.answer(list(asked.values()))
            except OF_SERVICES as error:
                raise type(error)(f"policy '{next(iter(asked))}': {error.message}") from error
            going = {name: going[name] for name in asked}
        self.position += len(batch)
        self.last = int(batch.timestamps[-1]), int(batch.keys[-1])
        self.newest = arrivals.newest
        self.first_waiting = None if self.labels is None else self.labels.first_waiting

    def _go_on(self, name: str, steps: Iterator[DriftQuestion]) -> DriftQuestion | None:
        """Let a policy decide up to its next question; None: it has decided on all of the batch, or failed."""
        policy = self.policies[name]
        try:
            return next(steps, None)
        except OF_SERVICES as error:
            raise type(error)(f"policy '{name}': {error.message}") from error
        except Exception as error:  # noqa: BLE001 - policies may be of other packages
            why = error.message if isinstance(error, ModynError) else f"{type(error).__name__}: {error}"
            policy.failed = f"after {policy.cursor.position:,} samples: {why}"
            return None

    def state(self) -> dict[str, Any]:
        """All that the rest of the stream depends on, as JSON, between batches."""
        return {
            "version": _VERSION,
            "position": self.position,
            "last": self.last,
            "newest": self.newest,
            "first_waiting": self.first_waiting,
            "policies": {name: policy.state() for name, policy in self.policies.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()` with the same policies; `labels` are restored by their owner. Raises: CorruptStateError."""
        if state.get("version") != _VERSION or state.get("policies", {}).keys() != self.policies.keys():
            raise CorruptStateError("this is no state of a simulation of these policies by this version")
        for name, policy in self.policies.items():
            policy.load_state(state["policies"][name])
        self.position, self.newest, self.first_waiting = state["position"], state["newest"], state["first_waiting"]
        self.last = None if state["last"] is None else (state["last"][0], state["last"][1])
