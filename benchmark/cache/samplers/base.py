"""Common code of all samplers: jobs with their epochs, and the execution of decisions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmark.cache.samplers.values import CachedValues
from modyn.cache.sample_numbers import NO_SAMPLES, among
from modyn.cache.sharing.cache_job import CacheJob
from modyn.errors import InvalidArgumentError
from modyn.records import BoolArray, Int64Array


class Serving(NamedTuple):
    """Samples that one batch serves, and changes of the cache. A served sample that is not a hit is prepared for this batch."""

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


class Sampler(ABC):
    """Decides which samples the next batch of each job serves, which values are kept and which are dropped.

    Each epoch of each job serves every sample of its trigger set exactly once, in random order. `choose` decides and changes nothing;
    `next_batch` puts the decision into effect. Time does not pass: what is prepared is there for the next batch.

    Args: num_samples: of the dataset; samples are 0 … num_samples − 1. capacity: cached samples at most. seed: of what is random, but for the
    orders of jobs, which have seeds of their own. augmented: values are results of random transformations, so that no job is ever served one of
    them twice; otherwise each serving transforms them again.
    Raises: InvalidArgumentError: a number is negative, or the sampler cannot keep augmented values.
    """

    serves_again: ClassVar[bool] = False
    """Whether a job may be served the same value again in later epochs: such a sampler cannot keep augmented values."""

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

    def join(self, trigger_set: Int64Array, seed: int) -> CacheJob:
        """Let a job begin.

        Args: trigger_set: its samples.
        Raises: InvalidArgumentError: the trigger set is empty, has a sample twice or one of no dataset. ConflictError: no further job can share
        the cache.
        """
        samples = np.sort(np.asarray(trigger_set, np.int64))
        if not len(samples) or samples[0] < 0 or samples[-1] >= self.num_samples or not np.diff(samples).all():
            raise InvalidArgumentError(
                f"{len(samples)} samples are no trigger set of the job with seed {seed}: at least one, each once, of 0 … {self.num_samples - 1}"
            )
        job = CacheJob(-1, samples, self.num_samples, seed)
        job.place = self.values.join(samples)
        self.jobs[job.place] = job
        return job

    def leave(self, job: CacheJob) -> None:
        """Let a job end, or give up one that died; nothing waits for it any more."""
        del self.jobs[job.place]
        self.values.leave(job.place, job.trigger_set)
        if self.expected is not None:
            self.values.evict(self.values.served_out(self.expected))

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
