"""A training at a cache whose sampler is one for comparison.

    FOLDER/lock     held while the sampler decides
    FOLDER/sampler  the sampler with all its jobs, pickled

Each decision reads and writes the whole sampler, which takes time in proportion to the samples of the dataset: enough to compare, not for use. The
folder is that of a benchmark alone: no one else writes there, and an error in it ends the measurement.
"""

from __future__ import annotations

import fcntl
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import randbits
from typing import Any, Final

import numpy as np

from benchmark.cache.samplers import SAMPLERS, Sampler, Serving, Shade
from modyn.cache.sample_numbers import NO_SAMPLES, among
from modyn.cache.sharing.cache_job import CacheJob
from modyn.cache.sharing.served_batch import SharedBatch
from modyn.records import Float32Array, Int64Array

POLL_S: Final = 0.002
"""Pause between two questions to a sampler that lets a job wait for others."""


@dataclass(slots=True)
class _Shared:
    """Content of the file."""

    sampler: Sampler
    first_stamp: int = field(default_factory=partial(randbits, 62))
    """Drawn, and added to the number of a value: those of another measurement have others."""


class ComparedJob:
    """A `BatchSampler` of one of the samplers by name.

    With `shade` an epoch is as many servings as there are samples, some of which it repeats and others leaves out.

    Args: folder: of this sampler and these samples. capacity: values at most. keys: ascending, none twice. seed: of the order.
    """

    def __init__(self, folder: Path, name: str, capacity: int, keys: Int64Array, seed: int, augmented: bool) -> None:
        self._folder, self._name, self._capacity, self._augmented = folder, name, capacity, augmented
        self._keys = keys
        self._job = CacheJob(-1, keys, int(keys[-1]) + 1, seed)
        """A copy of the sampler's job after the last decision."""
        self._losses: list[tuple[Int64Array, Float32Array]] = []
        """Keys and losses that are passed to the sampler with the next batch."""
        self._num_batches = 0
        self._ends_epoch = False

    @property
    def epoch(self) -> int:
        """See `BatchSampler.epoch`."""
        return self._job.epoch

    @property
    def num_left(self) -> int:
        """See `BatchSampler.num_left`."""
        return 0 if self._ends_epoch else self._job.num_left

    def next_batch(self, size: int) -> SharedBatch:
        """See `BatchSampler.next_batch`. Waits while the job has to wait for other jobs."""
        size, servings = min(size, self.num_left or len(self._keys)), list[Serving]()
        while (missing := size - sum(len(serving.samples) for serving in servings)) > 0:
            servings.append(self._decide(missing))
            if not len(servings[-1].samples):
                time.sleep(POLL_S)
        columns = zip(
            *(
                (each.samples, each.hits, each.evicted, each.admitted, each.refilled, each.numbers, each.refilled_numbers)
                for each in servings
            ),
            strict=True,
        )
        keys, hits, evicted, admitted, refilled, stamps, refilled_stamps = map(np.concatenate, columns)
        # A sample may come into the cache and leave it within one batch.
        kept = among(keys, admitted) & ~hits & ~among(keys, evicted)
        number, self._num_batches = self._num_batches, self._num_batches + 1
        values = (stamps, refilled_stamps) if self._augmented else ()
        return SharedBatch(number, self._job.epoch, keys, hits, kept, evicted, refilled, *values)

    def report_made(self, number: int, kept: Int64Array = NO_SAMPLES, lost: Int64Array = NO_SAMPLES) -> None:
        """See `BatchSampler.report_made`. These samplers count a prepared value as kept at once: a batch that reads it earlier finds no value with
        its stamp."""

    def rank(self, keys: Int64Array, losses: Float32Array) -> None:
        """Give `shade` the losses of samples that were trained on, (n,) each."""
        self._losses.append((keys, losses))

    def end_epoch(self) -> None:
        """See `BatchSampler.end_epoch`."""
        self._ends_epoch = True

    def state_dict(self, trained: int | None = None) -> dict[str, Any]:
        """See `BatchSampler.state_dict`, as if all batches were trained on: no measurement resumes."""
        return self._job.state_dict()

    def report(self) -> None:
        """See `BatchSampler.report`. Nothing waits for a job of a measurement that has died."""

    def leave(self) -> Int64Array:
        """See `BatchSampler.leave`."""
        with self._shared() as shared:
            if self._job.place >= 0:
                shared.sampler.leave(shared.sampler.jobs[self._job.place])
        return NO_SAMPLES

    def _decide(self, size: int) -> Serving:
        """Ask the sampler; the job joins it with the first question."""
        with self._shared() as shared:
            sampler = shared.sampler
            job = sampler.join(self._keys, self._job.seed) if self._job.place < 0 else sampler.jobs[self._job.place]
            if self._ends_epoch:
                job.num_left, self._ends_epoch = 0, False
            dropped = [sampler.learn(*batch) for batch in self._losses] if isinstance(sampler, Shade) else []
            serving = sampler.next_batch(job, size)
        self._losses, self._job = [], job
        return serving._replace(
            evicted=np.concatenate([*dropped, serving.evicted]),
            numbers=shared.first_stamp + serving.numbers,
            refilled_numbers=shared.first_stamp + serving.refilled_numbers,
        )

    @contextmanager
    def _shared(self) -> Iterator[_Shared]:
        """Yield the sampler under its lock, and write the changes of the block."""
        path = self._folder / "sampler"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self._folder / "lock", "wb") as lock:
            # Protects the file. Released by closing; waits for the decision of another training.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                shared: _Shared = pickle.loads(path.read_bytes())
            else:
                num_samples = 1 << int(self._keys[-1]).bit_length()
                shared = _Shared(SAMPLERS[self._name](num_samples, self._capacity, randbits(31), self._augmented))
            yield shared
            path.write_bytes(pickle.dumps(shared, pickle.HIGHEST_PROTOCOL))
