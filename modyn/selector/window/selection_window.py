"""Input and output of a selection policy: the samples of the stream that a trigger covers, in chunks, and the selected keys.

The module also contains readers of these samples: a base for readers of a whole stream, a reader with cancellation, and a reader without deleted
samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from modyn._core import KeySet
from modyn.errors import ConfigError, CorruptStateError
from modyn.records import Int64Array, KeysAndWeights, LabelArray, SampleBatch
from modyn.rpc.retry import CancellationToken
from modyn.selector.window.feedback import Feedback
from modyn.selector.window.sampling import BLOCK, sample_positions
from modyn.selector.window.state_files import StateFiles

MOST_RANGES = 65_536
"""Largest number of ranges of one trigger set: 1 MiB."""
NO_KEYS = KeySet(np.zeros(0, np.int64))
_MAX_CHUNK_SIZE = 1_048_576
"""Largest number of samples that are read at once (24 MiB), however large `maximum_keys_in_memory` is."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A trigger set to be written. Its `chunks` hold `num_keys` keys in all, in stream order.

    ranges: the positions [start, end) of these keys in the run's stream, in order. If all weights are 1, the file may contain these ranges instead of
    the keys. None: the file contains the keys.
    """

    num_keys: int
    chunks: Iterator[KeysAndWeights]
    ranges: Sequence[tuple[int, int]] | None = None


def _no_column(column: str, keys: Int64Array) -> Int64Array:
    raise ConfigError(f"no dataset is at hand here whose column '{column}' could be read; give the context a `column`")


@dataclass(frozen=True, slots=True)
class SelectionContext:
    """The trigger of a selection, its source of randomness, and the state of earlier triggers.

    files: state of the policy that is kept between triggers, and is too large for `state()`. trigger_ends: returns the number of samples of the
    stream that each earlier trigger covers, int64, ascending. feedback: for an earlier trigger, returns the scores of its training that
    `SelectionPolicy.feedback` names, or None. column: for the name of a column and keys, returns the stratum of each key, int64 (n,); raises
    ConfigError. Read columns through `modyn.selector.window.column_strata`, which requests each value once.
    """

    seed: int
    trigger_id: int
    files: StateFiles
    trigger_ends: Callable[[], Int64Array]
    feedback: Callable[[int], Feedback | None] = lambda _: None
    column: Callable[[str, Int64Array], Int64Array] = _no_column

    def generator(self, purpose: int = 0) -> np.random.Generator:
        """Return a generator for a purpose, independent of the draws of other generators.

        Args: purpose: number that distinguishes the generators of one selection.
        """
        return np.random.default_rng([self.seed % 2**64, self.trigger_id, purpose])


@dataclass(frozen=True, slots=True)
class SelectionWindow:
    """Positions [start, end) of a run's stream, read at most `chunk_size` samples at a time.

    stream_start: position in the stream at which the window of the trigger begins, even if the sample at this position is deleted. deleted: keys of
    samples that are left out.
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
        """Return the window of the last `size` samples of this window, or of all samples if the window has fewer."""
        return replace(self, start=max(self.start, self.end - size))

    def ranges(self) -> list[tuple[int, int]] | None:
        """Return the window as ranges [start, end) of positions in the stream; None if ranges would take more space than keys."""
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
        """Yield the position of each sample in the run's stream, int64, ascending, at most `chunk_size` at once. Deletions change no position."""
        for first in range(self.start, self.end, self.chunk_size):
            yield self.reader.positions(first, min(first + self.chunk_size, self.end))

    def keys_at(self, blocks: Iterator[Int64Array]) -> Iterator[Int64Array]:
        """Yield the keys at the positions in `blocks`. Positions are int64, ascending, and counted from the window's start. Each block gives one or
        more arrays of keys.
        """
        for block in blocks:
            done = 0
            while done < len(block):
                first = int(block[done])
                # A read covers at most `chunk_size` samples, even if the positions of a block are far apart.
                stop = int(np.searchsorted(block, first + self.chunk_size))
                held = self.reader.read_keys(self.start + first, self.start + int(block[stop - 1]) + 1)
                yield held[block[done:stop] - first]
                done = stop


def trigger_before_window(trigger_id: int, tail_triggers: int | None) -> int | None:
    """Return the last trigger whose samples the window of `trigger_id` leaves out, or None if the window begins with the stream.

    Args: tail_triggers: number of earlier triggers that the window includes; None includes all triggers.

    >>> [trigger_before_window(3, tail) for tail in (None, 0, 1, 3)]
    [None, 2, 1, None]
    """
    return None if tail_triggers is None or tail_triggers >= trigger_id else trigger_id - tail_triggers - 1


def window_of_trigger(
    reader: SampleReader, start: int, end: int, maximum_keys_in_memory: int, deleted: KeySet = NO_KEYS
) -> SelectionWindow:
    """Return the window of a trigger over the first `end` samples of the stream, from position `start` on.

    Args: maximum_keys_in_memory: number of samples to read at once, but at least a block of the sampler (2 MB) and at most 2^20. deleted: keys of
    samples that the window leaves out. The window numbers only the remaining samples.
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
    """Reads the samples of one run by position in its stream. Tests use arrays in place of a `SampleLog`."""

    def read(self, start: int, end: int) -> SampleBatch:
        """Return the samples at positions [start, end) of the stream, counted from 0. All these samples must exist."""

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Return the keys of samples [start, end), int64 (end - start,). Most policies need only the keys."""

    def read_labels(self, start: int, end: int) -> LabelArray:
        """Return the labels of samples [start, end), int64 or float64 (end - start,)."""

    def positions(self, start: int, end: int) -> Int64Array:
        """Return the positions of samples [start, end) in the run's stream: int64 (end - start,), ascending."""

    def ranges(self, start: int, end: int) -> list[tuple[int, int]] | None:
        """Return samples [start, end) as ranges of positions in the run's stream, or None if the ranges would take more space than keys."""


class StreamReader:
    """Base of readers of a whole stream, which number samples by their positions."""

    def positions(self, start: int, end: int) -> Int64Array:
        """Return the positions [start, end)."""
        return np.arange(start, end)

    def ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return samples [start, end) as one range of positions, or as no range if there are no samples."""
        return [(start, end)] if end > start else []


class CancellableReader:
    """Reads as `reader` does. After `token` is cancelled, each read raises the cause of the cancellation, which ends the selection."""

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
        """Return the positions of samples [start, end) in the stream."""
        self._token.check()
        return self._reader.positions(start, end)

    def ranges(self, start: int, end: int) -> list[tuple[int, int]] | None:
        """Return samples [start, end) as ranges of positions."""
        self._token.check()
        return self._reader.ranges(start, end)


class LiveReader:
    """Reads the existing samples among positions [start, end) of a stream. Existing samples are numbered from 0 in stream order.

    The constructor reads all keys once. Memory: 16 bytes for each BLOCK samples, and one block of keys.
    """

    def __init__(self, reader: SampleReader, start: int, end: int, deleted: KeySet) -> None:
        self._reader, self._end, self._deleted = reader, end, deleted
        self._positions = np.array([*range(start, end, BLOCK), end], np.int64)
        existing = [0]
        for first in range(start, end, BLOCK):
            last = min(first + BLOCK, end)
            existing.append(last - first - int(np.count_nonzero(deleted.contains(reader.read_keys(first, last)))))
        self._numbers = np.cumsum(existing, dtype=np.int64)
        """The number of samples that exist before each of `_positions`."""

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
        """Return the positions of the samples with numbers [start, end) in the stream: int64 (end - start,)."""
        return np.concatenate([np.zeros(0, np.int64), *(first + chosen for first, _, chosen in self._blocks(start, end))])

    def ranges(self, start: int, end: int) -> list[tuple[int, int]] | None:
        """Return the samples with numbers [start, end) as ranges of positions in the stream. Return None if there would be more than MOST_RANGES
        ranges, or more than one range per two samples.
        """
        found: list[tuple[int, int]] = []
        for first, _, chosen in self._blocks(start, end):
            breaks = np.flatnonzero(np.diff(chosen) != 1) + 1
            for run in np.split(chosen + first, breaks):
                begin, stop = int(run[0]), int(run[-1]) + 1
                # A range may continue from block to block.
                if found and found[-1][1] == begin:
                    begin = found.pop()[0]
                found.append((begin, stop))
            if len(found) > min(MOST_RANGES, (end - start) // 2):
                return None
        return found

    def _blocks(self, start: int, end: int) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """Yield the blocks that hold samples with numbers [start, end). For each block: its first position, all its keys, and the indices of these
        samples among the keys.
        """
        nearest = int(np.searchsorted(self._numbers, start, "right")) - 1
        position, number = int(self._positions[nearest]), int(self._numbers[nearest])
        while number < end and position < self._end:
            keys = self._reader.read_keys(position, min(position + BLOCK, self._end))
            existing = np.flatnonzero(~self._deleted.contains(keys))
            if len(chosen := existing[max(start - number, 0) : end - number]):
                yield position, keys, chosen
            position, number = position + len(keys), number + len(existing)


class StatefulPolicy:
    """A policy that may keep state from one trigger of a run to the next trigger. This base keeps no state."""

    def state(self) -> dict[str, Any]:
        """Return the state for the next trigger of the run, as small JSON with a `version`. The selector calls this method after all chunks of the
        selection were read.

        State that grows with the stream belongs in `SelectionContext.files`.
        """
        return {"version": 1}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the `state()` of the previous trigger. Raises CorruptStateError if this version cannot read the state."""
        if dict(state) != {"version": 1}:
            raise CorruptStateError(
                f"the saved state of {type(self).__name__} is {dict(state)}, but it keeps none; "
                "resume the run with the release that started it"
            )
