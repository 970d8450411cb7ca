"""What trainings that share a cache know together, wherever it is kept: which values there are, and to whom they were served.

Values stand in a ring of slots, in the order in which they were admitted. Each has a number, `slot = number % num_slots`; none is admitted again
under the same number, and a job that knows all values below one number learns of new ones by reading on from there. The ring has room for more values
than may be cached at once, since those that have been served to all leave gaps. The state decides nothing about the order of a job: it is asked, in
one atomic exchange for each batch, which of the wanted values are there, and which of the candidates this job is to prepare.

Losing the state, or any change of it, costs values. A job that is not in it joins again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from modyn.errors import ConfigError
from modyn.records import BoolArray, Int64Array

UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]

STATE_VERSION: Final = 1
"""Of what is kept. A state of another version is begun anew."""
MOST_MEMBERS: Final = 32
"""Jobs that share one state: bits of a mask."""
LEASE_S: Final = 60.0
"""A job that has not asked for so long counts no more."""
ENTRY_BYTES: Final = 13
"""Of a slot: sample key, stage, and a bit for each job that the value was served to."""
BYTES_PER_SAMPLE: Final = 8
"""Of all slots, for each sample that jobs train on, at most."""
FEW_SLOTS: Final = 1024
"""Of few samples, more than BYTES_PER_SAMPLE are of no account."""
MOST_SLOTS: Final = 1 << 28
"""More are damage: a job keeps 17 bytes for each."""
MOST_STEPS: Final = 8192
"""Slots that one exchange looks at, at most, to make room."""
MOST_BEHIND: Final = 4096
"""New values in one answer, at most. Who is further behind reads them first."""

NOTHING_READ: Final = 2**53 - 1
"""Instead of the oldest decision whose batch is not made, where there is none: above all of them."""

GONE, PENDING, READY, LEAVING = range(4)
"""Stages of a value: not there; a job prepares it; in the tier; in the tier, served to all, and dropped once all have read it."""

IS_GONE, IS_PENDING, IS_SERVED, IS_SERVED_LAST, IS_UNSEEN, IS_LEAVING = range(6)
"""Answers for a wanted value: not there; still being prepared; a hit of this job, and others want it too; a hit, and the last one, so that this job
drops the value; not looked at; served to all."""
IS_HELD, IS_TAKEN, IS_ADMITTED, IS_LEFT = range(4)
"""Answers for a candidate: there is a value, or another job prepares one; this job prepares it for itself; it prepares it, and keeps the value; not
looked at."""


@dataclass(frozen=True, slots=True)
class SharePlace:
    """Which state, and what all jobs that share it agree on: the job that begins it sets the capacity."""

    namespace: bytes
    """Of the samples, by `keys.namespace`."""
    capacity: int
    """Cached values at most: the budget of the tier by the mean size of a sample. Never more than the slots that BYTES_PER_SAMPLE allows."""
    lease_s: float = LEASE_S

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.lease_s <= 0:
            raise ConfigError(
                f"no cache can be shared with room for {self.capacity} samples and a lease of {self.lease_s} s: both are above 0"
            )

    def num_slots(self, num_samples: int) -> int:
        """Slots of a state that a job with so many samples begins: twice the capacity, as far as BYTES_PER_SAMPLE allows. A few are always allowed.

        >>> SharePlace(b"", 2000).num_slots(10_000), SharePlace(b"", 9000).num_slots(10_000), SharePlace(b"", 10).num_slots(10)
        (4000, 6153, 20)
        """
        return min(2 * self.capacity, max(FEW_SLOTS, BYTES_PER_SAMPLE * num_samples // ENTRY_BYTES))


class KeySetId(NamedTuple):
    """Names a set of sample keys, as `key_sets.pack` has packed it."""

    digest: bytes
    """16 bytes."""
    num_bytes: int


class Membership(NamedTuple):
    """Of a job in a state."""

    incarnation: int
    """Of the state: another one, when it was begun anew, has other numbers."""
    place: int
    """0 … MOST_MEMBERS − 1, its bit in masks."""
    token: int
    """Of this stay of the job."""
    num_slots: int
    capacity: int
    first: int
    """Number of the oldest value that may be there."""
    end: int
    """Number that the next value will get."""
    generation: int
    """Grows with each job that joins, leaves or is expelled."""


class Member(NamedTuple):
    """A job, as others see it."""

    place: int
    since: int
    """Number that the next value had when it joined."""
    is_barred: bool
    """Whether it is served no value that was there when it joined: it may have been served them before it was killed."""
    key_set: KeySetId


class ValueEntries(NamedTuple):
    """Values from one number on, (n,) each."""

    keys: Int64Array
    stages: UInt8Array
    served: UInt32Array
    """Masks of places."""


class BatchRequest(NamedTuple):
    """What a job asks in one exchange. Numbers of values are below `known`."""

    known: int
    """Number below which it knows all values."""
    reading: int
    """The oldest of its decisions whose batch is not made yet; −1: there is none."""
    known_members: int
    """Mask of the jobs whose key sets it knows, its own bit included: of others, it is assumed that they want each value."""
    size: int
    """Of the batch; 0: it only reports."""
    num_hits: int
    """Values that it wants; more only where candidates are too few."""
    kept: Int64Array
    """Numbers of its values that are in the tier now."""
    dropped: Int64Array
    """Numbers of values that are not in the tier."""
    wanted: Int64Array
    """(n,), numbers of values that it can use, those first that it likes best, none twice."""
    sharers: UInt32Array
    """(n,), masks of the jobs that train on the sample of each."""
    candidates: Int64Array
    """(m,), keys of samples that it would prepare, those first that it likes best, none twice."""
    believed: Int64Array
    """(m,), the number of the value that it knows of each; −1: it knows of none."""
    keeps: BoolArray
    """(m,), whether other jobs train on it too."""


class BatchReply(NamedTuple):
    """What the state answers, after the exchange but for `tail`."""

    decision: int
    """Number of this exchange."""
    quiet: int
    """Decisions below it have batches that are made, of all jobs."""
    first: int
    """Number of the oldest value that may be there."""
    end: int
    """Number that the next value will get. Admitted candidates have the last ones below it, in turn."""
    num_values: int
    """That are there, pending ones included."""
    generation: int
    members: int
    """Mask of the jobs that count."""
    tail: Int64Array
    """Keys of the values from `tail_start` on, as far as there are any before those that are admitted by this."""
    tail_start: int
    verdicts: UInt8Array
    """(n,), on the wanted values."""
    choices: UInt8Array
    """(m,), on the candidates."""
    refused: Int64Array
    """Of `kept`, those whose values the state does not have any more."""
    evicted: Int64Array
    """Keys of the oldest values, which made room."""
    is_behind: bool
    """Nothing was decided: too many values are new to the job, which reads them first."""


class SharedState(Protocol):
    """Raises UnavailableError wherever it is away, within about a tenth of a second, and may have made the change or not; CorruptStateError where
    only `begin_anew` helps."""

    place: SharePlace

    def join(self, key_set: KeySetId, num_samples: int, is_barred: bool, before: Membership | None) -> Membership:
        """Let a job count, and begin the state where there is none. Args: before: its earlier stay, which ends.

        Raises: ConflictError: too many jobs share it.
        """

    def exchange(self, member: Membership, request: BatchRequest) -> BatchReply | None:
        """Decide, in one step. Returns None: the job does not count any more, or the state is another one."""

    def leave(self, member: Membership) -> None:
        """Let a job count no more."""

    def members(self, member: Membership) -> tuple[int, list[Member]] | None:
        """The generation, and all jobs that counted at the last exchange or joined since. None: the state is another one."""

    def entries(self, member: Membership, start: int, stop: int) -> ValueEntries | None:
        """Read values by number, at most num_slots. Those that others admit meanwhile may stand in their places. None: the state is another one."""

    def put_key_set(self, key_set: KeySetId, packed: bytes) -> None:
        """Keep the packed keys of a job for others."""

    def key_set(self, key_set: KeySetId) -> bytes | None:
        """The packed keys of another job; None: they are not there."""

    def begin_anew(self) -> None:
        """Forget everything."""

    def close(self) -> None:
        """Give up connections and files. What is kept stays."""
