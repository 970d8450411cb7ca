"""Position of a run in its stream. Pure functions and records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from modyn.config.durations import format_timestamp
from modyn.records import SampleBatch


class SamplesSummary(NamedTuple):
    """Summary of one or more consecutive samples, and of the labels that arrive with these samples. The summary is the argument of `Cursor.after`."""

    number: int
    last: int
    """Largest timestamp."""
    newest: tuple[int, int]
    """(timestamp, key) of the last sample."""
    labelled: int
    """Number of samples whose labels arrive with the samples."""
    first_labelled: int
    """Smallest timestamp of the samples that arrive with their labels; 0 if there is no such sample."""
    last_labelled: int
    """Largest timestamp of the samples that arrive with their labels; 0 if there is no such sample."""

    @classmethod
    def of(cls, samples: SampleBatch) -> Self:
        """Summarise a batch that is not empty."""
        newest = int(samples.timestamps[-1]), int(samples.keys[-1])
        first, last = int(samples.timestamps.min()), int(samples.timestamps.max())
        labelled = samples.labelled
        if labelled is samples:
            return cls(len(samples), last, newest, len(samples), first, last)
        return cls(len(samples), last, newest, *labels_of(labelled))


def labels_of(labelled: SampleBatch) -> tuple[int, int, int]:
    """Return the number of samples, the smallest timestamp and the largest timestamp; all three are 0 if there are no samples."""
    if not len(labelled):
        return 0, 0, 0
    return len(labelled), int(labelled.timestamps.min()), int(labelled.timestamps.max())


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position of a run in its stream, from which the run can resume. The fields are columns of the table `cursors`.

    A sample is pending if its label has arrived since the last trigger that was not online.
    """

    position: int = 0
    """Number of samples of the stream before this position."""
    last_timestamp: int | None = None
    """Timestamp of the newest sample before the position; `last_key` is the key of the same sample."""
    last_key: int | None = None
    max_timestamp: int | None = None
    """The largest timestamp before the position."""
    num_pending: int = 0
    first_pending: int | None = None
    """Smallest timestamp of the pending samples."""
    last_pending: int | None = None
    """Largest timestamp of the pending samples."""
    num_triggers: int = 0
    last_check: int = 0
    """The newest position at which the trigger policy has decided; 0 before the first decision."""
    stream_ended: bool = False
    num_waiting: int = 0
    """Number of samples before the position whose labels have not arrived."""
    next_label: int = 0
    """Number of the next late label of storage to read."""
    first_waiting: int | None = None
    """Position of the first sample that may wait for a label which arrives by stream time; None if there is no such sample."""

    @property
    def num_labelled(self) -> int:
        """Number of samples before the position whose labels have arrived. Trigger sets are selected from these samples."""
        return self.position - self.num_waiting

    @property
    def last(self) -> tuple[int, int] | None:
        """(timestamp, key) of the newest sample before the position."""
        return None if self.last_timestamp is None or self.last_key is None else (self.last_timestamp, self.last_key)

    def plus(self, samples: SampleBatch) -> Cursor:
        """Return the cursor after `samples`, if no trigger fires among the samples."""
        return self.after(SamplesSummary.of(samples)) if len(samples) else self

    def after(self, samples: SamplesSummary) -> Cursor:
        """Return the cursor after these samples, if no trigger fires among the samples."""
        last = samples.last
        first_pending, last_pending = self._pending_with(samples.labelled, samples.first_labelled, samples.last_labelled)
        # `replace` would take several times as long, and a simulation calls this method for each policy.
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
        """Return the cursor after the labels of these samples have arrived."""
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
        """Return the cursor after a trigger of online steps. Pending samples stay pending, because the next retraining trains on them too."""
        return replace(self, num_triggers=self.num_triggers + 1)

    def after_trigger(self) -> Cursor:
        """Return the cursor after a retraining: no sample is pending."""
        return replace(self, num_pending=0, first_pending=None, last_pending=None, num_triggers=self.num_triggers + 1)


def explain_end(cursor: Cursor, trigger: Mapping[str, Any], end_warning: str = "") -> str:
    """Return a message about the samples of an ended stream that were not trained on, with the reason; empty if all samples were trained on.

    Args: trigger: section of the pipeline. end_warning: the policy's reason, as `Trigger.end_warning` returns it.
    """
    waiting = _without_labels(cursor)
    if cursor.num_triggers and not cursor.num_pending:
        lacks = f"the trigger policy did not work as it is meant: {end_warning}" if end_warning else ""
        return "; ".join(filter(None, (waiting, lacks)))
    if cursor.num_triggers:
        interval = next((f"{name}={value}" for name, value in trigger.items() if name.startswith("evaluation_interval")), "")
        is_unchecked = cursor.last_check <= cursor.position - cursor.num_pending
        why = end_warning or (f"no check came due since ({interval})" if interval and is_unchecked else "")
        pending = f"{cursor.num_pending:,} samples wait for the next trigger, which has not fired"
        advice = f"{pending}{': ' * bool(why)}{why}; `modyn run --final-trigger` trains on them too"
        return "; ".join(filter(None, (waiting, advice)))
    if cursor.max_timestamp is None:
        return "the stream held no samples, so nothing was trained; ingest data, or choose another interval"
    if not cursor.num_triggers and not cursor.num_labelled:
        return f"{waiting}, so nothing was trained{': ' * bool(end_warning)}{end_warning}"
    first, last = (format_timestamp(when or 0).partition(" ")[0] for when in (cursor.first_pending, cursor.max_timestamp))
    options = ", ".join(
        f"{name}={value}" for name, value in trigger.items() if name != "id" and not isinstance(value, Mapping | list)
    )
    why = f": {end_warning}" if end_warning else ""
    after_waiting = f"{waiting}; " if waiting else ""
    return (
        f"{after_waiting}no trigger fired in {cursor.position} samples from {first} to {last}, "
        f"so nothing was trained{why}; let {trigger['id']}{f' ({options})' if options else ''} fire earlier, replay a longer interval, or train on "
        "them with `modyn run --final-trigger`"
    )


def _without_labels(cursor: Cursor) -> str:
    """Return a message: how many samples were not trained on because their labels have not arrived; empty if all labels have arrived."""
    if not cursor.num_waiting:
        return ""
    return f"the labels of {cursor.num_waiting:,} of {cursor.position:,} samples have not come until the end of the stream, so no training has them"
