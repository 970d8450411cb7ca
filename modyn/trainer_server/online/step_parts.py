"""Split a loaded batch into online updates and the step after these updates. Imports torch: for workers only."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from modyn.config.online import OnlineConfig
from modyn.dataset.batch import NO_WORK, NONE_CACHED, Batch, map_tensors
from modyn.records import Int64Array
from modyn.trainer_server.request.step_config import parts_of_step


class StepParts:
    """Splits each batch of an online training into its online updates and the step on drawn samples.

    A missing sample (deleted meanwhile, or bad) makes only its own part smaller.
    """

    def __init__(self, keys: Int64Array, online: OnlineConfig, *, join_single: bool) -> None:
        """Args: keys: keys of the trigger set, int64 (n,), in the order of the set. join_single: join a part of one sample to the previous part, or
        the first part to the next part, because BatchNorm needs two samples. The option has no effect if each update has one sample.
        """
        self._keys, self._online = keys, online
        self._join = join_single and online.update_samples != 1

    def __call__(self, batch: Batch) -> list[Batch]:
        """Return the parts of a batch in order, without empty parts."""
        sizes = part_sizes(self._parts_of(batch.keys.numpy(), batch.index), join_single=self._join)
        bounds = np.cumsum([0, *sizes]).tolist()
        return [_part(batch, slice(first, last)) for first, last in pairwise(bounds)]

    def _parts_of(self, keys: Int64Array, index: int) -> Int64Array:
        """Return the part of each sample of a batch: int64, ascending."""
        online, size = self._online, self._online.batch_size
        # A batch of one sample is joined to the previous batch, so that a batch may contain a sample of the next batch.
        expected = self._keys[index * size : (index + 2) * size]
        parts, first = list[Int64Array](), 0
        for begin in range(0, len(expected), size):
            count = len(expected[begin : begin + size])
            part = first + parts_of_step(count - online.history_samples, online.history_samples, online.update_samples)
            parts.append(part)
            first = int(part[-1]) + 1
        return np.concatenate(parts)[_places(expected, keys)]


def part_sizes(parts: Int64Array, *, join_single: bool) -> list[int]:
    """Return the number of samples in each part, without empty parts. Args: parts: part of each sample, ascending.

    >>> part_sizes(np.array([0, 0, 2, 3, 3]), join_single=False), part_sizes(np.array([0, 1, 1, 2]), join_single=True)
    ([2, 1, 2], [4])
    """
    sizes = [int(count) for count in np.bincount(parts) if count]
    if not join_single:
        return sizes
    joined = list[int]()
    for size in sizes:
        if joined and 1 in (size, joined[-1]):
            joined[-1] += size
        else:
            joined.append(size)
    return joined


def _places(expected: Int64Array, keys: Int64Array) -> Int64Array:
    """Return the position of each key among the expected keys: int64, ascending. Some expected keys may be missing."""
    if np.array_equal(expected[: len(keys)], keys):
        return np.arange(len(keys))
    places, at, wanted = list[int](), 0, expected.tolist()
    for key in keys.tolist():
        try:
            at = wanted.index(key, at) + 1
        except ValueError:
            # The sample is from the previous batch and was joined to this batch. The sample gets the part of the previous sample, or the first part
            # if there is none.
            at = max(at, 1)
        places.append(at - 1)
    return np.array(places, np.int64)


def _part(batch: Batch, rows: slice) -> Batch:
    """Return some rows of a batch. Counts for the whole batch are only in the first part."""
    data = map_tensors(batch.data, lambda tensor: tensor[rows])
    columns = None if batch.columns is None else batch.columns.slice(rows.start, rows.stop - rows.start)
    labels, weights = batch.labels[rows], batch.weights[rows]
    part = replace(batch, keys=batch.keys[rows], data=data, labels=labels, weights=weights, columns=columns)
    return part if rows.start == 0 else replace(part, num_skipped=0, bad=(), cached=NONE_CACHED, work=NO_WORK)
