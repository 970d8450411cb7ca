"""Replacement of samples in a batch by cached ones, which both samplers for augmented values share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmark.cache.samplers.values import CachedValues
from modyn.cache.sample_numbers import among
from modyn.cache.sharing.cache_job import CacheJob
from modyn.records import Int64Array


class Substituted(NamedTuple):
    """The samples of a batch, with those of their values that are served once more and not again."""

    hits: Int64Array
    missed: Int64Array
    hand: int
    """Slot after the last examined value."""
    served_out: Int64Array
    """Hits that all jobs that train on them have been served with this batch."""
    new: Int64Array
    """Missed samples that have no value in the cache."""


def substitute(
    values: CachedValues, job: CacheJob, candidates: Int64Array, size: int, num_hits: int, hand: int, augmented: bool
) -> Substituted:
    """Choose `size` samples that an epoch has still to serve, `num_hits` of them among cached ones if there are as many.

    The others are the first in the job's order that are not cached. Where too few are left of these, cached ones take their place; a job that was
    served an augmented value in an earlier epoch misses the sample, and the cached value stays for other jobs.
    Args: candidates: the first of the order, twice as many as `size`, or all that are left. hand: slot from which to look for cached samples.
    """
    slots = values.slot_of[candidates]
    hits, hand = values.find(job.place, job.seen, hand, num_hits, augmented)
    new = candidates[slots < 0][: size - len(hits)]
    missed = new
    if len(hits) + len(new) < size:
        left = (slots >= 0) & ~among(candidates, hits)
        rest, slots = candidates[left], slots[left]
        old = values.was_served(job.place, slots) if augmented else np.zeros(len(rest), np.bool_)
        more = rest[~old][: size - len(hits) - len(new)]
        hits = np.concatenate([hits, more])
        missed = np.concatenate([new, rest[old][: size - len(hits) - len(new)]])
    last = values.servings[values.slot_of[hits]] + 1 >= values.sharers[hits]
    return Substituted(hits, missed, hand, hits[last], new)
