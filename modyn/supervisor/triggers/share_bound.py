"""Delays the triggers of a policy, so that steps of proactive training take at most a share of the time: `online.max_share`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from modyn.config.base import Section
from modyn.evaluator.client import DriftQuestion
from modyn.records import SampleBatch
from modyn.supervisor.evidence import Evidence, find
from modyn.supervisor.triggers.base import Check, CheckContext, CheckRecord, Trigger, TriggerOutcome, read_state
from modyn.supervisor.triggers.dynamic_schedule import P99
from modyn.supervisor.triggers.measures.questions import LoadQuestion
from modyn.supervisor.triggers.measures.training_clock import TrainingClock
from modyn.tolerance import exceeds

SINCE = "steps_since_s"
"""Evidence: seconds since the last training ended. The threshold is the wait, and the number is unusual when the wait is over."""


class ShareBound(Trigger):
    """Fires when another policy fires, but not until T · (1 / `max_share` - 1) seconds after a step batch that took T seconds.

    If the policy has fired during the wait, the first check after the wait fires, even if the policy says no at this check. This check does not fire
    while predictions are too slow. If `trigger` fires during the wait, its training uses the waiting samples, and the delayed firing is dropped.

    >>> import numpy as np
    >>> from modyn.supervisor.triggers import build_trigger
    >>> from modyn.testing.decisions import decide  # each of its trainings takes 1.5 s
    >>> policy = build_trigger({"id": "DataAmountTrigger", "num_samples": 2})
    >>> times = np.arange(12)  # one sample a second
    >>> checks = decide(ShareBound(policy, max_share=0.25), [SampleBatch(times, times, times)])
    >>> [(check.position, check.fires) for check in checks]
    [(2, True), (4, False), (6, False), (8, True), (10, False), (12, False)]
    """

    def __init__(self, policy: Trigger, max_share: float) -> None:
        """Args: max_share: in (0, 1)."""
        super().__init__(Section(), policy.context)
        self._policy, self._max_share = policy, max_share
        self.late_span_s = policy.late_span_s
        self._clock = TrainingClock(online=policy.context.online)
        self._due = False
        """Whether the policy has fired since the last trigger."""

    @property
    def label_delay(self) -> int:
        """The label delay of the bounded policy."""
        return self._policy.label_delay

    @property
    def sees_next_sample(self) -> bool:
        """Whether the policy needs the sample after a position."""
        return self._policy.sees_next_sample

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """Return the position at which the policy decides."""
        return self._policy.next_check(batch, start)

    def questions(self, context: CheckContext) -> Sequence[DriftQuestion]:
        """Return the questions of the policy."""
        return self._policy.questions(context)

    def check(self, context: CheckContext) -> Check:
        """Ask the policy, and decide by the rule that the class documents."""
        asked = self._policy.check(context)
        if not asked.fires and not self._due:
            return replace(asked, memory=_memory(asked))
        since, rest = self._clock.since_s(context.source.ask(LoadQuestion())), self._clock.rest_s(self._max_share)
        is_over, p99 = not exceeds(rest, since), find(asked.evidence, P99)
        # Predictions have priority: delayed steps also wait while predictions are too slow.
        fires = is_over and not (p99 is not None and p99.unusual)
        return Check(fires, [*asked.evidence, Evidence(SINCE, since, rest, is_over)], _memory(asked))

    def observe(self, samples: SampleBatch) -> None:
        """Update the stream time."""
        self._policy.observe(samples)
        self._clock.observe(samples)

    def checked(self, record: CheckRecord) -> None:
        """Pass the policy its own verdict, and store whether the policy has fired."""
        own = [one for one in record.evidence if one.series != SINCE]
        fired = bool(record.memory["fires"])
        self._policy.checked(replace(record, fires=fired, evidence=own, memory=record.memory["policy"]))
        self._due = self._due or fired

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Start the wait again."""
        self._policy.triggered(outcome)
        self._clock.triggered()
        self._due = False

    def ended(self, outcome: TriggerOutcome) -> None:
        """Record the seconds of the training."""
        self._policy.ended(outcome)
        self._clock.ended(outcome)

    def warning(self) -> str | None:
        """Return the warning of the policy."""
        return self._policy.warning()

    def end_warning(self) -> str:
        """Return what the policy lacks."""
        return self._policy.end_warning()

    def state(self) -> dict[str, Any]:
        """Return the state of the policy and of the wait."""
        return {"version": 1, "policy": self._policy.state(), "clock": self._clock.state(), "due": self._due}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state. Raises: CorruptStateError."""
        values = read_state("online.max_share", state, 1, {"policy": (dict,), "clock": (dict,), "due": (bool,)})
        self._policy.load_state(values["policy"])
        self._clock.load_state(values["clock"])
        self._due = values["due"]


def _memory(asked: Check) -> dict[str, Any]:
    return {"fires": asked.fires, "policy": dict(asked.memory)}
