"""What a selection policy takes and returns: the samples of a run's stream that a trigger covers, read in chunks, and the selected keys.

Then the readers of these samples: by position in the stream, deleted ones left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from modyn._core import KeySet
from modyn.errors import ConfigError
from modyn.records import Int64Array, KeysAndWeights, LabelArray, SampleBatch
from modyn.rpc.retry import CancellationToken
from modyn.selector.window.feedback import Feedback
from modyn.selector.window.sampling import BLOCK, sample_positions
from modyn.selector.window.state_files import StateFiles

MOST_RANGES = 65_536
"""Ranges of one trigger set: 1 MiB."""
NO_KEYS = KeySet(np.zeros(0, np.int64))
_MAX_CHUNK_SIZE = 1_048_576


@dataclass(frozen=True, slots=True)
class Selection:
    """A trigger set to be written: `chunks` hold `num_keys` keys in all, in stream order.

    ranges: the positions [start, end) of the run's stream that these keys stand at, in order, if all have weight 1: they are stored in
    place of the keys. None: the keys are stored.
    """

    num_keys: int
    chunks: Iterator[KeysAndWeights]
    ranges: Sequence[tuple[int, int]] | None = None


def _no_column(column: str, keys: Int64Array) -> Int64Array:
    raise ConfigError(f"no dataset is at hand here whose column '{column}' could be read; give the context a `column`")


@dataclass(frozen=True, slots=True)
class SelectionContext:
    """Which trigger a selection is for, its source of randomness, and what earlier triggers have left.

    files: what the policy keeps from trigger to trigger and what is too large for `state()`. trigger_ends: returns how many samples of the
    stream each earlier trigger covers, int64, ascending. feedback: returns what the training of an earlier trigger has scored, of what
    `SelectionPolicy.feedback` asks for; None: it has not. column: returns a stratum for each of some keys, int64 (n,), by their values in the
    column of this name of the dataset: see `modyn.selector.window.column_strata`, by which each is asked for once. Raises: ConfigError.
    """

    seed: int
    trigger_id: int
    files: StateFiles
    trigger_ends: Callable[[], Int64Array]
    feedback: Callable[[int], Feedback | None] = lambda _: None
    column: Callable[[str, Int64Array], Int64Array] = _no_column

    def generator(self, purpose: int = 0) -> np.random.Generator:
        """Return a generator of its own for each purpose, independent of what the generators of others have drawn.

        Args: purpose: number that distinguishes the generators of one selection.
        """
        return np.random.default_rng([self.seed % 2**64, self.trigger_id, purpose])


@dataclass(frozen=True, slots=True)
class SelectionWindow:
    """Positions [start, end) of a run's stream, read at most `chunk_size` samples at a time.

    stream_start: where in the stream the window of the trigger begins, whether the sample there is deleted or not. deleted: keys of samples that
    are left out.
    """

    reader: SampleReader
    start: int
    end: int
    chunk_size: int
    stream_start: int = 0
    deleted: KeySet = NO_KEYS

    def __len__(self) -> int:
        return self.end - self.start

    def last(self, size: int) -> SelectionWindow:
        """Return the window of the `size` samples that were informed last (all, if there are fewer)."""
        return replace(self, start=max(self.start, self.end - size))

    def ranges(self) -> list[tuple[int, int]] | None:
        """Return the window as ranges [start, end) of positions in the stream; None if they would take more space than keys."""
        return self.reader.ranges(self.start, self.end)

    def samples(self) -> Iterator[SampleBatch]:
        """Yield all samples in stream order, at most `chunk_size` at once."""
        for first in range(self.start, self.end, self.chunk_size):
            yield self.reader.read(first, min(first + self.chunk_size, self.end))

    def all_keys(self) -> Iterator[Int64Array]:
        """Yield all keys in stream order, int64, at most `chunk_size` at once."""
        for first in range(self.start, self.end, self.chunk_size):
            yield self.reader.read_keys(first, min(first + self.chunk_size, self.end))

    def labels(self) -> Iterator[LabelArray]:
        """Yield all labels in stream order, int64 or float64, at most `chunk_size` at once."""
        for first in range(self.start, self.end, self.chunk_size):
            yield self.reader.read_labels(first, min(first + self.chunk_size, self.end))

    def positions(self) -> Iterator[Int64Array]:
        """Yield where each sample stands in the run's stream, int64, ascending, at most `chunk_size` at once. A deletion changes none."""
        for first in range(self.start, self.end, self.chunk_size):
            yield self.reader.positions(first, min(first + self.chunk_size, self.end))

    def keys_at(self, blocks: Iterator[Int64Array]) -> Iterator[Int64Array]:
        """Yield the keys at the positions in `blocks`, int64, ascending, counted from the window's start: one or more arrays a block."""
        for block in blocks:
            done = 0
            while done < len(block):
                first = int(block[done])
                stop = int(np.searchsorted(block, first + self.chunk_size))
                held = self.reader.read_keys(self.start + first, self.start + int(block[stop - 1]) + 1)
                yield held[block[done:stop] - first]
                done = stop


def trigger_before_window(trigger_id: int, tail_triggers: int | None) -> int | None:
    """Return the trigger behind whose samples the window of `trigger_id` begins; None: it begins with the stream.

    Args: tail_triggers: how many earlier triggers it reaches back; None: all of them.

    >>> [trigger_before_window(3, tail) for tail in (None, 0, 1, 3)]
    [None, 2, 1, None]
    """
    return None if tail_triggers is None or tail_triggers >= trigger_id else trigger_id - tail_triggers - 1


def window_of_trigger(
    reader: SampleReader, start: int, end: int, maximum_keys_in_memory: int, deleted: KeySet = NO_KEYS
) -> SelectionWindow:
    """Return the window of a trigger over the first `end` samples of the stream, from position `start` on.

    Args: maximum_keys_in_memory: samples to read at once, but at least a block of the sampler (2 MB) and at most 2^20. deleted: keys of samples
    that the window is to leave out; its positions count those that exist.
    """
    chunk_size = min(max(maximum_keys_in_memory, BLOCK), _MAX_CHUNK_SIZE)
    if len(deleted):
        live = LiveReader(reader, start, end, deleted)
        if len(live) < end - start:
            return SelectionWindow(live, 0, len(live), chunk_size, start, deleted)
    return SelectionWindow(reader, start, end, chunk_size, start)


def whole(window: SelectionWindow) -> Selection:
    """Select every sample of the window, with weight 1."""
    return Selection(len(window), map(KeysAndWeights.unweighted, window.all_keys()), window.ranges())


def uniform(window: SelectionWindow, size: int, generator: np.random.Generator) -> Selection:
    """Select `size` samples (at most all) of the window, uniformly at random without replacement, with weight 1."""
    if size >= len(window):
        return whole(window)
    positions = sample_positions(len(window), size, generator)
    return Selection(size, map(KeysAndWeights.unweighted, window.keys_at(positions)))


class SampleReader(Protocol):
    """Random access to the samples of one run by position in its stream: SampleLog, or arrays in tests."""

    def read(self, start: int, end: int) -> SampleBatch:
        """Return samples [start, end), positions from 0 in the stream, all of which must exist."""

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Return the keys of samples [start, end), int64 (end - start,), which is what most policies need."""

    def read_labels(self, start: int, end: int) -> LabelArray:
        """Return the labels of samples [start, end), int64 or float64 (end - start,)."""

    def positions(self, start: int, end: int) -> Int64Array:
        """Return where samples [start, end) stand in the run's stream: int64 (end - start,), ascending."""

    def ranges(self, start: int, end: int) -> list[tuple[int, int]] | None:
        """Return samples [start, end) as ranges [start, end) of positions in the run's stream; None if they would take more space than keys."""


class StreamReader:
    """The part of a reader of a whole stream, whose samples are numbered by their positions."""

    def positions(self, start: int, end: int) -> Int64Array:
        """Return the positions [start, end)."""
        return np.arange(start, end)

    def ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return samples [start, end) as ranges of positions: one, or none if there are no samples."""
        return [(start, end)] if end > start else []


class CancellableReader:
    """Reads as `reader` does, until `token` is cancelled: from then on each read raises its cause."""

    def __init__(self, reader: SampleReader, token: CancellationToken) -> None:
        self._reader = reader
        self._token = token

    def read(self, start: int, end: int) -> SampleBatch:
        """Return samples [start, end)."""
        self._token.check()
        return self._reader.read(start, end)

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Return the keys of samples [start, end)."""
        self._token.check()
        return self._reader.read_keys(start, end)

    def read_labels(self, start: int, end: int) -> LabelArray:
        """Return the labels of samples [start, end)."""
        self._token.check()
        return self._reader.read_labels(start, end)

    def positions(self, start: int, end: int) -> Int64Array:
        """Return where samples [start, end) stand in the stream."""
        self._token.check()
        return self._reader.positions(start, end)

    def ranges(self, start: int, end: int) -> list[tuple[int, int]] | None:
        """Return samples [start, end) as ranges of positions."""
        self._token.check()
        return self._reader.ranges(start, end)


class LiveReader:
    """Samples [start, end) of a stream without those whose keys are deleted, numbered from 0 in stream order.

    All keys are read once when it is made. Memory: 16 bytes for each BLOCK samples, and a block.
    """

    def __init__(self, reader: SampleReader, start: int, end: int, deleted: KeySet) -> None:
        self._reader, self._end, self._deleted = reader, end, deleted
        self._positions = np.array([*range(start, end, BLOCK), end], np.int64)
        existing = [0]
        for first in range(start, end, BLOCK):
            last = min(first + BLOCK, end)
            existing.append(last - first - int(np.count_nonzero(deleted.contains(reader.read_keys(first, last)))))
        self._numbers = np.cumsum(existing, dtype=np.int64)
        """How many samples exist before each of `_positions`."""

    def __len__(self) -> int:
        return int(self._numbers[-1])

    def read(self, start: int, end: int) -> SampleBatch:
        """Return the samples with numbers [start, end)."""
        batches = []
        for first, _, chosen in self._blocks(start, end):
            held = self._reader.read(first, first + int(chosen[-1]) + 1)
            batches.append(SampleBatch(held.keys[chosen], held.timestamps[chosen], held.labels[chosen]))
        return SampleBatch.concatenate(batches) if batches else self._reader.read(self._end, self._end)

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Return the keys of the samples with numbers [start, end): int64 (end - start,)."""
        return np.concatenate([np.zeros(0, np.int64), *(keys[chosen] for _, keys, chosen in self._blocks(start, end))])

    def read_labels(self, start: int, end: int) -> LabelArray:
        """Return the labels of the samples with numbers [start, end)."""
        blocks = self._blocks(start, end)
        labels: list[Any] = [self._reader.read_labels(first, first + int(chosen[-1]) + 1)[chosen] for first, _, chosen in blocks]
        return np.concatenate(labels) if labels else self._reader.read_labels(self._end, self._end)

    def positions(self, start: int, end: int) -> Int64Array:
        """Return where the samples with numbers [start, end) stand in the stream: int64 (end - start,)."""
        return np.concatenate([np.zeros(0, np.int64), *(first + chosen for first, _, chosen in self._blocks(start, end))])

    def ranges(self, start: int, end: int) -> list[tuple[int, int]] | None:
        """Return the samples with numbers [start, end) as ranges of positions in the stream; None if these are more than MOST_RANGES, or
        more than half as many as the samples."""
        found: list[tuple[int, int]] = []
        for first, _, chosen in self._blocks(start, end):
            breaks = np.flatnonzero(np.diff(chosen) != 1) + 1
            for stretch in np.split(chosen + first, breaks):
                begin, stop = int(stretch[0]), int(stretch[-1]) + 1
                if found and found[-1][1] == begin:
                    begin = found.pop()[0]
                found.append((begin, stop))
            if len(found) > min(MOST_RANGES, (end - start) // 2):
                return None
        return found

    def _blocks(self, start: int, end: int) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """Yield, for blocks that hold samples with numbers [start, end): first position, all keys, and which of them are these samples."""
        nearest = int(np.searchsorted(self._numbers, start, "right")) - 1
        position, number = int(self._positions[nearest]), int(self._numbers[nearest])
        while number < end and position < self._end:
            keys = self._reader.read_keys(position, min(position + BLOCK, self._end))
            existing = np.flatnonzero(~self._deleted.contains(keys))
            if len(chosen := existing[max(start - number, 0) : end - number]):
                yield position, keys, chosen
            position, number = position + len(keys), number + len(existing)
