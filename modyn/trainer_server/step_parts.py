"""Online updates and the step behind them, cut from what is loaded as one batch. Imports torch: for workers only."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from modyn.config.online import OnlineConfig
from modyn.dataset.batch import NO_WORK, NONE_CACHED, Batch, map_tensors
from modyn.records import Int64Array
from modyn.trainer_server.online_steps import parts_of_step


class StepParts:
    """Cuts each batch of a training of steps into its online updates and the step on drawn samples.

    A sample that was left out (deleted meanwhile, or bad) makes its own part smaller, and changes no other one.
    """

    def __init__(self, keys: Int64Array, online: OnlineConfig, *, join_single: bool) -> None:
        """Args: keys: of the trigger set, int64 (n,), in its order. join_single: a part of one sample is joined to the one before it, or where it
        is the first, to the one behind it, as BatchNorm needs two; not where each update is of one sample."""
        self._keys, self._online = keys, online
        self._join = join_single and online.update_samples != 1

    def __call__(self, batch: Batch) -> list[Batch]:
        """The parts of a batch, in their order, of which none is empty."""
        sizes = part_sizes(self._parts_of(batch.keys.numpy(), batch.index), join_single=self._join)
        bounds = np.cumsum([0, *sizes]).tolist()
        return [_part(batch, slice(first, last)) for first, last in pairwise(bounds)]

    def _parts_of(self, keys: Int64Array, index: int) -> Int64Array:
        """The part of each sample of a batch: int64, ascending."""
        online, size = self._online, self._online.batch_size
        # A sample that is alone in its batch is joined to the one before: with it, this batch reaches into the next.
        expected = self._keys[index * size : (index + 2) * size]
        parts, first = list[Int64Array](), 0
        for begin in range(0, len(expected), size):
            count = len(expected[begin : begin + size])
            part = first + parts_of_step(count - online.history_samples, online.history_samples, online.update_samples)
            parts.append(part)
            first = int(part[-1]) + 1
        return np.concatenate(parts)[_places(expected, keys)]


def part_sizes(parts: Int64Array, *, join_single: bool) -> list[int]:
    """How many samples each part has that has any. Args: parts: of each sample, ascending.

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
    """Where each of the keys stands in what was expected, of which some may be missing: int64, ascending."""
    if np.array_equal(expected[: len(keys)], keys):
        return np.arange(len(keys))
    places, at, wanted = list[int](), 0, expected.tolist()
    for key in keys.tolist():
        try:
            at = wanted.index(key, at) + 1
        except ValueError:  # Joined to a batch that it stood before: it counts with what is there.
            at = max(at, 1)
        places.append(at - 1)
    return np.array(places, np.int64)


def _part(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch. What was counted for the whole batch is in the first part alone."""
    data = map_tensors(batch.data, lambda tensor: tensor[rows])
    columns = None if batch.columns is None else batch.columns.slice(rows.start, rows.stop - rows.start)
    labels, weights = batch.labels[rows], batch.weights[rows]
    part = replace(batch, keys=batch.keys[rows], data=data, labels=labels, weights=weights, columns=columns)
    return part if rows.start == 0 else replace(part, num_skipped=0, bad=(), cached=NONE_CACHED, work=NO_WORK)
