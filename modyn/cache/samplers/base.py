"""What all samplers share: jobs with their epochs, and how a decision takes effect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from modyn.cache.sample_numbers import NO_SAMPLES, among
from modyn.cache.samplers.values import CachedValues
from modyn.errors import InvalidArgumentError
from modyn.records import BoolArray, Int64Array

_VERSION: Final = 1
_ORDER, _BATCHES = 1, 2
"""Purposes that random generators are seeded with, so that no two share a sequence."""


class Serving(NamedTuple):
    """What one batch serves, and what it changes in the cache. A served sample that is no hit is prepared for this batch."""

    samples: Int64Array
    """(n,), in the order of the batch."""
    hits: BoolArray
    """(n,), whether the value of each sample is a cached one."""
    hand: int = 0
    """Slot from which the job looks on for values."""
    evicted: Int64Array = NO_SAMPLES
    """Cached samples whose values are dropped, after the hits are served and before others are admitted."""
    admitted: Int64Array = NO_SAMPLES
    """Missed samples whose values are kept."""
    refilled: Int64Array = NO_SAMPLES
    """Samples that are prepared in the background, whose values are kept."""
    numbers: Int64Array = NO_SAMPLES
    """(n,), of the values of hits and of admitted samples, as `CachedValues.number_in`; 0 of others. `next_batch` fills it in, and the next one."""
    refilled_numbers: Int64Array = NO_SAMPLES
    """Numbers of the values of `refilled`, as `numbers` has them."""

    @property
    def num_prepared(self) -> int:
        """Samples that are prepared, those in the background included."""
        return int(np.count_nonzero(~self.hits)) + len(self.refilled)

    @staticmethod
    def mixed(hits: Int64Array, missed: Int64Array, generator: np.random.Generator, **changes: Any) -> Serving:
        """A batch of these samples in random order, with these changes."""
        order = generator.permutation(len(hits) + len(missed))
        return Serving(np.concatenate([hits, missed])[order], order < len(hits), **changes)


class CacheJob:
    """A training at the cache, made by `Sampler.join`, and where it is in its epoch.

    Args: place: its number at the cache. trigger_set: what it trains on, ascending.
    """

    def __init__(self, place: int, trigger_set: Int64Array, num_samples: int, seed: int) -> None:
        self.place, self.trigger_set, self.seed = place, trigger_set, seed
        self.hand = 0
        """Slot from which it looks on for values."""
        self.seen = np.ones(num_samples, np.bool_)
        """(num_samples,), samples that this epoch serves no more, or not at all."""
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int, seen: BoolArray | None = None) -> None:
        """Begin an epoch, with a random order of its own. Args: seen: of the trigger set, samples that it has served already; none: none."""
        self.epoch = epoch
        self.seen[self.trigger_set] = False if seen is None else seen
        self.num_left = len(self.trigger_set) if seen is None else int(np.count_nonzero(~seen))
        self.generator = np.random.default_rng([self.seed, epoch, self.num_left, _BATCHES])
        self._ahead = np.random.default_rng([self.seed, epoch, _ORDER]).permutation(self.trigger_set)
        self._start = 0

    def ahead(self, count: int) -> Int64Array:
        """The first samples of the order, (n,), that this epoch has still to serve: `count`, or all that are left."""
        width = count
        while True:
            window = self._ahead[self._start : self._start + width]
            unseen = np.flatnonzero(~self.seen[window])
            if len(unseen) >= count or self._start + width >= len(self._ahead):
                break
            width *= 2
        if width > 4 * count:
            # Most of them are served: leave those out, so that the next windows are short again.
            self._ahead, self._start = self._ahead[self._start :], 0
            self._ahead = self._ahead[~self.seen[self._ahead]]
        elif len(unseen):
            self._start += int(unseen[0])
        return window[unseen[:count]]

    def mark(self, samples: Int64Array) -> None:
        """Note that a batch of these samples is served."""
        self.seen[samples] = True
        self.num_left -= len(samples)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps; `seen` has a bit for each sample of the trigger set, uint8 (n / 8, rounded up)."""
        seen = np.packbits(self.seen[self.trigger_set])
        return {"version": _VERSION, "seed": self.seed, "num_samples": len(self.trigger_set), "epoch": self.epoch, "seen": seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called. Raises InvalidArgumentError: that was in another version, or another job."""
        expected = {"version": _VERSION, "seed": self.seed, "num_samples": len(self.trigger_set)}
        found = {name: state.get(name) for name in expected}
        bits = np.asarray(state.get("seen", ()), np.uint8)
        if found != expected or "epoch" not in state or bits.shape != (-(-len(self.trigger_set) // 8),):
            raise InvalidArgumentError(
                f"the order of a job with {expected} cannot go on from a state with {found} and {bits.size} bytes of seen samples: "
                "resume it with its own checkpoint, or start it anew"
            )
        self.begin_epoch(int(state["epoch"]), np.unpackbits(bits, count=len(self.trigger_set)).astype(np.bool_))


class Sampler(ABC):
    """Decides which samples the next batch of each job serves, which values are kept and which are dropped.

    Each epoch of each job serves every sample of its trigger set exactly once, in random order. `choose` decides and changes nothing;
    `next_batch` puts the decision into effect. Time does not pass: what is prepared is there for the next batch.

    Args: num_samples: of the dataset; samples are 0 … num_samples − 1. capacity: cached samples at most. seed: of what is random, but for the
    orders of jobs, which have seeds of their own. augmented: values are results of random transformations, so that no job is ever served one of
    them twice; otherwise each serving transforms them anew.
    Raises: InvalidArgumentError: a number is negative, or the sampler cannot keep augmented values.
    """

    serves_again: ClassVar[bool] = False
    """Whether a job meets a value again in later epochs: such a sampler cannot keep augmented values."""

    def __init__(self, num_samples: int, capacity: int, seed: int = 0, augmented: bool = False) -> None:
        if augmented and self.serves_again:
            raise InvalidArgumentError(
                f"{type(self).__name__} serves a value to one job in several epochs: let it keep decoded values, or choose another sampler"
            )
        self.values = CachedValues(num_samples, capacity)
        self.jobs: dict[int, CacheJob] = {}
        """By place."""
        self.num_samples, self.augmented = num_samples, augmented
        self.generator = np.random.default_rng(seed)

    @abstractmethod
    def choose(self, job: CacheJob, size: int) -> Serving:
        """Decide what the next batch of a job serves. Args: size: at least 1, and no more than the epoch has left."""

    @property
    def expected(self) -> npt.NDArray[np.uint8] | None:
        """(num_samples,), how often a value of each sample is served before it is dropped; none: values are not dropped for that."""
        return None

    def join(self, trigger_set: Int64Array, seed: int, resumed: Mapping[str, Any] | None = None) -> CacheJob:
        """Let a job begin, or go on.

        Args: trigger_set: its samples. resumed: `state_dict` of its last checkpoint. The job may have been served the augmented values that are
        cached now, and so is served none of them.
        Raises: InvalidArgumentError: the trigger set is empty, has a sample twice or one of no dataset, or the state is of another job.
        ConflictError: no further job can share the cache.
        """
        samples = np.sort(np.asarray(trigger_set, np.int64))
        if not len(samples) or samples[0] < 0 or samples[-1] >= self.num_samples or not np.diff(samples).all():
            raise InvalidArgumentError(
                f"{len(samples)} samples are no trigger set of the job with seed {seed}: at least one, each once, of 0 … {self.num_samples - 1}"
            )
        job = CacheJob(-1, samples, self.num_samples, seed)
        if resumed is not None:
            job.load_state_dict(resumed)
        job.place = self.values.join(samples)
        self.jobs[job.place] = job
        if resumed is not None and self.augmented:
            slots = self.values.slot_of[samples]
            self.values.serve(job.place, slots[slots >= 0])
            self._drop_served_out()
        return job

    def leave(self, job: CacheJob) -> None:
        """Let a job end, or give up one that died; nothing waits for it any more."""
        del self.jobs[job.place]
        self.values.leave(job.place, job.trigger_set)
        self._drop_served_out()

    def next_batch(self, job: CacheJob, size: int) -> Serving:
        """Serve the next batch of a job: `size` samples, at the end of an epoch as many as are left; then the next epoch begins.

        Raises: InvalidArgumentError: the size is below 1, or the job has not joined or has left.
        """
        self._check_request(job, size)
        if not job.num_left:
            job.begin_epoch(job.epoch + 1)
        serving = self.choose(job, min(size, job.num_left))
        values, numbers = self.values, np.zeros(len(serving.samples), np.int64)
        hits = values.slot_of[serving.samples[serving.hits]]
        numbers[serving.hits] = values.number_in[hits]
        values.serve(job.place, hits)
        values.evict(serving.evicted)
        admitted = values.admit(serving.admitted)
        values.serve(job.place, admitted)
        is_new = among(serving.samples, serving.admitted) & ~serving.hits
        numbers[is_new] = values.number_in[values.slot_of[serving.samples[is_new]]]
        refilled_numbers = values.number_in[values.admit(serving.refilled)]
        job.mark(serving.samples)
        job.hand = serving.hand
        return serving._replace(numbers=numbers, refilled_numbers=refilled_numbers)

    def _check_request(self, job: CacheJob, size: int) -> None:
        if size < 1 or self.jobs.get(job.place) is not job:
            raise InvalidArgumentError(
                f"no batch of {size} for the job with seed {job.seed}: at least 1, for a job that has joined"
            )

    def _drop_served_out(self) -> None:
        if self.expected is not None:
            self.values.evict(self.values.served_out(self.expected))
