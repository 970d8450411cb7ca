"""When a run takes the steps of proactive training that are due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from modyn.config.base import Problem, check_section, load_section
from modyn.config.online import ONLINE, OnlineConfig
from modyn.config.pipeline import Pipeline
from modyn.errors import CorruptStateError
from modyn.records import SampleBatch
from modyn.supervisor.cursor import Cursor, Stretch
from modyn.supervisor.decisions import TriggerDecisions
from modyn.supervisor.triggers import Trigger, TriggerContext, build_trigger, check_trigger_section
from modyn.supervisor.triggers.base import TriggerOutcome


def policy_of_steps(pipeline: Pipeline) -> Trigger | None:
    """The policy `online.trigger` of a pipeline; None: it takes no steps. Raises: ConfigError."""
    if not (section := pipeline.section(ONLINE)):
        return None
    trigger = load_section(OnlineConfig, section, ONLINE).trigger
    return build_trigger(trigger, TriggerContext(pipeline.training.seed, online=True), f"{ONLINE}.trigger")


class OnlineSteps:
    """Asks `online.trigger` of a run, and counts the samples since the last trigger of either kind: those that the next steps are over.

    The policy hears of triggers and models of either kind, so it looks at the newest model and weighs what waits for the next steps.
    """

    def __init__(self, policy: Trigger, decisions: TriggerDecisions) -> None:
        """Args: decisions: of this policy."""
        self.policy = policy
        self._decisions = decisions
        self.pending = Cursor()
        """Of which only what is pending and the position of the last check count."""

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
        """What the policy warns of; empty: nothing."""
        return self._decisions.warning

    def observe(self, samples: SampleBatch) -> None:
        """Receive the next samples of the stream, at least one."""
        self._decisions.observe(samples)
        self.pending = self.pending.after(Stretch.of(samples))

    def check(self, cursor: Cursor) -> bool:
        """Whether steps are due where the cursor stands. Raises: as `TriggerDecisions.check`."""
        fires = self._decisions.check(replace(cursor, num_pending=self.pending.num_pending))
        self.pending = replace(self.pending, last_check=cursor.position)
        return fires and self.pending.num_pending > 0

    def refuse_missed(self, cursor: Cursor) -> None:
        """As `TriggerDecisions.refuse_missed`."""
        self._decisions.refuse_missed(cursor)

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Begin anew: a trigger of either kind has taken what was pending."""
        self.policy.triggered(outcome)
        self.pending = self.pending.after_trigger()

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
    return found
