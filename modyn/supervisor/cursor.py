"""Where a run stands in its stream. Pure functions and records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from modyn.config.durations import format_timestamp
from modyn.records import SampleBatch


class Stretch(NamedTuple):
    """What matters of some samples, at least one, and of the labels that come with them, to a cursor."""

    number: int
    last: int
    """Largest timestamp."""
    newest: tuple[int, int]
    """(timestamp, key) of the last one."""
    labelled: int
    """Samples whose labels come."""
    first_labelled: int
    """Smallest timestamp of these, and the largest; 0: there are none."""
    last_labelled: int

    @classmethod
    def of(cls, samples: SampleBatch) -> Self:
        """That of a batch that is not empty."""
        newest = int(samples.timestamps[-1]), int(samples.keys[-1])
        first, last = int(samples.timestamps.min()), int(samples.timestamps.max())
        labelled = samples.labelled
        if labelled is samples:
            return cls(len(samples), last, newest, len(samples), first, last)
        return cls(len(samples), last, newest, *labels_of(labelled))


def labels_of(labelled: SampleBatch) -> tuple[int, int, int]:
    """How many samples these are, and their smallest and largest timestamp; 0: there are none."""
    if not len(labelled):
        return 0, 0, 0
    return len(labelled), int(labelled.timestamps.min()), int(labelled.timestamps.max())


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position of a run in its stream: everything that it needs to go on from there. Fields are the columns of table `cursors`.

    "Pending" are the samples whose labels have come since the last trigger that was not online.
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
    num_waiting: int = 0
    """Samples before it whose labels have not come."""
    next_label: int = 0
    """Labels that came after their samples, by storage's count, before those that are still to be looked at."""
    first_waiting: int | None = None
    """No sample before this position waits for a label that comes by the clock; None: none does."""

    @property
    def num_labelled(self) -> int:
        """Samples before it whose labels have come: what trigger sets are selected from."""
        return self.position - self.num_waiting

    @property
    def last(self) -> tuple[int, int] | None:
        """(timestamp, key) of the newest sample before it."""
        return None if self.last_timestamp is None or self.last_key is None else (self.last_timestamp, self.last_key)

    def plus(self, samples: SampleBatch) -> Cursor:
        """Return the cursor after `samples`, if nothing fires in between."""
        return self.after(Stretch.of(samples)) if len(samples) else self

    def after(self, samples: Stretch) -> Cursor:
        """The same, by what matters of the samples."""
        last = samples.last
        first_pending, last_pending = self._pending_with(samples.labelled, samples.first_labelled, samples.last_labelled)
        # Written out: `replace` takes several times as long, and a simulation comes here for each policy.
        return Cursor(
            position=self.position + samples.number,
            last_timestamp=samples.newest[0],
            last_key=samples.newest[1],
            max_timestamp=last if self.max_timestamp is None else max(self.max_timestamp, last),
            num_pending=self.num_pending + samples.labelled,
            first_pending=first_pending,
            last_pending=last_pending,
            num_triggers=self.num_triggers,
            last_check=self.last_check,
            stream_ended=self.stream_ended,
            num_waiting=self.num_waiting + samples.number - samples.labelled,
            first_waiting=self.first_waiting,
            next_label=self.next_label,
        )

    def with_labels(self, labelled: SampleBatch) -> Cursor:
        """The same place, once the labels of these samples have come."""
        number, first, last = labels_of(labelled)
        first_pending, last_pending = self._pending_with(number, first, last)
        return replace(
            self,
            num_pending=self.num_pending + number,
            first_pending=first_pending,
            last_pending=last_pending,
            num_waiting=self.num_waiting - number,
        )

    def _pending_with(self, number: int, first: int, last: int) -> tuple[int | None, int | None]:
        if not number:
            return self.first_pending, self.last_pending
        return (
            first if self.first_pending is None else min(self.first_pending, first),
            last if self.last_pending is None else max(self.last_pending, last),
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
    waiting = _without_labels(cursor)
    if cursor.num_triggers and not cursor.num_pending:
        lacks = f"the trigger policy did not work as it is meant: {lacking}" if lacking else ""
        return "; ".join(filter(None, (waiting, lacks)))
    if cursor.num_triggers:
        interval = next((f"{name}={value}" for name, value in trigger.items() if name.startswith("evaluation_interval")), "")
        is_unchecked = cursor.last_check <= cursor.position - cursor.num_pending
        why = lacking or (f"no check came due since ({interval})" if interval and is_unchecked else "")
        pending = f"{cursor.num_pending:,} samples wait for the next trigger, which has not fired"
        advice = f"{pending}{': ' * bool(why)}{why}; `modyn run --final-trigger` trains on them too"
        return "; ".join(filter(None, (waiting, advice)))
    if cursor.max_timestamp is None:
        return "the stream held no samples, so nothing was trained; ingest data, or choose another interval"
    if not cursor.num_triggers and not cursor.num_labelled:
        return f"{waiting}, so nothing was trained{': ' * bool(lacking)}{lacking}"
    first, last = (format_timestamp(when or 0).partition(" ")[0] for when in (cursor.first_pending, cursor.max_timestamp))
    options = ", ".join(
        f"{name}={value}" for name, value in trigger.items() if name != "id" and not isinstance(value, Mapping | list)
    )
    why = f": {lacking}" if lacking else ""
    after_waiting = f"{waiting}; " if waiting else ""
    return (
        f"{after_waiting}no trigger fired in {cursor.position} samples from {first} to {last}, "
        f"so nothing was trained{why}; let {trigger['id']}{f' ({options})' if options else ''} fire earlier, replay a longer interval, or train on "
        "them with `modyn run --final-trigger`"
    )


def _without_labels(cursor: Cursor) -> str:
    """Say how many samples no training has, since their labels have not come; empty: all labels have come."""
    if not cursor.num_waiting:
        return ""
    return f"the labels of {cursor.num_waiting:,} of {cursor.position:,} samples have not come until the end of the stream, so no training has them"
