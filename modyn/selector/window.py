"""What a selection policy works on: the part of a run's stream that a trigger covers, read in pieces, and what comes out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from modyn.errors import CorruptStateError
from modyn.records import Int64Array, KeysAndWeights, SampleBatch
from modyn.selector.sampling import BLOCK, sample_positions

_LARGEST_PIECE = 1_048_576


class SampleReader(Protocol):
    """Random access to the samples of one run by their position in its stream."""

    def read(self, start: int, end: int) -> SampleBatch:
        """Samples [start, end)."""

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Their keys alone, which is what most policies need."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A trigger set in the making: `parts` hold `num_keys` keys in all, in stream order."""

    num_keys: int
    parts: Iterator[KeysAndWeights]


@dataclass(frozen=True, slots=True)
class SelectionContext:
    """Which trigger a selection is for, and its source of randomness."""

    seed: int
    trigger_id: int

    def generator(self, purpose: int = 0) -> np.random.Generator:
        """A generator of its own for each purpose: what one draws does not depend on how much another has drawn."""
        return np.random.default_rng([self.seed % 2**64, self.trigger_id, purpose])


@dataclass(frozen=True, slots=True)
class SelectionWindow:
    """Positions [start, end) of a run's stream, read at most `piece` samples at a time."""

    reader: SampleReader
    start: int
    end: int
    piece: int
    trigger_starts: tuple[int, ...] = ()
    """Where the samples of each covered trigger begin, oldest first; the last is that of the trigger selected for."""

    def __len__(self) -> int:
        return self.end - self.start

    def last(self, size: int) -> SelectionWindow:
        """The newest `size` samples (all, if there are fewer): those that were informed last."""
        return replace(self, start=max(self.start, self.end - size))

    def samples(self) -> Iterator[SampleBatch]:
        """All samples in stream order."""
        for first in range(self.start, self.end, self.piece):
            yield self.reader.read(first, min(first + self.piece, self.end))

    def all_keys(self) -> Iterator[Int64Array]:
        """All keys in stream order."""
        for first in range(self.start, self.end, self.piece):
            yield self.reader.read_keys(first, min(first + self.piece, self.end))

    def keys_at(self, blocks: Iterator[Int64Array]) -> Iterator[Int64Array]:
        """Keys at ascending positions counted from the window's start, block by block."""
        for block in blocks:
            done = 0
            while done < len(block):
                first = int(block[done])
                stop = int(np.searchsorted(block, first + self.piece))
                held = self.reader.read_keys(self.start + first, self.start + int(block[stop - 1]) + 1)
                yield held[block[done:stop] - first]
                done = stop


def piece_size(maximum_keys_in_memory: int) -> int:
    """Samples to read at once: `maximum_keys_in_memory`, but at least one block of the sampler (2 MB) and at most a million."""
    return min(max(maximum_keys_in_memory, BLOCK), _LARGEST_PIECE)


def whole(window: SelectionWindow) -> Selection:
    """Every sample of the window, with weight 1."""
    return Selection(len(window), (_unweighted(keys) for keys in window.all_keys()))


def uniform(window: SelectionWindow, size: int, generator: np.random.Generator) -> Selection:
    """`size` samples of the window, uniformly at random without replacement, with weight 1; all of them if there are no more."""
    if size >= len(window):
        return whole(window)
    positions = sample_positions(len(window), size, generator)
    return Selection(size, (_unweighted(keys) for keys in window.keys_at(positions)))


def _unweighted(keys: Int64Array) -> KeysAndWeights:
    return KeysAndWeights(keys, np.ones(len(keys), np.float32))


class StatefulPolicy:
    """A policy that may keep something from one trigger of a run to the next. This one keeps nothing."""

    def state(self) -> dict[str, Any]:
        """What the next trigger of the run needs to know, as JSON, once all parts were read: small, with a `version`."""
        return {"version": 1}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from the `state()` after the previous trigger. Raises CorruptStateError if this version cannot read it."""
        if dict(state) != {"version": 1}:
            raise CorruptStateError(
                f"the saved state of {type(self).__name__} is {dict(state)}, but it keeps none; "
                "resume the run with the release that started it"
            )
