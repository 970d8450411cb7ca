"""Session of a job in the shared state, from joining to the first failure. The session asks the state, and applies the answers to the job's
knowledge.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from modyn.cache.sample_numbers import NO_SAMPLES, among
from modyn.cache.sharing import key_sets
from modyn.cache.sharing.cache_job import CacheJob
from modyn.cache.sharing.known_values import KnownValues
from modyn.cache.sharing.rules import SamplingRule
from modyn.cache.sharing.state import (
    IS_ADMITTED,
    IS_GONE,
    IS_PENDING,
    IS_SERVED,
    IS_SERVED_LAST,
    IS_UNSEEN,
    READY,
    BatchReply,
    BatchRequest,
    KeySetId,
    Member,
    Membership,
    SharedState,
    UInt8Array,
    UInt32Array,
)
from modyn.errors import UnavailableError
from modyn.records import BoolArray, Int64Array

READ_VALUES: Final = 1 << 16
"""Largest number of values in one read."""
SPARE_VALUES: Final = 16
"""Number of values that a job requests in addition to 1.5 times the hits, because some values are still in preparation, or gone."""


_DRAWN: Final = 4
"""Number of samples that are drawn for each sample that is prepared in the background."""


class KeySets:
    """Samples of a job that other jobs also train on, by the digest of the other job's key set.

    Args: keys: keys of the job's samples, ascending.
    """

    def __init__(self, keys: Int64Array) -> None:
        self.keys = keys
        self.own, self.packed = key_sets.pack(keys)
        self._held: dict[bytes, BoolArray] = {}

    def held(self, key_set: KeySetId, state: SharedState) -> BoolArray | None:
        """Return whether the other job trains on each sample, (n,), by rank. None: the other job's set cannot be read."""
        if key_set.digest not in self._held:
            packed = state.key_set(key_set)
            try:
                if packed is None:
                    return None
                self._held[key_set.digest] = key_sets.held(self.keys, key_sets.unpack(key_set, packed))
            except ValueError:
                return None
        return self._held[key_set.digest]

    def forget_but(self, members: list[Member]) -> None:
        """Remove the sets of jobs that are not in `members`."""
        digests = {member.key_set.digest for member in members}
        self._held = {digest: held for digest, held in self._held.items() if digest in digests}


class SharedStateSession:
    """Knowledge of one job about the state. The session ends with the first UnavailableError or CorruptStateError of the state.

    Args: reads: uint8 (n,), by rank: number of the job's batches that read or put the value of a sample; the caller changes the array. is_barred:
    whether the job gets no value that existed when it joined. earlier: the previous session.
    """

    def __init__(
        self,
        state: SharedState,
        rule: SamplingRule,
        sets: KeySets,
        reads: UInt8Array,
        augmented: bool,
        is_barred: bool,
        earlier: SharedStateSession | None,
    ) -> None:
        # The set is stored before the job joins, so that other jobs find it as soon as they see the job.
        state.put_key_set(sets.own, sets.packed)
        self.member: Membership = state.join(sets.own, len(sets.keys), is_barred, earlier.member if earlier else None)
        self._state, self._rule, self._sets, self._reads = state, rule, sets, reads
        self._augmented, self._is_barred = augmented, is_barred
        self._values = KnownValues(sets.keys, self.member.num_slots, self.member.first)
        self._generation = -1
        """Generation of the known jobs and of `_sharers`; −1: the next `catch_up` reads both again."""
        self._members: list[Member] = []
        self._known_members = 0
        self._sharers: UInt32Array = np.zeros(len(sets.keys), np.uint32)
        """(n,), by rank, masks of the jobs that train on the sample."""
        self._compared, self._compare_to = self.member.first, self.member.end
        """Number up to which the session has read values, and number up to which it must read values."""
        self._is_ready = False
        """Whether all values are known."""
        self._num_values, self._live, self._decision = 0, 0, 0
        self._waiting = NO_SAMPLES
        """Numbers of wanted values that were in preparation, or not examined, at the last exchange."""
        self.kept: dict[int, int] = {}
        """Number → key of values in the tier, which the next exchange reports."""
        self.refilled: dict[int, int] = {}
        """Number → key of values that were prepared in the background, which the next exchange reports."""
        self.dropped: list[int] = []
        """Numbers of values that are not in the tier, which the next exchange reports."""
        self._served_out: dict[int, tuple[int, int]] = {}
        """Number → (decision, key) of values to drop after all jobs have made the batches that read them."""
        self.evicted: list[int] = []
        """Keys of values to be dropped from the tier."""
        # The values of the earlier session are still in the tier if the state is the same. This session reports and drops them.
        if earlier is not None and earlier.member.incarnation == self.member.incarnation:
            self.kept, self.refilled, self.dropped, self.evicted = (
                earlier.kept,
                earlier.refilled,
                earlier.dropped,
                earlier.evicted,
            )

    def catch_up(self, until: float) -> bool:
        """Read jobs and values as long as time is left. Returns whether the job may decide. The job may decide before all known values are compared
        again."""
        if self._generation < 0:
            self._meet()
        while self._compared < self._compare_to and time.monotonic() < until:
            self._read()
            if self._is_ready:
                break  # Later calls compare the rest.
        self._is_ready |= self._compared >= self._compare_to
        return self._is_ready

    def compare(self) -> None:
        """Read all values again during the next batches, because the job would otherwise request values that are gone."""
        self._compared, self._compare_to = self._values.first, max(self._values.end, self._compare_to)

    def request(self, job: CacheJob, candidates: Int64Array, size: int, reading: int) -> BatchRequest:
        """Make the request for a batch. Args: candidates: ranks of the first samples of the order. size: 0: only report. reading: as in
        `BatchRequest`."""
        values, seen, unserved = self._values, job.seen, self._augmented
        num_sharers = np.maximum(1, np.bitwise_count(self._sharers[candidates] & np.uint32(self._live)))
        wanted, num_hits = NO_SAMPLES, 0
        believed = values.number_of(candidates)
        keeps = num_sharers > 1
        if size:
            fullness = self._num_values / self.member.capacity
            num_hits = self._rule.num_hits(num_sharers[:size], fullness, size, job.generator.random())
            most = num_hits + num_hits // 2 + SPARE_VALUES
            waiting = self._waiting[values.usable(self._waiting, seen, unserved)]
            new = values.find(seen, max(SPARE_VALUES, most - len(waiting)), unserved)
            self._waiting = np.concatenate([waiting, new[~among(new, waiting)]])
            wanted = self._waiting[:most]
            # Add known values of the first samples of the order, in case too few other values exist.
            more = believed[believed >= 0]
            more = more[values.usable(more, seen, unserved)]
            wanted = np.concatenate([wanted, more[~among(more, wanted)]])
            # A candidate with a known value is most likely not prepared, so it does not count towards the values to keep.
            may_keep = keeps & (believed < 0)
            keeps &= np.cumsum(may_keep) <= self._rule.most_kept(
                num_sharers[:size], self.member.capacity - self._num_values, size
            )
        return self._requested(reading, size, num_hits, wanted, candidates, keeps, self.dropped)

    def refill_request(self, job: CacheJob, reading: int) -> BatchRequest | None:
        """Make a request to prepare random samples in the background of a batch. Returns None if there is no such sample. The request does not report
        dropped values, because the batch has not dropped them from the tier yet. Other jobs must not put new values of the same samples into the tier
        before the drop.

        Args: reading: see `BatchRequest`.
        """
        count = self._rule.num_refilled(self.member.capacity - self._num_values)
        if count < 1:
            return None
        num_keys = len(self._sets.keys)
        # Draw more samples than wanted, because the state skips samples that are already cached.
        candidates = job.generator.choice(num_keys, min(num_keys, _DRAWN * count), replace=False)
        return self._requested(
            reading, min(count, len(candidates)), 0, NO_SAMPLES, candidates, np.ones(len(candidates), np.bool_), []
        )

    def _requested(
        self,
        reading: int,
        size: int,
        num_hits: int,
        wanted: Int64Array,
        candidates: Int64Array,
        keeps: BoolArray,
        dropped: list[int],
    ) -> BatchRequest:
        kept, refilled, gone = (np.array(list(numbers), np.int64) for numbers in (self.kept, self.refilled, dropped))
        return BatchRequest(
            self._values.end, reading, self._known_members, size, num_hits, kept, refilled, gone, wanted,
            self._sharers_of(wanted, self._values.rank_of(wanted)), self._sets.keys[candidates], self._values.number_of(candidates), keeps,
        )  # fmt: skip

    def exchange(self, request: BatchRequest) -> BatchReply | None:
        """Ask the state, and apply the part of the answer that does not depend on the batch. Returns None: the state expelled the job, and the
        session has ended."""
        reply = self._state.exchange(self.member, request)
        if reply is None:
            return None
        values = self._values
        reported = self.kept | self.refilled
        # No job would use values that the state refused, so they are dropped from the tier.
        self.evicted += [reported[number] for number in reply.refused.tolist()] + reply.evicted.tolist()
        self.kept, self.refilled, self.dropped = {}, {}, self.dropped[len(request.dropped) :]
        self._num_values, self._live, self._decision = reply.num_values, reply.members, reply.decision
        # If jobs have joined or left, the list of jobs is read again.
        if reply.generation != self._generation:
            self._generation = -1
        for number, (decision, key) in list(self._served_out.items()):
            # Decisions ascend, so later values cannot be dropped yet either.
            if decision >= reply.quiet:
                break
            del self._served_out[number]
            self.dropped.append(number)
            self.evicted.append(key)
        if reply.is_behind:
            self._is_ready = False
            self._compared, self._compare_to = reply.tail_start, reply.end
        else:
            values.add(reply.tail_start, reply.tail, self._reads)
        values.first = reply.first
        return reply

    def hits(self, request: BatchRequest, reply: BatchReply) -> tuple[Int64Array, Int64Array]:
        """Return the ranks of the hits, and the numbers of their values."""
        numbers = request.wanted[(reply.verdicts == IS_SERVED) | (reply.verdicts == IS_SERVED_LAST)]
        return self._values.rank_of(numbers), numbers

    def learn(self, request: BatchRequest, reply: BatchReply) -> None:
        """Apply the answers for the wanted values and candidates."""
        values, verdicts, keys = self._values, reply.verdicts, self._sets.keys
        admitted = request.candidates[reply.choices == IS_ADMITTED]
        # The admitted candidates have the last numbers.
        values.add(reply.end - len(admitted), admitted, None)
        values.forget(request.wanted[verdicts == IS_GONE])
        values.bar(request.wanted[(verdicts == IS_SERVED) | (verdicts == IS_SERVED_LAST)])
        last = request.wanted[verdicts == IS_SERVED_LAST]
        for number, key in zip(last.tolist(), keys[values.rank_of(last)].tolist(), strict=True):
            self._served_out[number] = (reply.decision, key)
        # Values that were not examined come first at the next exchange, values in preparation last.
        asked = request.wanted[: len(self._waiting)]
        codes = verdicts[: len(asked)]
        rest = self._waiting[~among(self._waiting, asked)]
        self._waiting = np.concatenate([asked[codes == IS_UNSEEN], rest, asked[codes == IS_PENDING]])

    def learn_refilled(self, request: BatchRequest, reply: BatchReply) -> tuple[Int64Array, Int64Array]:
        """Apply the answers to `refill_request`. Returns keys and numbers of the values to prepare."""
        keys = request.candidates[reply.choices == IS_ADMITTED]
        start = reply.end - len(keys)
        self._values.add(start, keys, self._reads)
        return keys, np.arange(start, reply.end)

    def forget(self, numbers: Int64Array) -> None:
        """Record that values are not in the tier. The next exchange reports these values as dropped."""
        self.dropped += numbers.tolist()
        self._values.forget(numbers)

    def _meet(self) -> None:
        """Read the list of jobs and the keys that they train on."""
        found = self._state.members(self.member)
        if found is None:
            raise UnavailableError("the shared state was replaced by a new one")
        self._generation, self._members = found
        self._sets.forget_but(self._members)
        self._known_members, self._live = 0, 0
        self._sharers[:] = 0
        for member in self._members:
            bit = np.uint32(1 << member.place)
            self._live |= 1 << member.place
            if member.key_set == self._sets.own:
                self._sharers |= bit
            elif (held := self._sets.held(member.key_set, self._state)) is not None:
                self._sharers[held] |= bit
            else:
                continue
            # A job with an unknown set is assumed to want every value, so it is left out of the known jobs.
            self._known_members |= 1 << member.place
        self.compare()

    def _read(self) -> None:
        """Read a range of values: add new values, remove values that are gone, and find values that no job needs."""
        start, stop = self._compared, min(self._compared + READ_VALUES, self._compare_to)
        entries = self._state.entries(self.member, start, stop)
        if entries is None:
            raise UnavailableError("the shared state was replaced by a new one")
        values = self._values
        values.add(start, entries.keys, None if self._is_barred and start < self.member.end else self._reads)
        values.compare(start, entries)
        self._compared = stop
        # If the samples of a job are unknown, any value may still be needed.
        if self._known_members & self._live != self._live:
            return
        at = np.flatnonzero(entries.stages == READY)
        numbers, served = start + at, entries.served[at]
        ranks = values.rank_of(numbers)
        needed = self._sharers_of(numbers, ranks) & np.uint32(self._live) & ~served
        is_out = (ranks >= 0) & (numbers >= values.first) & (needed == 0)
        for number, key in zip(numbers[is_out].tolist(), self._sets.keys[ranks[is_out]].tolist(), strict=True):
            self._served_out.setdefault(number, (self._decision, key))

    def _sharers_of(self, numbers: Int64Array, ranks: Int64Array) -> UInt32Array:
        """Return, for each value, the mask of the jobs that may use it."""
        sharers = self._sharers[ranks]
        for member in self._members:
            if member.is_barred:
                sharers[numbers < member.since] &= ~np.uint32(1 << member.place)
        return sharers
