"""Simulated jobs of a sampler, each with its own speed and start: hits and prepared samples by position and time."""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmark.cache.samplers import SAMPLERS, CacheJob, Shade

BINS = 20


@dataclass(frozen=True)
class Setting:
    """What is simulated. share: share of samples that fit into the cache. starts: of each job, in epochs of the first job. speeds: of each job."""

    num_samples: int
    share: float
    starts: tuple[float, ...]
    speeds: tuple[float, ...]
    epochs: int = 3
    batch_size: int = 256
    seed: int = 0

    @staticmethod
    def in_step(num_samples: int, share: float, num_jobs: int, epochs: int = 3, batch_size: int = 256) -> Setting:
        """Return jobs that begin together and have one speed."""
        return Setting(num_samples, share, (0.0,) * num_jobs, (1.0,) * num_jobs, epochs, batch_size)


class Outcome(NamedTuple):
    """Results of the epochs after the first of each job, until the first job ends."""

    hits: float
    """Share of the served samples that are hits."""
    prepared: float
    """For each served sample, in the background too."""
    position: float
    """Mean position of the hits in their epochs, 0 … 1; NaN: there are none."""
    by_position: NDArray[np.float64]
    """(BINS,), share of hits in each part of an epoch."""
    repeats_order: float
    """Correlation of the places of samples in one epoch of the first job and the next; NaN: fewer than two."""
    pace: float
    """Share of the samples that jobs which never wait would be served."""
    seconds: float


class _Tally:
    """Sums over the counted servings, and orders of the first job."""

    def __init__(self, setting: Setting) -> None:
        self.bins = np.zeros((2, BINS))
        self.prepared = self.position = self.all_served = 0.0
        self.places: dict[int, NDArray[np.int64]] = {}
        self._num_samples = setting.num_samples

    def add(self, job: CacheJob, batch: Any, first: bool) -> None:
        size = len(batch.samples)
        at = np.arange(self._num_samples - job.num_left - size, self._num_samples - job.num_left)
        self.all_served += size
        if job.epoch:
            places = at * BINS // self._num_samples
            self.bins += [np.bincount(places, minlength=BINS), np.bincount(places[batch.hits], minlength=BINS)]
            self.prepared += batch.num_prepared
            self.position += at[batch.hits].sum() / self._num_samples
        if first:
            self.places.setdefault(job.epoch, np.zeros(self._num_samples, np.int64))[batch.samples] = at


def simulate(name: str, setting: Setting) -> Outcome:
    """Serve the jobs, with augmented values if the sampler can keep them. A job that has to wait asks again one batch later."""
    began = time.perf_counter()
    kind = SAMPLERS[name]
    capacity = round(setting.share * setting.num_samples)
    sampler = kind(setting.num_samples, capacity, setting.seed, augmented=not kind.serves_again)
    if isinstance(sampler, Shade):
        sampler.rank(np.random.default_rng(setting.seed).lognormal(size=setting.num_samples))
    tally, samples = _Tally(setting), np.arange(setting.num_samples)
    starts = [start * setting.num_samples / setting.speeds[0] for start in setting.starts]
    # All end when one has ended: another would be alone at the cache, which is another setting.
    end = min(at + setting.epochs * setting.num_samples / speed for at, speed in zip(starts, setting.speeds, strict=True))
    turns = [(at, number) for number, at in enumerate(starts)]
    heapq.heapify(turns)
    jobs: dict[int, CacheJob] = {}
    while turns and turns[0][0] < end - 1e-6:
        now, number = heapq.heappop(turns)
        for due in [due for due, at in enumerate(starts) if at <= now and due not in jobs]:
            jobs[due] = sampler.join(samples, setting.seed + due)
        batch = sampler.next_batch(jobs[number], setting.batch_size)
        if len(batch.samples):
            tally.add(jobs[number], batch, number == 0)
        heapq.heappush(turns, (now + (len(batch.samples) or setting.batch_size) / setting.speeds[number], number))
    asked = sum((end - at) * speed for at, speed in zip(starts, setting.speeds, strict=True) if at < end)
    return _outcome(tally, asked, time.perf_counter() - began)


def _outcome(tally: _Tally, asked: float, seconds: float) -> Outcome:
    served, hits = tally.bins.sum(1)
    complete = [tally.places[epoch] for epoch in sorted(tally.places)[:-1]]
    repeated = [float(np.corrcoef(one, other)[0, 1]) for one, other in pairwise(complete)]
    return Outcome(
        hits / max(1, served),
        tally.prepared / max(1, served),
        tally.position / hits if hits else float("nan"),
        tally.bins[1] / np.maximum(1, tally.bins[0]),
        float(np.mean(repeated)) if repeated else float("nan"),
        min(1.0, tally.all_served / asked),
        seconds,
    )
