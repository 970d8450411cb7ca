"""Online policies: a bounded buffer of keys that lives from trigger to trigger, and is offered each new sample of the stream once, in order.

What a policy decides is pure (`Decider`): labels in, slots of the buffer out. This file brings the stream to it, and keeps the buffer in a file
beside the trigger set. The buffer is the trigger set.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from modyn.columnar import Array
from modyn.errors import ConfigError
from modyn.records import Int64Array, KeysAndWeights
from modyn.selector.presampling import PresamplingConfig, PresamplingPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow
from modyn.selector.window.strata import as_strata

_FILE: Final = "buffer"
_ROW: Final = ("positions", "keys", "labels")
_NOTHING: Final = np.zeros(0, np.int64)


class BufferConfig(PresamplingConfig):
    """Options of policies that keep a buffer of keys."""

    ratio: int = Field(default_factory=lambda rest: rest.get("ratio_max", 100), ge=1, description="must be `ratio_max`")
    buffer_size: int = Field(
        ge=1,
        le=2**26,
        description="keys that the buffer holds at most, also from trigger to trigger; with `tail_triggers`, of the samples of its window only",
    )

    @field_validator("ratio")
    @classmethod
    def _check_whole(cls, value: int, info: ValidationInfo) -> int:
        if value != info.data.get("ratio_max", value):
            raise ValueError(f"{value} is a share, but a buffer has a size: leave ratio out, and set buffer_size")
        return value

    def capacity(self, window: SelectionWindow, limit: int) -> int:
        """Samples that the buffer may hold: `buffer_size`, or the pipeline's `limit` if that is less. Args: as of `PresamplingPolicy.select`.

        How many samples the window has bounds nothing: the buffer serves later windows, too.
        """
        return self.buffer_size if limit == len(window) else min(self.buffer_size, limit)


class Decider(Protocol):
    """Decides which offered samples enter a buffer, and in place of which others."""

    def offer(self, labels: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Decide upon samples that are offered one after the other, by their labels, int64 (n,): the same in whatever chunks they come.

        Returns: the slots that change, each once, and the row of `labels` that each of them then holds: both int64 (m,). A slot behind the last
        one makes the buffer longer; none is left out.
        """


class Buffer:
    """Rows of a buffer, slot by slot: positions in the stream, keys and labels, int64 (n,), and what else a policy keeps of each sample."""

    def __init__(self, columns: Mapping[str, Array] | None = None) -> None:
        self.columns: dict[str, Array] = dict(columns or dict.fromkeys(_ROW, _NOTHING))

    def __len__(self) -> int:
        return len(self.columns["positions"])

    def keep(self, kept: Array) -> None:
        """Remove the other slots. Args: kept: bool (n,), or numbers of slots."""
        self.columns = {name: values[kept] for name, values in self.columns.items()}

    def put(self, slots: Int64Array, rows: Mapping[str, Array]) -> None:
        """Write rows into slots, as `Decider.offer` returns them."""
        size = max(len(self), int(slots.max(initial=-1)) + 1)
        for name, values in self.columns.items():
            grown = np.resize(values, (size, *values.shape[1:])) if size > len(values) else values
            grown[slots] = rows[name]
            self.columns[name] = grown


class BufferedPresampling(PresamplingPolicy):
    """The base of online policies. The buffer is that of a stream that begins where the window of the trigger does: where `tail_triggers` lets
    the window begin elsewhere, the buffer begins anew, or loses what lies outside, by `restarts`. Deleted samples leave it."""

    Config: ClassVar[type[BufferConfig]]
    needs_history = True
    config: BufferConfig
    restarts: ClassVar[bool] = False

    @abstractmethod
    def decider(self, buffer: Buffer, capacity: int, context: SelectionContext, before: Before) -> Decider:
        """Make what decides. Args: buffer: as it is before the first offer. capacity: samples that it may hold."""

    def keeps(self, decider: Any) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
        """Return columns of any length, and JSON values, that the decider of the next trigger finds in `before`."""
        return {}, {}

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """Offer the samples that the buffer has not seen, and select what it then holds: at most `limit` keys."""
        if not limit:
            return Selection(0, iter(()))
        before = Before.load(window, context, restarts=self.restarts)
        decider = self.decider(before.buffer, self.config.capacity(window, limit), context, before)
        buffer, end = before.buffer, before.end
        for rows in offers(window, before.first):
            slots, chosen = decider.offer(rows["labels"])
            buffer.put(slots, {name: values[chosen] for name, values in rows.items()})
            end = int(rows["positions"][-1]) + 1
        columns, values = self.keeps(decider)
        store(context, window, buffer, end, columns, values)
        return in_stream_order(buffer.columns["positions"], buffer.columns["keys"], window.chunk_size)


class Before:
    """What the trigger before has left, as far as the window of this one still holds it.

    buffer: empty at the beginning. columns, values: of the policy. first: the first sample of the window, counted from its start, that was not
    offered yet. end: behind the last position that was. num_deleted: samples that were offered and are deleted now; of these, num_lost
    were in the buffer. kept: which of its slots are left, bool (n,).
    """

    def __init__(self, buffer: Buffer, columns: Mapping[str, Array], values: Mapping[str, Any], first: int, end: int) -> None:
        self.buffer, self.columns, self.values, self.first, self.end = buffer, columns, values, first, end
        self.num_deleted = self.num_lost = 0
        self.kept = np.ones(len(buffer), np.bool_)

    @classmethod
    def load(cls, window: SelectionWindow, context: SelectionContext, *, restarts: bool) -> Before:
        """Open it. Args: restarts: as of `BufferedPresampling`. Raises: CorruptStateError."""
        file = context.files.open(_FILE)
        if file is None or (restarts and file.meta["start"] != window.stream_start):
            return cls(Buffer(), {}, {}, window.start, window.stream_start)
        names, meta = file.meta["columns"], file.meta
        columns = {name: np.array(file.column(name)) for name in names}
        own = {name: columns.pop(name) for name in names if name in meta["extra"]}
        first = index_of(window, meta["end"])
        before = cls(Buffer(columns), own, meta["values"], first, meta["end"])
        before.num_deleted = meta["num_live"] - (first - window.start)
        positions, keys = columns["positions"], columns["keys"]
        existing = ~window.deleted.contains(keys) if len(window.deleted) else np.ones(len(keys), np.bool_)
        before.num_lost = int(len(keys) - existing.sum())
        before.kept = existing & (positions >= window.stream_start)
        before.buffer.keep(before.kept)
        return before


def store(
    context: SelectionContext,
    window: SelectionWindow,
    buffer: Buffer,
    end: int,
    extra: Mapping[str, Array],
    values: Mapping[str, Any],
) -> None:
    """Write the buffer for the next trigger. Args: end: behind the last position that was offered. extra, values: of the policy."""
    columns = {**buffer.columns, **extra}
    meta = {"start": window.stream_start, "end": end, "num_live": len(window), "columns": list(columns), "extra": list(extra)}
    context.files.write(_FILE, columns, {**meta, "values": dict(values)})


def offers(window: SelectionWindow, first: int) -> Iterator[dict[str, Array]]:
    """Yield the samples of a window from its `first` on as rows of a buffer, in chunks."""
    for start in range(first, window.end, window.chunk_size):
        stop = min(start + window.chunk_size, window.end)
        batch = window.reader.read(start, stop)
        yield {"positions": window.reader.positions(start, stop), "keys": batch.keys, "labels": as_strata(batch.labels)}


def in_stream_order(positions: Int64Array, keys: Int64Array, chunk_size: int) -> Selection:
    """Select these keys, with weight 1, in the order of their positions."""
    ordered = keys[np.argsort(positions, kind="stable")]
    chunks = (ordered[first : first + chunk_size] for first in range(0, len(ordered), chunk_size))
    return Selection(len(ordered), map(KeysAndWeights.unweighted, chunks))


def refuse_too_many_classes(strategy: str, num_classes: int, capacity: int) -> None:
    """Raise ConfigError if a buffer is smaller than the classes that it is to hold: those of the window, of which no sample was deleted.

    Args: strategy: its name in the pipeline.
    """
    if num_classes > capacity:
        raise ConfigError(
            f"selection_strategy.presampling_config.buffer_size: {strategy} keeps samples of each class, but the window has at least "
            f"{num_classes} classes and the buffer holds {capacity} samples: set buffer_size, and selection_strategy.limit if there is one, to "
            "several times the number of classes, or choose Reservoir, which needs no classes"
        )


def changes(slots: Mapping[int, int]) -> tuple[Int64Array, Int64Array]:
    """The row that each slot then holds, by slot, as `Decider.offer` returns it."""
    if not slots:
        return _NOTHING, _NOTHING
    return np.fromiter(slots.keys(), np.int64, len(slots)), np.fromiter(slots.values(), np.int64, len(slots))


class Draws:
    """Whole numbers drawn one at a time, without a call of NumPy for each: the same whatever is drawn between them."""

    def __init__(self, generator: np.random.Generator, block: int = 4096) -> None:
        self._generator, self._block = generator, block
        self._left: list[float] = []

    def uniform(self) -> float:
        """A number of [0, 1)."""
        if not self._left:
            self._left = self._generator.random(self._block)[::-1].tolist()
        return self._left.pop()

    def below(self, bound: int) -> int:
        """A number of 0 … bound - 1, each equally likely but for 1 in 2^53 of it."""
        return int(self.uniform() * bound)


def members_by_class(labels: Int64Array) -> dict[int, list[int]]:
    """The slots of each class of a buffer."""
    members: dict[int, list[int]] = {}
    for slot, label in enumerate(labels.tolist()):
        members.setdefault(label, []).append(slot)
    return members


def index_of(window: SelectionWindow, position: int) -> int:
    """Return the first sample of the window, counted as its reader does, that stands at `position` of the stream or behind."""
    numbers = range(window.start, window.end)
    return window.start + bisect_left(numbers, position, key=lambda number: int(window.reader.positions(number, number + 1)[0]))
