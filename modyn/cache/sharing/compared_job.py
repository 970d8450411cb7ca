"""A training at a cache whose sampler is one of those for comparison: `opportunistic`, `shared_loader`, `lru`, `quiver`, `shade`.

    FOLDER/NAMESPACE/lock     held while the sampler decides
    FOLDER/NAMESPACE/sampler  checksum; the sampler with all its jobs, and when each has last asked

Each decision reads and writes the whole sampler, which takes time in proportion to the samples of the dataset, in shared memory of one machine:
enough to compare, and not for use. `SharedJob` is for use.
"""

from __future__ import annotations

import fcntl
import io
import pickle
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import randbits, token_hex
from typing import Any, Final

import numpy as np

from modyn.cache.memory_tier import wait_for_lock
from modyn.cache.sample_numbers import NO_SAMPLES, among
from modyn.cache.samplers import SAMPLERS, CachedValues, CacheJob, Sampler, Serving, Shade
from modyn.cache.sharing.served_batch import SharedBatch, UntrainedBatches
from modyn.cache.sharing.state import LEASE_S
from modyn.errors import InvalidArgumentError, ModynError, UnavailableError
from modyn.records import Float32Array, Int64Array
from modyn.rpc.logs import get_logger

WAIT_S: Final = 1.0
"""For other jobs, where the sampler lets one wait for them; then it serves its own order."""
POLL_S: Final = 0.002
MOST_LOSSES: Final = 64
"""Batches whose losses wait for the next decision, where none is made for long."""
_OF_NUMPY: Final = (
    "_frombuffer", "_reconstruct", "dtype", "ndarray", "scalar", "PCG64", "SeedSequence", "__bit_generator_ctor", "__generator_ctor",
    "__pyx_unpickle_SeedSequence",
)  # fmt: skip
"""What a file may name beside samplers: reading it runs no other code."""


@dataclass(slots=True)
class _Shared:
    """What the file holds."""

    sampler: Sampler
    places: dict[int, int] = field(default_factory=dict)
    """By the number that a job has drawn for itself: its place at the sampler."""
    asked: dict[int, float] = field(default_factory=dict)
    """By the same: when it has last asked."""
    first_stamp: int = field(default_factory=partial(randbits, 62))
    """Drawn, and added to the number of a value: those of a sampler that was lost had others."""

    def expel(self, now: float) -> None:
        """Let jobs leave that have not asked for long."""
        for token in [token for token, asked in self.asked.items() if asked < now - LEASE_S]:
            self.leave(token)

    def leave(self, token: int) -> None:
        """Let a job leave, if it is there."""
        self.asked.pop(token, None)
        if (place := self.places.pop(token, None)) is not None:
            self.sampler.leave(self.sampler.jobs[place])


class ComparedJob:
    """A `BatchSampler` of one of the samplers by name, in a folder of this machine.

    With `shade` an epoch is as many servings as there are samples, some of which it repeats and others leaves out. Batches that were not trained on
    count as not served, as with the others: a training that goes on has as many servings left, though not the same.

    Where the folder cannot be used, or the sampler lets the job wait for too long, it serves its own order without hits.

    Args: folder: of this sampler and these samples. capacity: values at most. keys: ascending, none twice. seed: of the order. resumed: `state_dict`
    of the last checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        capacity: int,
        keys: Int64Array,
        seed: int,
        augmented: bool,
        resumed: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not len(keys) or keys[0] < 0 or not (np.diff(keys) > 0).all():
            raise InvalidArgumentError(f"{len(keys)} keys are no samples of a job: at least one, ascending, none twice")
        self._folder, self._name, self._capacity, self._augmented = folder, name, capacity, augmented
        self._keys, self._clock = keys, clock
        self._job = CacheJob(-1, keys, int(keys[-1]) + 1, seed)
        """As it was after the last decision."""
        if resumed is not None:
            self._job.load_state_dict(resumed)
        self._goes_on = resumed is not None
        """Whether it has been served samples before it joins, and perhaps what is cached then."""
        self._is_apart = False
        """Whether it has gone on without the sampler, which knows an earlier state of it."""
        self._losses: list[tuple[Int64Array, Float32Array]] = []
        """Keys and losses that the sampler is given with the next batch."""
        self._token = randbits(62)
        self._num_batches = 0
        self._untrained = UntrainedBatches()
        self._log = get_logger("cache").bind(sampler=name)

    @property
    def epoch(self) -> int:
        """As `BatchSampler.epoch`."""
        return self._job.epoch

    @property
    def num_left(self) -> int:
        """As `BatchSampler.num_left`."""
        return self._job.num_left

    def next_batch(self, size: int) -> SharedBatch:
        """As `BatchSampler.next_batch`."""
        if not self._job.num_left:
            self._job.begin_epoch(self._job.epoch + 1)
        size, servings = min(size, self._job.num_left), list[Serving]()
        give_up = self._clock() + WAIT_S
        while (missing := size - sum(len(serving.samples) for serving in servings)) > 0:
            serving = self._decided(missing)
            if serving is None or (not len(serving.samples) and self._clock() > give_up):
                samples = self._job.ahead(missing)
                self._job.mark(samples)
                self._is_apart = self._goes_on = True
                serving = Serving(samples, np.zeros(len(samples), np.bool_), numbers=np.zeros(len(samples), np.int64))
            elif not len(serving.samples):
                time.sleep(POLL_S)
            servings.append(serving)
        number, self._num_batches = self._num_batches, self._num_batches + 1
        keys = np.concatenate([serving.samples for serving in servings])
        self._untrained.add(number, self._job.epoch, keys)
        columns = zip(
            *((each.hits, each.evicted, each.admitted, each.refilled, each.numbers, each.refilled_numbers) for each in servings),
            strict=True,
        )
        hits, evicted, admitted, refilled, stamps, refilled_stamps = map(np.concatenate, columns)
        # A sample may come into the cache and leave it within one batch.
        kept = among(keys, admitted) & ~hits & ~among(keys, evicted)
        batch = SharedBatch(number, self._job.epoch, keys, hits, kept, evicted, refilled)
        return replace(batch, stamps=stamps, refilled_stamps=refilled_stamps) if self._augmented else batch

    def made(self, number: int, kept: Int64Array = NO_SAMPLES, lost: Int64Array = NO_SAMPLES) -> None:
        """See `BatchSampler.made`. These samplers count a prepared value as kept at once: a batch that reads it earlier finds no
        value with its stamp."""

    def rank(self, keys: Int64Array, losses: Float32Array) -> None:
        """As `BatchSampler.rank`; `shade` chooses by them."""
        if self._name == "shade":
            self._losses = [*self._losses, (keys, losses)][-MOST_LOSSES:]

    def end_epoch(self) -> None:
        """As `BatchSampler.end_epoch`."""
        self._job.num_left = 0

    def state_dict(self, trained: int | None = None) -> dict[str, Any]:
        """As `BatchSampler.state_dict`."""
        return self._untrained.state_of(self._job, trained)

    def report(self) -> None:
        """As `BatchSampler.report`."""
        self._change(lambda shared: shared.asked.update({self._token: self._clock()} if self._token in shared.places else {}))

    def leave(self) -> Int64Array:
        """As `BatchSampler.leave`."""
        self._change(lambda shared: shared.leave(self._token))
        return NO_SAMPLES

    def _change(self, change: Callable[[_Shared], object]) -> None:
        try:
            with self._shared() as shared:
                change(shared)
        except ModynError as error:
            self._log.warning("shared_cache_away", reason=error.message)

    def _decided(self, size: int) -> Serving | None:
        """What the sampler decides; None: it cannot be asked."""
        try:
            with self._shared() as shared:
                sampler = shared.sampler
                if self._is_apart:
                    shared.leave(self._token)
                    self._is_apart = False
                if self._token not in shared.places:
                    state = self._job.state_dict() if self._goes_on else None
                    shared.places[self._token] = sampler.join(self._keys, self._job.seed, state).place
                    self._goes_on = True
                shared.asked[self._token] = self._clock()
                job = sampler.jobs[shared.places[self._token]]
                if job.epoch < self._job.epoch:
                    job.num_left = 0  # It was ended before all was served.
                dropped = [sampler.learn(*batch) for batch in self._losses] if isinstance(sampler, Shade) else []
                serving = sampler.next_batch(job, size)
                serving = serving._replace(
                    evicted=np.concatenate([*dropped, serving.evicted]),
                    numbers=shared.first_stamp + serving.numbers,
                    refilled_numbers=shared.first_stamp + serving.refilled_numbers,
                )
        except ModynError as error:
            self._log.warning("shared_cache_away", reason=error.message)
            return None
        self._losses = []
        self._job = job  # Only now: what could not be written was not decided.
        return serving

    @contextmanager
    def _shared(self) -> Iterator[_Shared]:
        """The sampler, under its lock; what the block has changed is kept. Raises UnavailableError."""
        path = self._folder / "sampler"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(self._folder / "lock", "wb") as lock:
                wait_for_lock(lock.fileno())
                shared = self._read(path)
                shared.expel(self._clock())
                yield shared
                new = path.with_name(f"{token_hex(8)}.new")
                content = pickle.dumps(shared, pickle.HIGHEST_PROTOCOL)
                try:
                    new.write_bytes(zlib.crc32(content).to_bytes(4) + content)
                    new.rename(path)
                finally:
                    new.unlink(missing_ok=True)
                fcntl.flock(lock, fcntl.LOCK_UN)
        except OSError as error:
            raise UnavailableError(f"cannot use {self._folder} for a shared cache: {error.strerror or error}") from error

    def _read(self, path: Path) -> _Shared:
        """What the file holds; a sampler without jobs where there is none for so many samples, or it is damaged."""
        try:
            content = path.read_bytes()
            if zlib.crc32(content[4:]).to_bytes(4) != content[:4]:
                raise ValueError("its checksum is wrong")
            shared = _Unpickler(io.BytesIO(content[4:])).load()
            if isinstance(shared, _Shared) and shared.sampler.num_samples > self._keys[-1]:
                return shared
        except FileNotFoundError:
            pass
        except Exception as error:  # noqa: BLE001  (pickle raises anything on damaged bytes)
            self._log.warning("shared_cache_damaged", reason=str(error))
        num_samples = 1 << int(self._keys[-1]).bit_length()
        return _Shared(SAMPLERS[self._name](num_samples, self._capacity, randbits(31), self._augmented))


_CLASSES: Final = {(kind.__module__, kind.__name__) for kind in (*SAMPLERS.values(), CacheJob, CachedValues, _Shared)}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # A name with dots would lead on to whatever a class refers to.
        is_numpy = module.split(".", maxsplit=1)[0] == "numpy" and name in _OF_NUMPY
        if not is_numpy and (module, name) not in _CLASSES:
            raise pickle.UnpicklingError(f"{module}.{name} is not a part of a sampler")
        return super().find_class(module, name)
