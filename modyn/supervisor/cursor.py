"""Where a run stands in its stream, and where a batch is split by the trigger policy. Pure functions and records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from modyn.errors import UserCodeError
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


def split(num_samples: int, cuts: Iterable[int], policy: str) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, stop, fires) of the slices of a batch, in order; a trigger fires after each slice but the last.

    Lazy: the policy computes its next cut after the slice before it has been processed.

    Args: cuts: what `Trigger.cuts` yields for the batch. policy: the policy's id, for messages.
    Raises: UserCodeError: the cuts do not ascend.

    >>> list(split(5, [0, 2], "MyTrigger"))
    [(0, 0, True), (0, 2, True), (2, 5, False)]
    """
    start = 0
    previous = -1
    for cut in cuts:
        if not previous < cut <= num_samples:
            raise UserCodeError(
                f"trigger {policy} fired at position {cut} of a batch of {num_samples} samples, after {previous}: "
                "positions must ascend within [0, length]; correct its `cuts`"
            )
        yield start, cut, True
        start = previous = cut
    yield start, num_samples, False
