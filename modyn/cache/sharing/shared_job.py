"""A training at a shared cache: which samples its next batch serves, which of them are cached, and which it prepares for others."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from modyn.cache.breaker import CircuitBreaker
from modyn.cache.samplers.base import NO_SAMPLES, CacheJob
from modyn.cache.samplers.coordinated import hits_of_a_batch
from modyn.cache.samplers.values import among
from modyn.cache.sharing import key_sets
from modyn.cache.sharing.known_values import KnownValues
from modyn.cache.sharing.state import (
    IS_ADMITTED,
    IS_GONE,
    IS_PENDING,
    IS_SERVED,
    IS_SERVED_LAST,
    IS_TAKEN,
    IS_UNSEEN,
    READY,
    BatchReply,
    BatchRequest,
    KeySetId,
    Member,
    Membership,
    SharedState,
    UInt32Array,
)
from modyn.cache.tier import BoolArray
from modyn.errors import ConflictError, CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.records import Int64Array
from modyn.rpc.logs import get_logger

PATIENCE_S: Final = 0.05
"""For catching up with the state before one batch. What is left is done before the next ones."""
READ_VALUES: Final = 1 << 16
"""Values in one read."""
MOST_UNMADE: Final = 1024
"""Batches that are being made at once. The oldest of more are given up."""


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """What one batch serves, and what is to be done for the cache. `SharedJob.made` reports it."""

    number: int
    """Counts the batches of this object, from 0."""
    epoch: int
    keys: Int64Array
    """(n,), sample keys, in the order of the batch."""
    hits: BoolArray
    """(n,), whether the value of each is in the tier, most probably. The others are prepared."""
    admitted: BoolArray
    """(n,), whether the value of each, which is no hit, is to be put into the tier once it is prepared."""
    evicted: Int64Array
    """Keys of other samples, which are to be dropped from the tier now."""


@dataclass(slots=True)
class _Unmade:
    """A batch that was decided and is not made yet. Numbers are of values in the state of `incarnation`; decision −1: none was asked."""

    ranks: Int64Array
    """Of samples whose values are read from the tier or put there."""
    numbers: Int64Array
    """Of their values."""
    is_hit: BoolArray
    incarnation: int = 0
    decision: int = -1


@dataclass(slots=True)
class _Stay:
    """What a job knows while it is in one state."""

    member: Membership
    values: KnownValues
    generation: int = -1
    """For which `sharers` holds."""
    sharers: UInt32Array = field(default_factory=lambda: np.empty(0, np.uint32))
    """(n,), by rank, masks of the jobs that train on the sample."""
    known_members: int = 0
    others: list[Member] = field(default_factory=list)
    read_to: int = 0
    """Number up to which values are compared with the state; `compare_to`: up to which they are to be."""
    compare_to: int = 0
    is_ready: bool = False
    """Whether all values are known, so that it may decide."""
    count: int = 0
    live: int = 0
    decision: int = 0
    waiting: Int64Array = field(default_factory=lambda: NO_SAMPLES)
    """Numbers of values that are wanted, and were being prepared when they were asked for, or not looked at."""
    kept: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    """Reports that the next exchange makes."""
    served_out: deque[tuple[int, int, int]] = field(default_factory=deque)
    """Decision, number and key of values that are dropped once all jobs have made the batches that read them."""


class SharedJob:
    """One training. Each epoch serves every sample of its keys exactly once, in random order, whatever becomes of the state.

    Where the state is away, batches follow the job's own random order, without hits. For one thread at a time. The process that decides stays the same;
    others may make the batches.

    Args: keys: of the samples to train on, ascending, none twice. seed: of the order. augmented: values are results of random transformations, of which none is
    served to this job twice. resumed: `state_dict` of its last checkpoint. breaker: of the state; none: its own.
    Raises: InvalidArgumentError: keys are none, or not ascending, or the checkpoint is of another job.
    """

    def __init__(
        self,
        state: SharedState,
        keys: Int64Array,
        seed: int,
        augmented: bool,
        resumed: Mapping[str, Any] | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self._keys = np.ascontiguousarray(keys, np.int64)
        if not len(keys) or not (np.diff(self._keys) > 0).all():
            raise InvalidArgumentError(
                f"{len(keys)} keys are no samples of the job with seed {seed}: at least one, ascending, none twice"
            )
        self._state, self._augmented = state, augmented
        self._job = CacheJob(-1, np.arange(len(keys)), len(keys), seed)
        if resumed is not None:
            self._job.load_state_dict(resumed)
        self._is_barred = resumed is not None and augmented
        self._breaker = breaker or CircuitBreaker()
        self._log = get_logger("cache").bind(namespace=state.place.namespace.hex())
        self._key_set: tuple[KeySetId, bytes] | None = None
        self._members_of_set: dict[bytes, BoolArray] = {}
        """By digest, which of the own samples are in the key set of another job."""
        self._stay: _Stay | None = None
        self._before: Membership | None = None
        """The stay that ended by a failure; the state may not know that."""
        self._is_damaged = False
        self._unmade: dict[int, _Unmade] = {}
        """By number of the batch."""
        self._reads = np.zeros(len(keys), np.uint8)
        """(n,), by rank, batches that read or put the value of the sample, or did so since the last exchange."""
        self._made: list[Int64Array] = []
        """Ranks of batches that were made since the last exchange."""
        self._evicted: list[int] = []
        """Keys to be dropped, as soon as no batch of this job reads them."""
        self._num_batches = 0
        self._decided: deque[tuple[int, int, Int64Array]] = deque()
        """Number, epoch and ranks of batches, of this epoch and the one before, until they are trained on."""

    @property
    def num_left(self) -> int:
        """Samples that this epoch has still to serve; 0: the next batch begins the next one."""
        return self._job.num_left

    @property
    def epoch(self) -> int:
        """Of the last batch."""
        return self._job.epoch

    def next_batch(self, size: int) -> SharedBatch:
        """Decide the next batch: `size` samples, at the end of an epoch as many as are left; then the next epoch begins.

        Raises: InvalidArgumentError: the size is below 1.
        """
        if size < 1:
            raise InvalidArgumentError(f"no batch of {size}: at least 1")
        job = self._job
        if not job.num_left:
            self._begin_epoch()
        size = min(size, job.num_left)
        candidates = job.ahead(2 * size)
        ranks, hits, unmade = self._choose(candidates, size)
        order = job.generator.permutation(size)
        ranks, hits = ranks[order], hits[order]
        admitted = among(ranks, unmade.ranks[~unmade.is_hit])
        number, self._num_batches = self._num_batches, self._num_batches + 1
        self._unmade[number] = unmade
        self._reads[unmade.ranks] += 1
        job.mark(ranks)
        self._decided.append((number, job.epoch, ranks.astype(np.int32)))
        while len(self._unmade) > MOST_UNMADE:
            self.made(next(iter(self._unmade)))
        return SharedBatch(number, job.epoch, self._keys[ranks], hits, admitted, self._take_evicted())

    def made(self, number: int, kept: Int64Array = NO_SAMPLES, lost: Int64Array = NO_SAMPLES) -> None:
        """Report that a batch is made: nothing reads its values from the tier any more. Others learn of it with the next batch, or by `report`.

        Args: kept: keys of its samples whose values were put into the tier; admitted ones that are not among them are given up. lost: keys of hits that the tier
        did not have.
        """
        unmade = self._unmade.pop(number, None)
        if unmade is None:
            return
        self._made.append(unmade.ranks)
        stay = self._stay
        if stay is None or stay.member.incarnation != unmade.incarnation:
            return
        keys = self._keys[unmade.ranks]
        is_kept = among(keys, kept)
        stay.kept += unmade.numbers[is_kept & ~unmade.is_hit].tolist()
        is_lost = np.where(unmade.is_hit, among(keys, lost), True) & ~is_kept
        stay.dropped += unmade.numbers[is_lost].tolist()
        stay.values.forget(unmade.numbers[is_lost])

    def report(self) -> None:
        """Tell the state what was made, and that this job lives, without a batch. For pauses: a job that asks for nothing counts no more after its lease."""
        self._ask(np.empty(0, np.int64), 0)

    def leave(self) -> None:
        """End. Others wait for nothing that this job would have done."""
        for number in list(self._unmade):
            self.made(number)
        self.report()
        stay, self._stay = self._stay, None
        if stay is not None:
            try:
                self._state.leave(stay.member)
            except (UnavailableError, CorruptStateError):
                self._breaker.failed()
        self._state.close()

    def state_dict(self, trained: int | None = None) -> dict[str, Any]:
        """What a checkpoint keeps: a bit for each sample, whether its epoch has served it.

        Args: trained: number of the last batch that was trained on: those decided after it are served again. −1: none was. None: all were. Batches before it are
        forgotten: a later call gives the same number or a greater one.
        """
        state = self._job.state_dict()
        if trained is None:
            return state
        while self._decided and self._decided[0][0] <= trained:
            self._decided.popleft()
        if not self._decided:
            return state
        epoch = self._decided[0][1]
        seen = self._job.seen.copy() if epoch == self._job.epoch else np.ones(len(self._keys), np.bool_)
        for _, of_epoch, ranks in self._decided:
            if of_epoch == epoch:
                seen[ranks] = False
        return state | {"epoch": epoch, "seen": np.packbits(seen)}

    def _begin_epoch(self) -> None:
        job = self._job
        job.begin_epoch(job.epoch + 1)
        while self._decided and self._decided[0][1] < job.epoch - 1:
            self._decided.popleft()
        if self._stay is not None:
            # What it does not know is gone would be taken for values to be served.
            self._stay.read_to, self._stay.compare_to = self._stay.values.first, self._stay.values.end

    def _take_evicted(self) -> Int64Array:
        keys = np.unique(np.array(self._evicted, np.int64))
        ranks = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        is_read = (self._keys[ranks] == keys) & (self._reads[ranks] > 0)
        self._evicted = keys[is_read].tolist()
        return keys[~is_read]

    def _choose(self, candidates: Int64Array, size: int) -> tuple[Int64Array, BoolArray, _Unmade]:
        """The ranks of a batch, whether each is a hit, and what of it the cache takes part in. Without the state the first of the order."""
        found = self._ask(candidates, size)
        if found is None:
            nothing = _Unmade(NO_SAMPLES, NO_SAMPLES, np.empty(0, np.bool_))
            return candidates[:size], np.zeros(size, np.bool_), nothing
        stay, request, reply = found
        served = (reply.verdicts == IS_SERVED) | (reply.verdicts == IS_SERVED_LAST)
        numbers = request.wanted[served]
        hits = stay.values.rank_of(numbers)
        taken = candidates[(reply.choices == IS_TAKEN) | (reply.choices == IS_ADMITTED)]
        admitted = candidates[reply.choices == IS_ADMITTED]
        new_numbers = np.arange(reply.end - len(admitted), reply.end)
        self._learn(stay, request, reply, admitted)
        batch = np.concatenate([hits, taken])
        if len(batch) < size:
            # The rest is held by others, and all that is left: this job prepares it for itself.
            batch = np.concatenate([batch, candidates[~among(candidates, batch)][: size - len(batch)]])
        unmade = _Unmade(
            np.concatenate([hits, admitted]),
            np.concatenate([numbers, new_numbers]),
            np.arange(len(hits) + len(admitted)) < len(hits),
            stay.member.incarnation,
            reply.decision,
        )
        return batch, np.arange(size) < len(hits), unmade

    def _ask(self, candidates: Int64Array, size: int) -> tuple[_Stay, BatchRequest, BatchReply] | None:
        """Make one exchange. None: the state is away, or the job does not know it well enough yet."""
        if not self._breaker.allows():
            return None
        try:
            found = self._exchange(candidates, size)
        except (UnavailableError, CorruptStateError, ConflictError) as error:
            if self._stay is not None:
                self._before, self._stay = self._stay.member, None
            self._is_damaged = isinstance(error, CorruptStateError)
            if self._breaker.failed():
                self._log.warning("shared_cache_away", reason=error.message)
            return None
        if self._breaker.succeeded():
            self._log.info("shared_cache_back")
        return found

    def _exchange(self, candidates: Int64Array, size: int) -> tuple[_Stay, BatchRequest, BatchReply] | None:
        until = time.monotonic() + PATIENCE_S
        while (stay := self._stay or self._join()) and time.monotonic() < until:
            if not self._catch_up(stay, until):
                continue
            request = self._request(stay, candidates, size)
            reply = self._state.exchange(stay.member, request)
            if reply is None:
                self._before, self._stay = stay.member, None
                continue
            self._account(stay, request, reply)
            if not reply.is_behind:
                return stay, request, reply
            stay.is_ready = False
            stay.read_to, stay.compare_to = reply.tail_start, reply.end
        return None

    def _join(self) -> _Stay:
        if self._key_set is None:
            self._key_set = key_sets.pack(self._keys)
        key_set, packed = self._key_set
        if self._is_damaged:
            self._state.begin_anew()
            self._is_damaged = False
        self._state.put_key_set(key_set, packed)
        before = self._before
        member = self._state.join(key_set, len(self._keys), self._is_barred, before)
        values = KnownValues(self._keys, member.num_slots, member.first)
        self._before = None
        self._stay = stay = _Stay(member, values, read_to=member.first, compare_to=member.end)
        # A later stay in the same state may find values that this job was served: it is served none of those that are there now.
        self._is_barred |= self._augmented
        return stay

    def _catch_up(self, stay: _Stay, until: float) -> bool:
        """Learn of jobs and values, as far as there is time. Returns whether the job may decide."""
        if stay.generation < 0:
            self._meet(stay)
        while stay.read_to < stay.compare_to and time.monotonic() < until:
            self._read(stay)
            if stay.is_ready:
                break  # Each batch compares a part.
        stay.is_ready |= stay.read_to >= stay.compare_to
        return stay.is_ready and self._stay is stay

    def _meet(self, stay: _Stay) -> None:
        """Learn which jobs there are, and what they train on."""
        found = self._state.members(stay.member)
        if found is None:
            self._stay = None
            return
        generation, members = found
        own = next((member for member in members if member.place == stay.member.place), None)
        known = {member.key_set.digest for member in members}
        self._members_of_set = {digest: mask for digest, mask in self._members_of_set.items() if digest in known}
        sharers = np.zeros(len(self._keys), np.uint32)
        known_members = 0
        for member in members:
            bit = np.uint32(1 << member.place)
            if own is not None and member.key_set == own.key_set:
                sharers |= bit
            elif (mask := self._samples_of(member.key_set)) is not None:
                sharers[mask] |= bit
            else:
                continue
            known_members |= 1 << member.place
        if stay.generation >= 0 or not stay.is_ready:
            stay.read_to, stay.compare_to = stay.values.first, max(stay.values.end, stay.compare_to)
        stay.generation, stay.others, stay.sharers, stay.known_members = generation, members, sharers, known_members
        stay.live = sum(1 << member.place for member in members)

    def _samples_of(self, key_set: KeySetId) -> BoolArray | None:
        if key_set.digest not in self._members_of_set:
            packed = self._state.key_set(key_set)
            try:
                keys = None if packed is None else key_sets.unpack(key_set, packed)
            except ValueError:
                keys = None
            if keys is None:
                return None
            self._members_of_set[key_set.digest] = key_sets.held(self._keys, keys)
        return self._members_of_set[key_set.digest]

    def _read(self, stay: _Stay) -> None:
        """Read a part of the values, learn of those that are new, forget those that are gone, and find those that nobody needs any more."""
        start, stop = stay.read_to, min(stay.read_to + READ_VALUES, stay.compare_to)
        entries = self._state.entries(stay.member, start, stop)
        if entries is None:
            self._before, self._stay = stay.member, None
            return
        barred = np.ones(len(self._keys), np.bool_) if self._is_barred_here(stay, start) else self._reads > 0
        stay.values.add(start, entries.keys, barred)
        stay.values.compare(start, entries)
        stay.read_to = stop
        numbers = np.arange(start, stop)[entries.stages == READY]
        ranks = stay.values.rank_of(numbers)
        mine = (ranks >= 0) & (numbers >= stay.values.first)
        numbers, ranks, served = numbers[mine], ranks[mine], entries.served[entries.stages == READY][mine]
        if len(stay.sharers) and stay.known_members & stay.live == stay.live:
            is_out = self._sharers(stay, numbers, ranks) & np.uint32(stay.live) & ~served == 0
            for number, rank in zip(numbers[is_out].tolist(), ranks[is_out].tolist(), strict=True):
                stay.served_out.append((stay.decision, number, int(self._keys[rank])))

    def _is_barred_here(self, stay: _Stay, start: int) -> bool:
        """Whether the job is served no value from `start` on that was there when it joined."""
        own = next((member for member in stay.others if member.place == stay.member.place), None)
        return own is not None and own.is_barred and start < stay.member.end

    def _sharers(self, stay: _Stay, numbers: Int64Array, ranks: Int64Array) -> UInt32Array:
        """Masks of the jobs that may be served each value."""
        sharers = stay.sharers[ranks]
        for member in stay.others:
            if member.is_barred:
                sharers[numbers < member.since] &= ~np.uint32(1 << member.place)
        return sharers

    def _request(self, stay: _Stay, candidates: Int64Array, size: int) -> BatchRequest:
        values, job, nothing = stay.values, self._job, NO_SAMPLES
        wanted, num_hits, sharers = nothing, 0, np.empty(0, np.uint32)
        keeps: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        if size:
            num_sharers = np.bitwise_count(stay.sharers[candidates] & np.uint32(stay.live))
            keeps = num_sharers > 1
            fullness = stay.count / stay.member.capacity
            num_hits = hits_of_a_batch(np.maximum(1, num_sharers[:size]), fullness, size, job.generator.random())
            most = num_hits + num_hits // 2 + 16
            waiting = stay.waiting[values.usable(stay.waiting, job.seen, self._augmented)]
            new = values.find(job.seen, max(16, most - len(waiting)), self._augmented)
            stay.waiting = np.concatenate([waiting, new[~among(new, waiting)]])
            wanted = stay.waiting[:most]
            # The first of the order, too, where there is not enough else.
            of_order = values.number_of(candidates)
            of_order = of_order[(of_order >= 0) & values.usable(of_order, job.seen, self._augmented)]
            wanted = np.concatenate([wanted, of_order[~among(of_order, wanted)]])
            sharers = self._sharers(stay, wanted, values.rank_of(wanted))
        while stay.served_out and stay.served_out[0][0] < 0:
            stay.served_out.popleft()
        reading = min((u.decision for u in self._unmade.values() if u.incarnation == stay.member.incarnation), default=-1)
        return BatchRequest(
            values.end, reading, stay.known_members, size, num_hits, np.array(stay.kept, np.int64), np.array(stay.dropped, np.int64),
            wanted, sharers, self._keys[candidates], values.number_of(candidates), keeps,
        )  # fmt: skip

    def _account(self, stay: _Stay, request: BatchRequest, reply: BatchReply) -> None:
        """Take over what does not depend on the batch: reports that were made, values that are dropped."""
        stay.kept, stay.dropped = [], []
        stay.count, stay.live, stay.decision = reply.count, reply.members, reply.decision
        if reply.generation != stay.generation:
            stay.generation = -1
        while stay.served_out and stay.served_out[0][0] < reply.quiet:
            _, number, key = stay.served_out.popleft()
            stay.dropped.append(number)
            self._evicted.append(key)
        refused = stay.values.rank_of(request.kept[among(request.kept, reply.refused)]) if len(reply.refused) else NO_SAMPLES
        self._evicted += self._keys[refused[refused >= 0]].tolist() + reply.evicted.tolist()
        if reply.is_behind:
            return
        stay.values.add(reply.tail_start, reply.tail, self._reads > 0)
        stay.values.first = reply.first
        for ranks in self._made:
            self._reads[ranks] -= 1
        self._made = []

    def _learn(self, stay: _Stay, request: BatchRequest, reply: BatchReply, admitted: Int64Array) -> None:
        """Take over the answers on values."""
        values, verdicts = stay.values, reply.verdicts
        start = reply.end - len(admitted)
        values.add(start, self._keys[admitted], np.ones(len(self._keys), np.bool_))
        values.forget(request.wanted[verdicts == IS_GONE])
        served = np.concatenate([request.wanted[verdicts == code] for code in (IS_SERVED, IS_SERVED_LAST)])
        values.bar(served)
        last = request.wanted[verdicts == IS_SERVED_LAST]
        for number, key in zip(last.tolist(), self._keys[values.rank_of(last)].tolist(), strict=True):
            stay.served_out.append((reply.decision, number, key))
        # Not looked at comes first again, what is being prepared last.
        asked = request.wanted[: min(len(stay.waiting), len(request.wanted))]
        codes = verdicts[: len(asked)]
        rest = stay.waiting[~among(stay.waiting, asked)]
        stay.waiting = np.concatenate([asked[codes == IS_UNSEEN], rest, asked[codes == IS_PENDING]])
