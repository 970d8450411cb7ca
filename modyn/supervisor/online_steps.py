"""When a run takes the steps of proactive training that are due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from modyn.config.base import Problem, Severity, check_section
from modyn.config.online import ONLINE, OnlineConfig, load_online
from modyn.config.pipeline import Pipeline
from modyn.errors import CorruptStateError
from modyn.records import SampleBatch
from modyn.supervisor.cursor import Cursor, Stretch
from modyn.supervisor.decisions import TriggerDecisions
from modyn.supervisor.triggers import Trigger, TriggerContext, build_trigger, check_trigger_section
from modyn.supervisor.triggers.base import TriggerOutcome
from modyn.supervisor.triggers.share_bound import ShareBound


@dataclass(frozen=True, slots=True)
class TriggeredSamples:
    """The samples whose labels have come since the last trigger, that a trigger takes."""

    number: int
    stop: int
    """Samples with labels before the last of them, itself included."""
    first: int
    """Smallest timestamp."""
    last: int
    """Largest timestamp."""

    @classmethod
    def pending(cls, cursor: Cursor) -> TriggeredSamples:
        """All that are pending where a cursor stands; where none is, with the stream's time."""
        assert cursor.max_timestamp is not None
        now = cursor.max_timestamp
        first, last = (now if time is None else time for time in (cursor.first_pending, cursor.last_pending))
        return cls(cursor.num_pending, cursor.num_labelled, first, last)


class OnlineSteps:
    """Asks `online.trigger` of a run, and counts the samples since the last trigger of either kind: those that the next steps are over.

    The policy hears of triggers and models of either kind, so it looks at the newest model and weighs what waits for the next steps.
    """

    def __init__(self, policy: Trigger, decisions: TriggerDecisions, max_samples: int | None = None) -> None:
        """Args: decisions: of this policy. max_samples: new samples of a stretch of steps; None: all that wait."""
        self.policy = policy
        self._decisions = decisions
        self._max_samples = max_samples
        self.pending = Cursor()
        """Of which only what is pending and the position of the last check count. With `max_samples`, the timestamps are of what has come since the
        last trigger, without what that one has left."""

    @classmethod
    def of(cls, pipeline: Pipeline, decisions: Callable[[Trigger], TriggerDecisions]) -> Self | None:
        """Those of a pipeline; None: it takes none. Args: decisions: makes those of the policy. Raises: ConfigError."""
        if (config := load_online(pipeline.section(ONLINE))) is None:
            return None
        context = TriggerContext(pipeline.training.seed, online=True, label_delay=pipeline.label_delay)
        policy = build_trigger(config.trigger, context, f"{ONLINE}.trigger")
        if config.max_share < 1:
            policy = ShareBound(policy, config.max_share)
        return cls(policy, decisions(policy), config.max_samples)

    @property
    def last_check(self) -> int:
        """The newest position that was decided on."""
        return self.pending.last_check

    @property
    def check_seconds(self) -> float:
        """That checks have taken so far."""
        return self._decisions.seconds

    @property
    def warning(self) -> str:
        """What the policy warns of, and that more waits than a stretch takes; empty: nothing."""
        if self.pending.num_pending <= self._num_taken:
            return self._decisions.warning
        behind = (
            f"more than {self._max_samples:,} samples wait for steps of proactive training (online.max_samples): these are behind the stream; let "
            "online.trigger fire more often, or raise online.max_samples or online.max_share"
        )
        return "\n".join(filter(None, (self._decisions.warning, behind)))

    @property
    def _num_taken(self) -> int:
        """Samples that the next stretch takes: the first of those that wait."""
        return min(self.pending.num_pending, self._max_samples or self.pending.num_pending)

    def due(self, cursor: Cursor, read: Callable[[int, int], SampleBatch]) -> TriggeredSamples:
        """The samples that a stretch takes which begins where the run stands, at least one; the others wait for the next one.

        Args: cursor: of the run. read: returns samples with labels from a number on, at most as many as asked for.
        """
        if self._max_samples is None:
            kept = ("num_pending", "first_pending", "last_pending")
            return TriggeredSamples.pending(replace(cursor, **{name: getattr(self.pending, name) for name in kept}))
        at = cursor.num_labelled - self.pending.num_pending
        stop, first, last = at + self._num_taken, list[int](), list[int]()
        while at < stop:
            samples = read(at, stop - at)
            first.append(int(samples.timestamps.min()))
            last.append(int(samples.timestamps.max()))
            at += len(samples)
        return TriggeredSamples(self._num_taken, stop, min(first), max(last))

    def observe(self, samples: SampleBatch) -> None:
        """Receive the next samples of the stream, at least one, or labels that come between two of them."""
        self._decisions.observe(samples)
        self.pending = self.pending.after(Stretch.of(samples)) if len(samples) else self.pending.with_labels(samples.labelled)

    def check(self, cursor: Cursor, *, has_model: bool) -> bool:
        """Whether steps are due where the cursor stands. Args: has_model: there is one that they go on from. Raises: as `TriggerDecisions.check`."""
        may_fire = has_model and self.pending.num_pending > 0
        fires = self._decisions.check(replace(cursor, num_pending=self.pending.num_pending), may_fire=may_fire)
        self.pending = replace(self.pending, last_check=cursor.position)
        return fires

    def refuse_missed(self, cursor: Cursor) -> None:
        """As `TriggerDecisions.refuse_missed`."""
        self._decisions.refuse_missed(cursor)

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Begin anew: a trigger of either kind has taken what was pending, or a stretch of steps the first of it."""
        self.policy.triggered(outcome)
        left = self.pending.num_pending - self._num_taken if outcome.online else 0
        self.pending = replace(self.pending.after_trigger(), num_pending=left)

    def ended(self, outcome: TriggerOutcome) -> None:
        """Go on behind a trigger of either kind, with the model that it has made, if it made one."""
        self.policy.ended(outcome)

    def state(self) -> dict[str, Any]:
        """What survives a restart, as JSON."""
        kept = ("num_pending", "first_pending", "last_pending", "last_check")
        return {"version": 1, "policy": self.policy.state(), **{name: getattr(self.pending, name) for name in kept}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`. Raises CorruptStateError."""
        values = dict(state)
        if values.pop("version", None) != 1 or "policy" not in values:
            raise CorruptStateError(
                f"the saved state of section {ONLINE} is not readable: found {dict(state)}; submit the run again"
            )
        self.policy.load_state(values.pop("policy"))
        self.pending = replace(self.pending, **values)
        self._decisions.forget(self.last_check)


def check_online(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake in the section `online` of a pipeline, but for how it draws from the history, which the selector knows."""
    section = pipeline.get(ONLINE)
    if section is None:
        return []
    found = check_section(OnlineConfig, section, ONLINE)
    trigger = section.get("trigger") if isinstance(section, Mapping) else None
    if isinstance(trigger, Mapping):
        found += check_trigger_section(trigger, f"{ONLINE}.trigger")
        if trigger.get("latency_limit_ms") is not None and section.get("max_samples") is None:
            why = (
                "what came while steps paused is one stretch, which does not stop for predictions: set it to what is quickly done"
            )
            found.append(Problem(f"{ONLINE}.max_samples", why, Severity.WARNING))
    return found
