"""Puts off what a policy fires, so that steps of proactive training take at most a share of the time: `online.max_share`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from modyn.config.base import Section
from modyn.records import SampleBatch
from modyn.supervisor.triggers.base import Check, CheckContext, CheckRecord, Trigger, TriggerOutcome, read_state
from modyn.supervisor.triggers.dynamic_schedule import P99
from modyn.supervisor.triggers.training_clock import TrainingClock
from modyn.tolerance import exceeds

SINCE = "steps_since_s"
"""Evidence: seconds since the last training ended, with `.threshold`, the wait, and `.unusual`, 1 where that is over."""


class ShareBound(Trigger):
    """Fires what another policy fires, but after a stretch of steps that took T seconds not before T · (1 / `max_share` - 1) seconds have passed.

    What the policy has fired for meanwhile is made up for at its first check behind that, whatever the policy says there, unless it finds that
    predictions are too slow. A trigger of the other kind takes what waits, so nothing is to be made up for then.
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
        """The delay of the bounded policy."""
        return self._policy.label_delay

    @property
    def sees_next_sample(self) -> bool:
        """Whether the policy does."""
        return self._policy.sees_next_sample

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """Where the policy decides."""
        return self._policy.next_check(batch, start)

    def check(self, context: CheckContext) -> Check:
        """See the class."""
        asked = self._policy.check(context)
        if not asked.fires and not self._due:
            return replace(asked, memory=_memory(asked))
        since, rest = self._clock.since_s(context.source.load()), self._clock.rest_s(self._max_share)
        # What was put off waits on while predictions are too slow: they go first.
        is_over = not exceeds(rest, since)
        fires = is_over and not asked.evidence.get(f"{P99}.unusual")
        evidence = {SINCE: since, f"{SINCE}.threshold": rest, f"{SINCE}.unusual": float(is_over)}
        return Check(fires, {**asked.evidence, **evidence}, _memory(asked))

    def observe(self, samples: SampleBatch) -> None:
        """Let the stream's time go on."""
        self._policy.observe(samples)
        self._clock.observe(samples)

    def checked(self, record: CheckRecord) -> None:
        """Give the policy its own verdict, and keep whether it waits."""
        own = {name: value for name, value in record.evidence.items() if not name.startswith(SINCE)}
        fired = bool(record.memory["fires"])
        self._policy.checked(replace(record, fires=fired, evidence=own, memory=record.memory["policy"]))
        self._due = self._due or fired

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Wait anew from here."""
        self._policy.triggered(outcome)
        self._clock.triggered()
        self._due = False

    def ended(self, outcome: TriggerOutcome) -> None:
        """Learn how long it took."""
        self._policy.ended(outcome)
        self._clock.ended(outcome)

    def warning(self) -> str | None:
        """What the policy warns of."""
        return self._policy.warning()

    def lacking(self) -> str:
        """What the policy lacks."""
        return self._policy.lacking()

    def state(self) -> dict[str, Any]:
        """That of the policy, and of the wait."""
        return {"version": 1, "policy": self._policy.state(), "clock": self._clock.state(), "due": self._due}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore it. Raises: CorruptStateError."""
        values = read_state("online.max_share", state, 1, {"policy": (dict,), "clock": (dict,), "due": (bool,)})
        self._policy.load_state(values["policy"])
        self._clock.load_state(values["clock"])
        self._due = values["due"]


def _memory(asked: Check) -> dict[str, Any]:
    return {"fires": asked.fires, "policy": dict(asked.memory)}
