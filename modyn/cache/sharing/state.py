"""State of a cache that trainings share, in any store. The state lists the existing values, and for each value the jobs that have used it.

A ring of slots holds the values in the order of admission. Each value has a unique number, and its slot is `number % num_slots`. A job knows all
values up to some number, and reads new values from this number on. The ring has room for more values than may be cached at once, because values that
were served to all jobs leave gaps. The state does not decide the order of a job. In one atomic exchange for each batch, the state answers which of
the wanted values exist, and which candidates this job must prepare.

A lost state, or a lost change of the state, loses only cached values. A job that the state does not list joins again.
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
"""Version of the format. A state of another version is replaced by a new one."""
MOST_MEMBERS: Final = 32
"""Largest number of jobs that share one state. Each job has one bit in masks of 32 bits."""
LEASE_S: Final = 60.0
"""Seconds without a message of a job after which the state expels the job."""
ENTRY_BYTES: Final = 13
"""Bytes of a slot: sample key, stage, and a bit for each job that has used the value."""
BYTES_PER_SAMPLE: Final = 8
"""Largest size of all slots together, in bytes for each sample that jobs train on."""
FEW_SLOTS: Final = 1024
"""A small state may exceed BYTES_PER_SAMPLE up to this number of slots."""
MOST_SLOTS: Final = 1 << 28
"""Largest number of slots. A larger number means damage. A job keeps 17 bytes for each slot."""
MOST_STEPS: Final = 8192
"""Largest number of slots that one exchange examines to make room."""
MOST_BEHIND: Final = 4096
"""Largest number of new values in one answer. If more values are new to a job, the job reads these values before its next batch."""

NOTHING_READ: Final = 2**53 - 1
"""If all batches of a job are made, this number replaces the oldest decision whose batch is not made. The number is larger than all decisions."""

GONE, PENDING, READY, LEAVING = range(4)
"""Stages of a value, in order: missing; in preparation by a job; in the tier; in the tier and served to all jobs. In the last stage, the value is
dropped when all jobs have read it."""

IS_GONE, IS_PENDING, IS_SERVED, IS_SERVED_LAST, IS_UNSEEN, IS_LEAVING = range(6)
"""Answers for a wanted value, in order: missing; still in preparation; a hit of this job, and other jobs want the value too; a hit of the last job
that wants the value, so this job drops it; not examined; already served to all jobs."""
IS_HELD, IS_TAKEN, IS_ADMITTED, IS_LEFT = range(4)
"""Answers for a candidate, in order: a value exists, or another job prepares it; this job prepares the sample for itself; this job prepares the
sample and keeps the value; not examined."""


@dataclass(frozen=True, slots=True)
class SharePlace:
    """Name of a state, and the settings of all its jobs. The job that begins the state sets the capacity."""

    namespace: bytes
    """Namespace of the samples, see `keys.namespace`."""
    capacity: int
    """Largest number of cached values. This number is the budget of the tier divided by the mean size of a sample, but at most the number of slots
    that BYTES_PER_SAMPLE allows."""
    lease_s: float = LEASE_S

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.lease_s <= 0:
            raise ConfigError(
                f"no cache can be shared with room for {self.capacity} samples and a lease of {self.lease_s} s: both are above 0"
            )

    def num_slots(self, num_samples: int) -> int:
        """Return the number of slots of a state that a job with `num_samples` samples begins: twice the capacity, but
        at most the slots that BYTES_PER_SAMPLE allows, or FEW_SLOTS if that limit is larger.

        >>> SharePlace(b"", 2000).num_slots(10_000), SharePlace(b"", 9000).num_slots(10_000), SharePlace(b"", 10).num_slots(10)
        (4000, 6153, 20)
        """
        return min(2 * self.capacity, max(FEW_SLOTS, BYTES_PER_SAMPLE * num_samples // ENTRY_BYTES))


class KeySetId(NamedTuple):
    """Identity of a set of sample keys that `key_sets.pack` packed."""

    digest: bytes
    """16 bytes."""
    num_bytes: int


class Membership(NamedTuple):
    """Membership of a job in a state."""

    incarnation: int
    """Random number of the state. A new state draws another number."""
    place: int
    """Position of the job's bit in masks, 0 … MOST_MEMBERS − 1."""
    token: int
    """Number of the session of the job."""
    num_slots: int
    capacity: int
    first: int
    """Number of the oldest value that may exist."""
    end: int
    """Number of the next admitted value."""
    generation: int
    """Grows with each job that joins, leaves or is expelled."""


class Member(NamedTuple):
    """A job, as other jobs see it."""

    place: int
    since: int
    """Number of the next admitted value at the time when the job joined."""
    is_barred: bool
    """Whether the job gets no value that existed when it joined, because it may have used these values before it was killed."""
    key_set: KeySetId


class ValueEntries(NamedTuple):
    """Values from a given number on, each field (n,)."""

    keys: Int64Array
    stages: UInt8Array
    served: UInt32Array
    """Masks of the places of jobs that have used the value."""


class BatchRequest(NamedTuple):
    """Request of a job in one exchange. All numbers of values are below `known`."""

    known: int
    """The job knows all values below this number."""
    reading: int
    """The job's oldest decision whose batch is not made yet; −1: all batches are made."""
    known_members: int
    """Mask of the jobs whose key sets the job knows, including its own bit. Other jobs are assumed to want every value."""
    size: int
    """Size of the batch; 0: the job only reports."""
    num_hits: int
    """Number of hits that the job wants. The job takes more hits only if it has too few candidates."""
    kept: Int64Array
    """Numbers of the job's values that are now in the tier and that the job has used."""
    refilled: Int64Array
    """Numbers of the job's values that are now in the tier and that no job has used yet."""
    dropped: Int64Array
    """Numbers of values that are not in the tier."""
    wanted: Int64Array
    """(n,), unique numbers of values that the job can use, in order of preference."""
    sharers: UInt32Array
    """(n,), masks of the jobs that train on the sample of each wanted value."""
    candidates: Int64Array
    """(m,), unique keys of samples that the job would prepare, in order of preference."""
    believed: Int64Array
    """(m,), the number of each candidate's known value; −1: no known value."""
    keeps: BoolArray
    """(m,), whether other jobs also train on the candidate."""


class BatchReply(NamedTuple):
    """Answer of the state. All fields except `tail` describe the state after the exchange."""

    decision: int
    """Number of this exchange."""
    quiet: int
    """All jobs have made the batches of all decisions below this number."""
    first: int
    """Number of the oldest value that may exist."""
    end: int
    """Number of the next admitted value. The admitted candidates have the last numbers before this number, in order."""
    num_values: int
    """Number of values in the state, including those in preparation."""
    generation: int
    members: int
    """Mask of the active jobs."""
    tail: Int64Array
    """Keys of all values from number `tail_start` on, without values that this exchange admitted."""
    tail_start: int
    verdicts: UInt8Array
    """(n,), answers for the wanted values."""
    choices: UInt8Array
    """(m,), answers for the candidates."""
    refused: Int64Array
    """Numbers in `kept` and `refilled` whose values the state no longer has."""
    evicted: Int64Array
    """Keys of the oldest values, which were removed to make room."""
    is_behind: bool
    """Whether the state decided nothing, because too many values are new to the job. The job reads these values first."""


class SharedState(Protocol):
    """The shared state. Methods raise UnavailableError within about 0.1 s if the state is unavailable; the change may have happened or not. Methods
    raise CorruptStateError if only `reset` helps."""

    place: SharePlace

    def join(self, key_set: KeySetId, num_samples: int, is_barred: bool, before: Membership | None) -> Membership:
        """Add a job, and begin the state if none exists.

        Args: before: earlier session of the job, which ends.
        Raises: ConflictError: too many jobs share the state.
        """

    def exchange(self, member: Membership, request: BatchRequest) -> BatchReply | None:
        """Decide about one batch in one atomic step. Returns None: the state expelled the job, or was replaced."""

    def leave(self, member: Membership) -> None:
        """Remove a job."""

    def members(self, member: Membership) -> tuple[int, list[Member]] | None:
        """Return the generation, and all jobs that were active at the last exchange or joined since. None: the state was replaced."""

    def entries(self, member: Membership, start: int, stop: int) -> ValueEntries | None:
        """Read values by number, at most num_slots. Values that other jobs have admitted meanwhile may have taken the slots of the requested values.
        Returns None: the state was replaced."""

    def put_key_set(self, key_set: KeySetId, packed: bytes) -> None:
        """Store the packed keys of a job for other jobs."""

    def key_set(self, key_set: KeySetId) -> bytes | None:
        """Return the packed keys of another job, or None."""

    def reset(self) -> None:
        """Remove the whole state."""

    def close(self) -> None:
        """Close connections and files. The state is kept."""
