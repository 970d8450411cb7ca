"""What a selection policy takes and returns: the part of a run's stream that a trigger covers, read in chunks, and the selected keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from modyn.errors import CorruptStateError
from modyn.records import Int64Array, KeysAndWeights, SampleBatch
from modyn.selector.window.sampling import BLOCK, sample_positions

_MAX_CHUNK_SIZE = 1_048_576


class SampleReader(Protocol):
    """Random access to the samples of one run by position in its stream: SampleLog, or arrays in tests."""

    def read(self, start: int, end: int) -> SampleBatch:
        """Return samples [start, end)."""

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Return the keys of samples [start, end), which is what most policies need."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A trigger set to be written: `parts` hold `num_keys` keys in all, in stream order."""

    num_keys: int
    parts: Iterator[KeysAndWeights]


@dataclass(frozen=True, slots=True)
class SelectionContext:
    """Which trigger a selection is for, and its source of randomness."""

    seed: int
    trigger_id: int

    def generator(self, purpose: int = 0) -> np.random.Generator:
        """Return a generator of its own for each purpose, independent of what the generators of others have drawn."""
        return np.random.default_rng([self.seed % 2**64, self.trigger_id, purpose])


@dataclass(frozen=True, slots=True)
class SelectionWindow:
    """Positions [start, end) of a run's stream, read at most `chunk_size` samples at a time."""

    reader: SampleReader
    start: int
    end: int
    chunk_size: int
    trigger_starts: tuple[int, ...] = ()
    """Where the samples of each covered trigger begin, oldest first; the last is that of the trigger selected for."""

    def __len__(self) -> int:
        return self.end - self.start

    def last(self, size: int) -> SelectionWindow:
        """Return the window of the `size` samples that were informed last (all, if there are fewer)."""
        return replace(self, start=max(self.start, self.end - size))

    def samples(self) -> Iterator[SampleBatch]:
        """Yield all samples in stream order, chunk by chunk."""
        for first in range(self.start, self.end, self.chunk_size):
            yield self.reader.read(first, min(first + self.chunk_size, self.end))

    def all_keys(self) -> Iterator[Int64Array]:
        """Yield all keys in stream order, chunk by chunk."""
        for first in range(self.start, self.end, self.chunk_size):
            yield self.reader.read_keys(first, min(first + self.chunk_size, self.end))

    def keys_at(self, blocks: Iterator[Int64Array]) -> Iterator[Int64Array]:
        """Yield the keys at ascending positions, counted from the window's start, one or more arrays for each block."""
        for block in blocks:
            done = 0
            while done < len(block):
                first = int(block[done])
                stop = int(np.searchsorted(block, first + self.chunk_size))
                held = self.reader.read_keys(self.start + first, self.start + int(block[stop - 1]) + 1)
                yield held[block[done:stop] - first]
                done = stop


def choose_chunk_size(maximum_keys_in_memory: int) -> int:
    """Return how many samples to read at once: `maximum_keys_in_memory`, but at least a block of the sampler (2 MB), at most 2^20."""
    return min(max(maximum_keys_in_memory, BLOCK), _MAX_CHUNK_SIZE)


def whole(window: SelectionWindow) -> Selection:
    """Select every sample of the window, with weight 1."""
    return Selection(len(window), (_unweighted(keys) for keys in window.all_keys()))


def uniform(window: SelectionWindow, size: int, generator: np.random.Generator) -> Selection:
    """Select `size` samples (at most all) of the window, uniformly at random without replacement, with weight 1."""
    if size >= len(window):
        return whole(window)
    positions = sample_positions(len(window), size, generator)
    return Selection(size, (_unweighted(keys) for keys in window.keys_at(positions)))


def _unweighted(keys: Int64Array) -> KeysAndWeights:
    return KeysAndWeights(keys, np.ones(len(keys), np.float32))


class StatefulPolicy:
    """A policy that may keep state from one trigger of a run to the next. This base keeps none."""

    def state(self) -> dict[str, Any]:
        """Return what the next trigger of the run needs, as small JSON with a `version`; called after all parts were read."""
        return {"version": 1}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the `state()` after the previous trigger. Raises CorruptStateError if this version cannot read it."""
        if dict(state) != {"version": 1}:
            raise CorruptStateError(
                f"the saved state of {type(self).__name__} is {dict(state)}, but it keeps none; "
                "resume the run with the release that started it"
            )
