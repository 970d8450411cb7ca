"""A training at a shared cache: which samples its next batch serves, which of them are cached, and which it prepares for others."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from modyn.cache.breaker import CircuitBreaker
from modyn.cache.sample_numbers import NO_SAMPLES, among
from modyn.cache.samplers.base import CacheJob
from modyn.cache.sharing.served_batch import SharedBatch, UntrainedBatches
from modyn.cache.sharing.state import IS_ADMITTED, IS_TAKEN, BatchReply, BatchRequest, SharedState
from modyn.cache.sharing.stay import KeySets, Stay
from modyn.errors import ConflictError, CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.records import BoolArray, Float32Array, Int64Array
from modyn.rpc.logs import get_logger

PATIENCE_S: Final = 0.05
"""For catching up with the state before one batch. What is left is done before the next ones."""
MOST_UNMADE: Final = 1024
"""Batches that are being made at once. The oldest of more are given up."""


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

    def stamps_of(self, ranks: Int64Array) -> Int64Array:
        """The stamps of the values of samples, 0 of those without: a state that begins again draws another incarnation, far from all before."""
        stamps = dict(zip(self.ranks.tolist(), (self.incarnation + self.numbers).tolist(), strict=True))
        return np.array([stamps.get(rank, 0) for rank in ranks.tolist()], np.int64)


class SharedJob:
    """One training. Each epoch serves every sample of its keys exactly once, in random order, whatever becomes of the state.

    Where the state is away, batches follow the job's own random order, without hits. For one thread at a time. The process that decides stays the
    same; others may make the batches.

    Args: state: None: it shares nothing. keys: of the samples to train on, ascending, none twice. seed: of the order. augmented: values are
    results of random transformations, of which none is served to this job twice. resumed: `state_dict` of its last checkpoint. breaker: of the
    state; none: its own.
    Raises: InvalidArgumentError: keys are none, or not ascending, or the checkpoint is of another job.
    """

    def __init__(
        self,
        state: SharedState | None,
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
        self._log = get_logger("cache").bind(namespace=state.place.namespace.hex() if state else "")
        self._sets: KeySets | None = None
        self._stay: Stay | None = None
        self._before: Stay | None = None
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
        self._untrained = UntrainedBatches()

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
        self._reads[unmade.ranks[unmade.is_hit]] += 1
        evicted = self._take_evicted()  # Of samples that are admitted, older values.
        self._reads[unmade.ranks[~unmade.is_hit]] += 1
        job.mark(ranks)
        self._untrained.add(number, job.epoch, ranks)
        while len(self._unmade) > MOST_UNMADE:
            self.made(next(iter(self._unmade)))
        return SharedBatch(number, job.epoch, self._keys[ranks], hits, admitted, evicted, stamps=unmade.stamps_of(ranks))

    def made(self, number: int, kept: Int64Array = NO_SAMPLES, lost: Int64Array = NO_SAMPLES) -> None:
        """Report that a batch is made: nothing reads its values from the tier any more. Others learn of it with the next batch, or by `report`.

        Args: kept: keys of its samples whose values were put into the tier; admitted ones that are not among them are given up. lost: keys of
        hits that the tier did not have.
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
        new = is_kept & ~unmade.is_hit
        stay.kept.update(zip(unmade.numbers[new].tolist(), keys[new].tolist(), strict=True))
        stay.forget(unmade.numbers[~is_kept & (~unmade.is_hit | among(keys, lost))])

    def rank(self, keys: Int64Array, losses: Float32Array) -> None:
        """As `BatchSampler.rank`. All samples are alike here."""

    def report(self) -> None:
        """Tell the state what was made, and that this job lives, without a batch: one that asks for nothing counts no more after its lease."""
        self._ask(np.empty(0, np.int64), 0)

    def leave(self) -> Int64Array:
        """As `BatchSampler.leave`."""
        unknown = [self._keys[unmade.ranks[~unmade.is_hit]] for unmade in self._unmade.values()]
        for number in list(self._unmade):
            self.made(number)
        self.report()
        stay, self._stay = self._stay, None
        if stay is not None and self._state is not None:
            self._evicted += stay.evicted
            try:
                self._state.leave(stay.member)
            except (UnavailableError, CorruptStateError):
                self._breaker.failed()
        if self._state is not None:
            self._state.close()
        return np.unique(np.concatenate([np.array(self._evicted, np.int64), *unknown]))

    def end_epoch(self) -> None:
        """Let the next batch begin the next epoch: what this one has not served is left out."""
        self._job.num_left = 0

    def state_dict(self, trained: int | None = None) -> dict[str, Any]:
        """What a checkpoint keeps: a bit for each sample, whether its epoch has served it. Args: trained: as of `UntrainedBatches.state_of`."""
        return self._untrained.state_of(self._job, trained)

    def _begin_epoch(self) -> None:
        job = self._job
        job.begin_epoch(job.epoch + 1)
        if self._stay is not None:
            self._stay.compare()

    def _take_evicted(self) -> Int64Array:
        if self._stay is not None:
            self._evicted += self._stay.evicted
            self._stay.evicted = []
        keys = np.unique(np.array(self._evicted, np.int64))
        ranks = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        is_read = (self._keys[ranks] == keys) & (self._reads[ranks] > 0)
        self._evicted = keys[is_read].tolist()
        evicted: Int64Array = keys[~is_read]
        return evicted

    def _choose(self, candidates: Int64Array, size: int) -> tuple[Int64Array, BoolArray, _Unmade]:
        """The ranks of a batch, whether each is a hit, and what of it the cache takes part in. Without the state the first of the order."""
        found = self._ask(candidates, size)
        if found is None:
            nothing = _Unmade(NO_SAMPLES, NO_SAMPLES, np.empty(0, np.bool_))
            return candidates[:size], np.zeros(size, np.bool_), nothing
        stay, request, reply = found
        hits, numbers = stay.hits(request, reply)
        taken = candidates[(reply.choices == IS_TAKEN) | (reply.choices == IS_ADMITTED)]
        admitted = candidates[reply.choices == IS_ADMITTED]
        new_numbers = np.arange(reply.end - len(admitted), reply.end)
        stay.learn(request, reply)
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

    def _ask(self, candidates: Int64Array, size: int) -> tuple[Stay, BatchRequest, BatchReply] | None:
        """Make one exchange. None: the state is away, or the job does not know it well enough yet."""
        if self._state is None or not self._breaker.allows():
            return None
        try:
            found = self._exchange(candidates, size)
        except (UnavailableError, CorruptStateError, ConflictError) as error:
            if self._stay is not None:
                self._before, self._stay = self._stay, None
            self._is_damaged = isinstance(error, CorruptStateError)
            if self._breaker.failed():
                self._log.warning("shared_cache_away", reason=error.message)
            return None
        if self._breaker.succeeded():
            self._log.info("shared_cache_back")
        return found

    def _exchange(self, candidates: Int64Array, size: int) -> tuple[Stay, BatchRequest, BatchReply] | None:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            stay = self._stay or self._join()
            if not stay.catch_up(until):
                continue
            incarnation = stay.member.incarnation
            reading = min((unmade.decision for unmade in self._unmade.values() if unmade.incarnation == incarnation), default=-1)
            request = stay.request(self._job, candidates, size, reading)
            reply = stay.exchange(request)
            if reply is None:
                self._before, self._stay = stay, None
            elif not reply.is_behind:
                for ranks in self._made:
                    self._reads[ranks] -= 1
                self._made = []
                return stay, request, reply
        return None

    def _join(self) -> Stay:
        assert self._state is not None
        if self._sets is None:
            self._sets = KeySets(self._keys)
        if self._is_damaged:
            self._state.begin_anew()
            self._is_damaged = False
        before = self._before
        self._stay = stay = Stay(self._state, self._sets, self._reads, self._augmented, self._is_barred, before)
        self._before = None
        # In a later stay it finds values that it was served in this one.
        self._is_barred = self._augmented
        return stay
