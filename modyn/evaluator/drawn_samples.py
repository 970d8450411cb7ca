"""Draw the samples to compare from windows, and divide each window into parts that overlapping windows share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modyn.dataset.key_loader import KEYS_PER_READ
from modyn.evaluator.drift.kept_sums import PART
from modyn.evaluator.records import DriftRequest
from modyn.evaluator.samples import SampleLister, is_inside
from modyn.records import Int64Array, LabelArray, StreamWindow


@dataclass(frozen=True, slots=True, eq=False)
class DrawnSamples:
    """The compared samples of a window, ordered by key. keys, positions: int64 (n,); labels: (n,)."""

    keys: Int64Array
    positions: Int64Array
    """Positions of the samples in the stream."""
    labels: LabelArray

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, chosen: NDArray[Any]) -> DrawnSamples:
        """Return some of the samples, selected by indices or by a mask."""
        return DrawnSamples(self.keys[chosen], self.positions[chosen], self.labels[chosen])

    def drawn(self, size: int | None, seed: int) -> DrawnSamples:
        """See `drawn_indices`."""
        return self.take(drawn_indices(self.keys, size, seed))

    def parts(self) -> list[Int64Array]:
        """Divide the samples into parts in stream order. Returns the indices of the samples of each part.

        Parts end at positions that are multiples of `PART`, so that overlapping windows share most parts. If fewer than about half of the samples
        were drawn, each part has `PART` samples instead.
        """
        order = np.argsort(self.positions, kind="stable").astype(np.int64)
        numbers = self.positions[order] // PART
        if len(order) < (numbers[-1] - numbers[0] - 1) * PART / 2:
            numbers = np.arange(len(order)) // PART
        return np.split(order, np.flatnonzero(np.diff(numbers)) + 1)


def drawn_of(request: DriftRequest, windows: Sequence[StreamWindow], lister: SampleLister) -> dict[StreamWindow, DrawnSamples]:
    """Return the samples of each window, at most `sample_size` samples per window. Samples of overlapping windows are listed once."""
    size, seed = request.question.sample_size, request.question.seed
    held: dict[StreamWindow, list[DrawnSamples]] = {window: [] for window in windows}
    for positions, batch in lister.at_positions(request.run_id, windows):
        for window, parts in held.items():
            inside = is_inside(window, positions, batch.timestamps)
            if inside.any():
                parts.append(DrawnSamples(batch.keys, positions, batch.labels).take(inside))
            # Early draws bound the memory. A sample that is dropped here cannot be drawn later, because `size` samples have smaller hashes.
            if size is not None and sum(map(len, parts)) > size + KEYS_PER_READ:
                held[window] = [_joined(parts).drawn(size, seed)]
    return {window: _joined(parts).drawn(size, seed) for window, parts in held.items()}


def _joined(parts: Sequence[DrawnSamples]) -> DrawnSamples:
    empty = np.empty(0, np.int64)
    columns = [(part.keys, part.positions, part.labels) for part in parts] or [(empty, empty, empty)]
    return DrawnSamples(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def drawn_indices(keys: Int64Array, size: int | None, seed: int) -> Int64Array:
    """Return the indices of the `size` keys with the smallest hashes, ordered by key, int64. None selects all keys.

    Two overlapping windows therefore draw mostly the same samples of their common part. A sample that is drawn from a window is also drawn from every
    part of the window that contains the sample (bottom-k sampling).
    """
    chosen = np.arange(len(keys))
    if size is not None and size < len(keys):
        chosen = np.argpartition(hashes(keys, seed), size - 1)[:size]
    return chosen[np.argsort(keys[chosen], kind="stable")].astype(np.int64)


def hashes(keys: Int64Array, seed: int) -> NDArray[np.uint64]:
    """Hash each key, uint64 (n,). Different keys have different hashes. (Steele, Lea and Flood: SplitMix, 2014, the 64-bit mix.)"""
    seed_bits = np.array([seed & (2**64 - 1)], np.uint64)
    return _mixed(keys.astype(np.int64).view(np.uint64) ^ _mixed(seed_bits))


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
