"""One of the trainings that share a cache. A `SharedJob` decides which samples the next batch serves, which of these samples the batch reads from the
cache, and which samples it prepares for other trainings."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from modyn.cache.sample_numbers import NO_SAMPLES, among
from modyn.cache.sharing.cache_job import CacheJob
from modyn.cache.sharing.rules import RULES, SamplingRule
from modyn.cache.sharing.served_batch import SharedBatch, UntrainedBatches
from modyn.cache.sharing.state import IS_ADMITTED, IS_TAKEN, BatchReply, BatchRequest, SharedState
from modyn.cache.sharing.state_session import KeySets, SharedStateSession
from modyn.cache.tiers.breaker import CircuitBreaker
from modyn.errors import ConflictError, CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.records import BoolArray, Int64Array
from modyn.rpc.logs import get_logger

T = TypeVar("T")

PATIENCE_S: Final = 0.05
"""Longest time in seconds for which the job reads changes of the state before one batch. The job reads the remaining changes before later batches."""
MOST_UNMADE: Final = 1024
"""Largest number of batches in progress. Older batches are given up."""


@dataclass(slots=True)
class _Unmade:
    """A decided batch that is not made yet. `numbers` refer to values in the state `incarnation`. A decision of −1 means that the job did not ask the
    state."""

    ranks: Int64Array
    """Ranks of samples whose values the batch reads from the tier or puts there."""
    numbers: Int64Array
    """Numbers of the values of `ranks`."""
    is_hit: BoolArray
    incarnation: int = 0
    decision: int = -1

    def stamps_of(self, ranks: Int64Array) -> Int64Array:
        """Return the stamps of samples' values, 0 for samples without a value. A new state draws a random incarnation, far from all earlier ones,
        so stamps of different states differ."""
        stamps = dict(zip(self.ranks.tolist(), (self.incarnation + self.numbers).tolist(), strict=True))
        return np.array([stamps.get(rank, 0) for rank in ranks.tolist()], np.int64)


class SharedJob:
    """One training. Each epoch serves every sample of `keys` exactly once, in random order, even if the state is lost.

    If the state is unavailable, batches follow the job's own random order, without hits. Not thread-safe. One process decides all batches. Other
    processes may make them.

    Args: state: None: the job shares nothing. keys: keys of the samples to train on, ascending and unique. seed: seed of the order. augmented:
    whether values are results of random transformations; such a value is never served to this job twice. resumed: `state_dict` of the last
    checkpoint. breaker: circuit breaker of the state; default: a separate one. rule: rule of the sampler. Raises: InvalidArgumentError: `keys` is
    empty or not ascending, or the checkpoint belongs to another job.
    """

    def __init__(
        self,
        state: SharedState | None,
        keys: Int64Array,
        seed: int,
        augmented: bool,
        resumed: Mapping[str, Any] | None = None,
        breaker: CircuitBreaker | None = None,
        rule: SamplingRule = RULES["coordinated"],
    ) -> None:
        self._keys = np.ascontiguousarray(keys, np.int64)
        if not len(keys) or not (np.diff(self._keys) > 0).all():
            raise InvalidArgumentError(
                f"{len(keys)} keys are not the samples of the job with seed {seed}: at least one, ascending, none twice"
            )
        self._state, self._augmented, self._rule = state, augmented, rule
        self._job = CacheJob(-1, np.arange(len(keys)), len(keys), seed)
        if resumed is not None:
            self._job.load_state_dict(resumed)
        # The job may have used existing values after its checkpoint, and does not know which ones.
        self._is_barred = resumed is not None and augmented
        self._breaker = breaker or CircuitBreaker()
        self._log = get_logger("cache").bind(namespace=state.place.namespace.hex() if state else "")
        self._sets: KeySets | None = None
        self._session: SharedStateSession | None = None
        self._before: SharedStateSession | None = None
        """The last session that a failure ended. The state may still list this session."""
        self._is_damaged = False
        self._unmade: dict[int, _Unmade] = {}
        """Decided batches that are not made yet, by number."""
        self._refilling: dict[int, tuple[int, int]] = {}
        """Samples in preparation in the background: key → (incarnation of the state, number of the value)."""
        self._reads = np.zeros(len(keys), np.uint8)
        """(n,), by rank: number of batches that read or put the sample's value now, or did so since the last exchange."""
        self._made: list[Int64Array] = []
        """Ranks of batches that were made since the last exchange."""
        self._evicted: list[int] = []
        """Keys to drop from the tier as soon as no batch of this job reads them."""
        self._num_batches = 0
        self._untrained = UntrainedBatches()

    @property
    def num_left(self) -> int:
        """Number of samples that this epoch must still serve; 0: the next batch begins the next epoch."""
        return self._job.num_left

    @property
    def epoch(self) -> int:
        """Epoch of the last batch."""
        return self._job.epoch

    def next_batch(self, size: int) -> SharedBatch:
        """Decide the next batch: `size` samples, or all remaining samples of the epoch if these are fewer. Then the next epoch begins.

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
        refilled, refilled_stamps = self._refill() if unmade.decision >= 0 else (NO_SAMPLES, NO_SAMPLES)
        # Evicted keys are determined before the admitted samples count as read, so that older values of these samples are dropped too.
        evicted = self._take_evicted()
        self._reads[unmade.ranks[~unmade.is_hit]] += 1
        job.mark(ranks)
        self._untrained.add(number, job.epoch, ranks)
        while len(self._unmade) > MOST_UNMADE:
            self.report_made(next(iter(self._unmade)))
        stamps = unmade.stamps_of(ranks)
        return SharedBatch(number, job.epoch, self._keys[ranks], hits, admitted, evicted, refilled, stamps, refilled_stamps)

    def report_made(self, number: int, kept: Int64Array = NO_SAMPLES, lost: Int64Array = NO_SAMPLES) -> None:
        """Report that a batch is made and no longer reads values from the tier. Other jobs get this report with the next batch of this job, or by
        `report`.

        Args: kept: keys of samples whose values were put into the tier; the job gives up other admitted samples. lost: keys of hits that the tier did
        not have. `kept` and `lost` include samples that were prepared in the background since the last report.
        """
        self._report_refilled(kept, is_kept=True)
        self._report_refilled(lost, is_kept=False)
        unmade = self._unmade.pop(number, None)
        if unmade is None:
            return
        self._made.append(unmade.ranks)
        session = self._session
        if session is None or session.member.incarnation != unmade.incarnation:
            return
        keys = self._keys[unmade.ranks]
        is_kept = among(keys, kept)
        new = is_kept & ~unmade.is_hit
        session.kept.update(zip(unmade.numbers[new].tolist(), keys[new].tolist(), strict=True))
        session.forget(unmade.numbers[~is_kept & (~unmade.is_hit | among(keys, lost))])

    def report(self) -> None:
        """Report batches and send a heartbeat, without a request for a batch, because the state expels a job that is silent for its lease."""
        self._ask(lambda: self._exchange(NO_SAMPLES, 0))

    def leave(self) -> Int64Array:
        """See `BatchSampler.leave`."""
        # No later request reports whether these values reach the tier, so the caller drops them.
        unknown = [self._keys[unmade.ranks[~unmade.is_hit]] for unmade in self._unmade.values()]
        unknown.append(np.array(list(self._refilling), np.int64))
        for number in list(self._unmade):
            self.report_made(number)
        # The state accepts no report from a job that has left.
        self.report()
        session, self._session = self._session, None
        if session is not None and self._state is not None:
            self._evicted += session.evicted
            try:
                self._state.leave(session.member)
            except (UnavailableError, CorruptStateError):
                self._breaker.failed()
        if self._state is not None:
            self._state.close()
        return np.unique(np.concatenate([np.array(self._evicted, np.int64), *unknown]))

    def end_epoch(self) -> None:
        """Let the next batch begin the next epoch. Samples that this epoch has not served are left out."""
        self._job.num_left = 0

    def state_dict(self, trained: int | None = None) -> dict[str, Any]:
        """State for a checkpoint, with a bit for each sample that says whether the epoch has served it. Args: trained: as for
        `UntrainedBatches.state_of`."""
        return self._untrained.state_of(self._job, trained)

    def _begin_epoch(self) -> None:
        job = self._job
        job.begin_epoch(job.epoch + 1)
        if self._session is not None:
            self._session.compare()

    def _take_evicted(self) -> Int64Array:
        if self._session is not None:
            self._evicted += self._session.evicted
            self._session.evicted = []
        keys = np.unique(np.array(self._evicted, np.int64))
        ranks = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        is_read = (self._keys[ranks] == keys) & (self._reads[ranks] > 0)
        self._evicted = keys[is_read].tolist()
        evicted: Int64Array = keys[~is_read]
        return evicted

    def _choose(self, candidates: Int64Array, size: int) -> tuple[Int64Array, BoolArray, _Unmade]:
        """Return the ranks of a batch, whether each is a hit, and the values that the batch reads from the tier or puts there. Without the state, the
        batch has the first samples of the order."""
        found = self._ask(lambda: self._exchange(candidates, size))
        if found is None:
            nothing = _Unmade(NO_SAMPLES, NO_SAMPLES, np.empty(0, np.bool_))
            return candidates[:size], np.zeros(size, np.bool_), nothing
        session, request, reply = found
        hits, numbers = session.hits(request, reply)
        taken = candidates[(reply.choices == IS_TAKEN) | (reply.choices == IS_ADMITTED)]
        admitted = candidates[reply.choices == IS_ADMITTED]
        new_numbers = np.arange(reply.end - len(admitted), reply.end)
        session.learn(request, reply)
        batch = np.concatenate([hits, taken])
        if len(batch) < size:
            # Other jobs have or prepare the values of all remaining samples, and this job cannot use these values. It prepares the samples for
            # itself.
            batch = np.concatenate([batch, candidates[~among(candidates, batch)][: size - len(batch)]])
        unmade = _Unmade(
            np.concatenate([hits, admitted]),
            np.concatenate([numbers, new_numbers]),
            np.arange(len(hits) + len(admitted)) < len(hits),
            session.member.incarnation,
            reply.decision,
        )
        return batch, np.arange(size) < len(hits), unmade

    def _refill(self) -> tuple[Int64Array, Int64Array]:
        """Choose samples to prepare in the background of the newest batch. Returns the keys of these samples, and the stamps of their values."""
        session = self._session
        request = None if session is None else session.refill_request(self._job, self._reading(session))
        if session is None or request is None:
            return NO_SAMPLES, NO_SAMPLES
        reply = self._ask(lambda: session.exchange(request))
        if reply is None or reply.is_behind:
            return NO_SAMPLES, NO_SAMPLES
        keys, numbers = session.learn_refilled(request, reply)
        incarnation = session.member.incarnation
        self._refilling |= {key: (incarnation, number) for key, number in zip(keys.tolist(), numbers.tolist(), strict=True)}
        return keys, incarnation + numbers

    def _report_refilled(self, keys: Int64Array, *, is_kept: bool) -> None:
        """Record which samples that were prepared in the background are in the tier, and which are not. Other samples are ignored."""
        for key in keys.tolist() if self._refilling else ():
            incarnation, number = self._refilling.pop(key, (0, 0))
            if (session := self._session) is None or session.member.incarnation != incarnation:
                continue
            if is_kept:
                session.refilled[number] = key
            else:
                session.forget(np.array([number]))

    def _ask(self, ask: Callable[[], T | None]) -> T | None:
        """Ask the state for a decision. Returns None: the state is unavailable, or the job has not read enough of the state yet."""
        if self._state is None or not self._breaker.allows():
            return None
        try:
            found = ask()
        except (UnavailableError, CorruptStateError, ConflictError) as error:
            if self._session is not None:
                self._before, self._session = self._session, None
            self._is_damaged = isinstance(error, CorruptStateError)
            if self._breaker.failed():
                self._log.warning("shared_cache_away", reason=error.message)
            return None
        if self._breaker.succeeded():
            self._log.info("shared_cache_back")
        return found

    def _exchange(self, candidates: Int64Array, size: int) -> tuple[SharedStateSession, BatchRequest, BatchReply] | None:
        until = time.monotonic() + PATIENCE_S
        # Each iteration joins if needed, reads values, and asks. Another iteration follows if the state refuses the job, or if the job lags.
        while time.monotonic() < until:
            session = self._session or self._join()
            if not session.catch_up(until):
                continue
            request = session.request(self._job, candidates, size, self._reading(session))
            reply = session.exchange(request)
            if reply is None:
                self._before, self._session = session, None
            elif not reply.is_behind:
                # The exchange has reported these batches as made.
                for ranks in self._made:
                    self._reads[ranks] -= 1
                self._made = []
                return session, request, reply
        return None

    def _reading(self, session: SharedStateSession) -> int:
        """Return the oldest decision whose batch is not made yet; −1: all batches are made."""
        incarnation = session.member.incarnation
        return min((unmade.decision for unmade in self._unmade.values() if unmade.incarnation == incarnation), default=-1)

    def _join(self) -> SharedStateSession:
        assert self._state is not None
        if self._sets is None:
            self._sets = KeySets(self._keys)
        if self._is_damaged:
            self._state.reset()
            self._is_damaged = False
        before = self._before
        self._session = session = SharedStateSession(
            self._state, self._rule, self._sets, self._reads, self._augmented, self._is_barred, before
        )
        self._before = None
        # A later session would find values that the job already used in this session.
        self._is_barred = self._augmented
        return session
