"""Where a run stands in its stream. Pure functions and records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from modyn.config.durations import format_timestamp
from modyn.records import SampleBatch


class Stretch(NamedTuple):
    """What matters of some samples, at least one, to a cursor."""

    number: int
    first: int
    """Smallest timestamp."""
    last: int
    """Largest timestamp."""
    newest: tuple[int, int]
    """(timestamp, key) of the last one."""

    @classmethod
    def of(cls, samples: SampleBatch) -> Self:
        """That of a batch that is not empty."""
        newest = int(samples.timestamps[-1]), int(samples.keys[-1])
        return cls(len(samples), int(samples.timestamps.min()), int(samples.timestamps.max()), newest)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position of a run in its stream: everything that it needs to go on from there. Fields are the columns of table `cursors`.

    "Pending" are the samples since the last trigger that was not online.
    """

    position: int = 0
    """Samples of the stream before this position."""
    last_timestamp: int | None = None
    """Timestamp of the newest sample before it; `last_key` is its key."""
    last_key: int | None = None
    max_timestamp: int | None = None
    """The largest timestamp before it."""
    num_pending: int = 0
    first_pending: int | None = None
    """Smallest timestamp of the pending samples."""
    last_pending: int | None = None
    """Largest timestamp of the pending samples."""
    num_triggers: int = 0
    last_check: int = 0
    """The newest position that the trigger policy has decided on. Nothing is decided before the first sample."""
    stream_ended: bool = False

    @property
    def last(self) -> tuple[int, int] | None:
        """(timestamp, key) of the newest sample before it."""
        return None if self.last_timestamp is None or self.last_key is None else (self.last_timestamp, self.last_key)

    def plus(self, samples: SampleBatch) -> Cursor:
        """Return the cursor after `samples`, if nothing fires in between."""
        return self.after(Stretch.of(samples)) if len(samples) else self

    def after(self, samples: Stretch) -> Cursor:
        """The same, by what matters of the samples."""
        first, last = samples.first, samples.last
        # Written out: `replace` takes several times as long, and a simulation comes here for each policy.
        return Cursor(
            position=self.position + samples.number,
            last_timestamp=samples.newest[0],
            last_key=samples.newest[1],
            max_timestamp=last if self.max_timestamp is None else max(self.max_timestamp, last),
            num_pending=self.num_pending + samples.number,
            first_pending=first if self.first_pending is None else min(self.first_pending, first),
            last_pending=last if self.last_pending is None else max(self.last_pending, last),
            num_triggers=self.num_triggers,
            last_check=self.last_check,
            stream_ended=self.stream_ended,
        )

    def after_steps(self) -> Cursor:
        """The cursor once steps of proactive training were taken: what is pending waits for the next trigger that is not online."""
        return replace(self, num_triggers=self.num_triggers + 1)

    def after_trigger(self) -> Cursor:
        """The cursor once a trigger has taken all pending samples."""
        return replace(self, num_pending=0, first_pending=None, last_pending=None, num_triggers=self.num_triggers + 1)


def explain_end(cursor: Cursor, trigger: Mapping[str, Any], lacking: str = "") -> str:
    """Say which samples of a stream that has ended were not trained on, and why; empty if there is nothing to say.

    Args: trigger: section of the pipeline. lacking: what the policy had too little of.
    """
    if cursor.num_triggers and not cursor.num_pending:
        return f"the trigger policy did not work as it is meant: {lacking}" if lacking else ""
    if cursor.num_triggers:
        interval = next((f"{name}={value}" for name, value in trigger.items() if name.startswith("evaluation_interval")), "")
        is_unchecked = cursor.last_check <= cursor.position - cursor.num_pending
        why = lacking or (f"no check came due since ({interval})" if interval and is_unchecked else "")
        waiting = f"{cursor.num_pending:,} samples wait for the next trigger, which has not fired"
        return f"{waiting}{': ' * bool(why)}{why}; `modyn run --final-trigger` trains on them too"
    if cursor.max_timestamp is None:
        return "the stream held no samples, so nothing was trained; ingest data, or choose another interval"
    first, last = (format_timestamp(when or 0).partition(" ")[0] for when in (cursor.first_pending, cursor.max_timestamp))
    options = ", ".join(
        f"{name}={value}" for name, value in trigger.items() if name != "id" and not isinstance(value, Mapping | list)
    )
    why = f": {lacking}" if lacking else ""
    return (
        f"no trigger fired in {cursor.position} samples from {first} to {last}, "
        f"so nothing was trained{why}; let {trigger['id']}{f' ({options})' if options else ''} fire earlier, replay a longer interval, or train on "
        "them with `modyn run --final-trigger`"
    )
