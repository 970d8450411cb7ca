"""Where a run stands in its stream. Pure functions and records."""

from __future__ import annotations

from dataclasses import dataclass, replace

from modyn.records import SampleBatch


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position of a run in its stream: everything that it needs to go on from there. Fields are the columns of table `cursors`.

    "Pending" are the samples since the last trigger.
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
        if len(samples) == 0:
            return self
        first, last = int(samples.timestamps.min()), int(samples.timestamps.max())
        return replace(
            self,
            position=self.position + len(samples),
            last_timestamp=int(samples.timestamps[-1]),
            last_key=int(samples.keys[-1]),
            max_timestamp=last if self.max_timestamp is None else max(self.max_timestamp, last),
            num_pending=self.num_pending + len(samples),
            first_pending=first if self.first_pending is None else min(self.first_pending, first),
            last_pending=last if self.last_pending is None else max(self.last_pending, last),
        )

    def after_trigger(self) -> Cursor:
        """The cursor once a trigger has taken all pending samples."""
        return replace(self, num_pending=0, first_pending=None, last_pending=None, num_triggers=self.num_triggers + 1)
