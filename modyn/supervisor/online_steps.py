"""When a run takes the steps of proactive training that are due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from modyn.config.base import Problem, check_section, load_section
from modyn.config.online import ONLINE, OnlineConfig
from modyn.config.pipeline import Pipeline
from modyn.errors import CorruptStateError
from modyn.records import SampleBatch
from modyn.supervisor.cursor import Cursor, Stretch
from modyn.supervisor.triggers import CheckContext, TriggerContext, build_trigger, check_trigger_section
from modyn.supervisor.triggers.base import CheckRecord

DECIDE_BY_ARITHMETIC: Final = ("DataAmountTrigger", "TimeTrigger")
"""The policies that may say when steps are taken: their verdicts need no journal, for they are the same when a run is resumed."""


class OnlineSteps:
    """Asks `online.trigger` of a run, and counts the samples since the last trigger of either kind: those that the next steps are over."""

    def __init__(self, pipeline: Pipeline) -> None:
        config = load_section(OnlineConfig, pipeline.section(ONLINE), ONLINE)
        self.policy = build_trigger(config.trigger, TriggerContext(pipeline.training.seed), f"{ONLINE}.trigger")
        self.pending = Cursor()
        """Of which only what is pending and the position of the last check count."""

    @property
    def last_check(self) -> int:
        """The newest position that was decided on."""
        return self.pending.last_check

    def observe(self, samples: SampleBatch) -> None:
        """Receive the next samples of the stream, at least one."""
        self.policy.observe(samples)
        self.pending = self.pending.after(Stretch.of(samples))

    def check(self, cursor: Cursor) -> bool:
        """Whether steps are due where the cursor stands."""
        verdict = self.policy.check(CheckContext(cursor.position, self.pending.num_pending))
        self.policy.checked(CheckRecord(cursor.position, verdict.fires, timestamp=cursor.max_timestamp))
        self.pending = replace(self.pending, last_check=cursor.position)
        return verdict.fires and self.pending.num_pending > 0

    def triggered(self) -> None:
        """Begin anew: a trigger of either kind has taken what was pending."""
        self.pending = self.pending.after_trigger()

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


def check_online(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake in the section `online` of a pipeline, but for how it draws from the history, which the selector knows."""
    section = pipeline.get(ONLINE)
    if section is None:
        return []
    found = check_section(OnlineConfig, section, ONLINE)
    trigger = section.get("trigger") if isinstance(section, Mapping) else None
    if isinstance(trigger, Mapping):
        path = f"{ONLINE}.trigger"
        found += check_trigger_section(trigger, path)
        if isinstance(id_ := trigger.get("id"), str) and id_ not in DECIDE_BY_ARITHMETIC:
            allowed = " or ".join(DECIDE_BY_ARITHMETIC)
            found.append(Problem(f"{path}.id", f"{id_} looks at data, which is not available here yet; choose {allowed}"))
    return found
