"""One stay of a job in the shared state, from joining it to the first failure: what the job knows, asks, and takes over from answers."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from modyn.cache.sample_numbers import NO_SAMPLES, among
from modyn.cache.samplers.base import CacheJob
from modyn.cache.samplers.coordinated import hits_of_a_batch, most_kept
from modyn.cache.sharing import key_sets
from modyn.cache.sharing.known_values import KnownValues
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
"""Values in one read."""
SPARE_VALUES: Final = 16
"""That are wanted beside half as many again as are to be hits: some are still being prepared, or gone."""


class KeySets:
    """Which of a job's own samples other jobs train on, by the name of their sets of keys.

    Args: keys: of the job, ascending.
    """

    def __init__(self, keys: Int64Array) -> None:
        self.keys = keys
        self.own, self.packed = key_sets.pack(keys)
        self._held: dict[bytes, BoolArray] = {}

    def held(self, key_set: KeySetId, state: SharedState) -> BoolArray | None:
        """(n,), by rank. None: the set cannot be read."""
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
        """Keep only sets of these jobs."""
        digests = {member.key_set.digest for member in members}
        self._held = {digest: held for digest, held in self._held.items() if digest in digests}


class Stay:
    """Raises UnavailableError and CorruptStateError as the state does: then the stay has ended.

    Args: reads: uint8 (n,), by rank, batches of the job that read or put the value of a sample; others change it. is_barred: the job is served no
    value that was there when it joined. earlier: the stay before this one.
    """

    def __init__(
        self,
        state: SharedState,
        sets: KeySets,
        reads: UInt8Array,
        augmented: bool,
        is_barred: bool,
        earlier: Stay | None,
    ) -> None:
        state.put_key_set(sets.own, sets.packed)
        self.member: Membership = state.join(sets.own, len(sets.keys), is_barred, earlier.member if earlier else None)
        self._state, self._sets, self._reads = state, sets, reads
        self._augmented, self._is_barred = augmented, is_barred
        self._values = KnownValues(sets.keys, self.member.num_slots, self.member.first)
        self._generation = -1
        """For which jobs and `_sharers` are known; −1: they are asked for."""
        self._members: list[Member] = []
        self._known_members = 0
        self._sharers: UInt32Array = np.zeros(len(sets.keys), np.uint32)
        """(n,), by rank, masks of the jobs that train on the sample."""
        self._compared, self._compare_to = self.member.first, self.member.end
        """Numbers up to which values have been read, and are to be."""
        self._is_ready = False
        """Whether all values are known."""
        self._num_values, self._live, self._decision = 0, 0, 0
        self._waiting = NO_SAMPLES
        """Numbers of values that are wanted, and were being prepared when they were asked for, or not looked at."""
        self.kept: dict[int, int] = {}
        """Numbers and keys of values, which the next exchange reports."""
        self.dropped: list[int] = []
        """Numbers of values, which the next exchange reports."""
        self._served_out: dict[int, tuple[int, int]] = {}
        """Number: decision and key of values that are dropped once all jobs have made the batches that read them."""
        self.evicted: list[int] = []
        """Keys of values to be dropped from the tier."""
        if earlier is not None and earlier.member.incarnation == self.member.incarnation:
            self.kept, self.dropped, self.evicted = earlier.kept, earlier.dropped, earlier.evicted

    def catch_up(self, until: float) -> bool:
        """Learn of jobs and values, as far as there is time. Returns whether the job may decide: while it only compares, it may."""
        if self._generation < 0:
            self._meet()
        while self._compared < self._compare_to and time.monotonic() < until:
            self._read()
            if self._is_ready:
                break  # Each batch compares a part.
        self._is_ready |= self._compared >= self._compare_to
        return self._is_ready

    def compare(self) -> None:
        """Read all values again, with the next batches: those that are gone would be taken for values to be served."""
        self._compared, self._compare_to = self._values.first, max(self._values.end, self._compare_to)

    def request(self, job: CacheJob, candidates: Int64Array, size: int, reading: int) -> BatchRequest:
        """What to ask for a batch. Args: candidates: by rank, the first of the order. size: 0: only report. reading: as in `BatchRequest`."""
        values, seen, unserved = self._values, job.seen, self._augmented
        num_sharers = np.maximum(1, np.bitwise_count(self._sharers[candidates] & np.uint32(self._live)))
        wanted, num_hits = NO_SAMPLES, 0
        believed = values.number_of(candidates)
        keeps = num_sharers > 1
        if size:
            fullness = self._num_values / self.member.capacity
            num_hits = hits_of_a_batch(num_sharers[:size], fullness, size, job.generator.random())
            most = num_hits + num_hits // 2 + SPARE_VALUES
            waiting = self._waiting[values.usable(self._waiting, seen, unserved)]
            new = values.find(seen, max(SPARE_VALUES, most - len(waiting)), unserved)
            self._waiting = np.concatenate([waiting, new[~among(new, waiting)]])
            wanted = self._waiting[:most]
            # The first of the order, too, where there is not enough else.
            more = believed[believed >= 0]
            more = more[values.usable(more, seen, unserved)]
            wanted = np.concatenate([wanted, more[~among(more, wanted)]])
            may_keep = keeps & (believed < 0)
            keeps &= np.cumsum(may_keep) <= most_kept(num_sharers[:size], self.member.capacity - self._num_values, size)
        return BatchRequest(
            values.end, reading, self._known_members, size, num_hits, np.array(list(self.kept), np.int64), np.array(self.dropped, np.int64),
            wanted, self._sharers_of(wanted, values.rank_of(wanted)), self._sets.keys[candidates], believed, keeps,
        )  # fmt: skip

    def exchange(self, request: BatchRequest) -> BatchReply | None:
        """Ask, and take over what does not depend on the batch. None: the job does not count any more, and the stay has ended."""
        reply = self._state.exchange(self.member, request)
        if reply is None:
            return None
        values = self._values
        self.evicted += [self.kept[number] for number in reply.refused.tolist()] + reply.evicted.tolist()
        self.kept, self.dropped = {}, []
        self._num_values, self._live, self._decision = reply.num_values, reply.members, reply.decision
        if reply.generation != self._generation:
            self._generation = -1
        for number, (decision, key) in list(self._served_out.items()):
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
        """Ranks of the hits, and numbers of their values."""
        numbers = request.wanted[(reply.verdicts == IS_SERVED) | (reply.verdicts == IS_SERVED_LAST)]
        return self._values.rank_of(numbers), numbers

    def learn(self, request: BatchRequest, reply: BatchReply) -> None:
        """Take over the answers."""
        values, verdicts, keys = self._values, reply.verdicts, self._sets.keys
        admitted = request.candidates[reply.choices == IS_ADMITTED]
        values.add(reply.end - len(admitted), admitted, None)
        values.forget(request.wanted[verdicts == IS_GONE])
        values.bar(request.wanted[(verdicts == IS_SERVED) | (verdicts == IS_SERVED_LAST)])
        last = request.wanted[verdicts == IS_SERVED_LAST]
        for number, key in zip(last.tolist(), keys[values.rank_of(last)].tolist(), strict=True):
            self._served_out[number] = (reply.decision, key)
        # Not looked at comes first again, what is being prepared last.
        asked = request.wanted[: len(self._waiting)]
        codes = verdicts[: len(asked)]
        rest = self._waiting[~among(self._waiting, asked)]
        self._waiting = np.concatenate([asked[codes == IS_UNSEEN], rest, asked[codes == IS_PENDING]])

    def forget(self, numbers: Int64Array) -> None:
        """Note, and report, that values are not in the tier."""
        self.dropped += numbers.tolist()
        self._values.forget(numbers)

    def _meet(self) -> None:
        """Learn which jobs there are, and what they train on."""
        found = self._state.members(self.member)
        if found is None:
            raise UnavailableError("the shared state was begun anew meanwhile")
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
            self._known_members |= 1 << member.place
        self.compare()

    def _read(self) -> None:
        """Read a part of the values: learn of those that are new, forget those that are gone, and find those that no job needs any more."""
        start, stop = self._compared, min(self._compared + READ_VALUES, self._compare_to)
        entries = self._state.entries(self.member, start, stop)
        if entries is None:
            raise UnavailableError("the shared state was begun anew meanwhile")
        values = self._values
        values.add(start, entries.keys, None if self._is_barred and start < self.member.end else self._reads)
        values.compare(start, entries)
        self._compared = stop
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
        """Masks of the jobs that may be served each value."""
        sharers = self._sharers[ranks]
        for member in self._members:
            if member.is_barred:
                sharers[numbers < member.since] &= ~np.uint32(1 << member.place)
        return sharers
