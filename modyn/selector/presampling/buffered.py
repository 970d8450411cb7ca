"""The base of online policies. Online policies keep a bounded buffer of samples from trigger to trigger. Each new sample of the stream is offered to
the buffer once, in order.

A `Decider` makes the decisions of a policy from labels and slots of the buffer alone. This module passes the stream to the decider, and stores the
buffer in a file next to the trigger set. The trigger set is the content of the buffer.
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
        description="largest number of keys in the buffer, which is kept from trigger to trigger; with `tail_triggers`, only keys of the window",
    )

    @field_validator("ratio")
    @classmethod
    def _check_whole(cls, value: int, info: ValidationInfo) -> int:
        if value != info.data.get("ratio_max", value):
            raise ValueError(f"{value} is a share, but a buffer has a size: leave ratio out, and set buffer_size")
        return value

    def capacity(self, window: SelectionWindow, limit: int) -> int:
        """Return the number of samples that the buffer may hold: the smaller of `buffer_size` and the pipeline's `limit`. Args: see
        `PresamplingPolicy.select`.

        A window smaller than `buffer_size` does not bound the buffer, because later windows may be larger.
        """
        return self.buffer_size if limit == len(window) else min(self.buffer_size, limit)


class Decider(Protocol):
    """Decides which offered samples enter a buffer, and which samples leave the buffer."""

    def offer(self, labels: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Decide which samples enter the buffer. The decisions do not depend on how the stream is split into calls. Args: labels: labels of the
        offered samples in order, int64 (n,).

        Returns: the slots that change, each once, and for each of these slots the index in `labels` of its new sample: both int64 (m,). Slots after
        the last slot of the buffer extend the buffer without gaps.
        """


class Buffer:
    """A buffer with one row for each slot: position in the stream, key and label, int64, and further columns of the policy."""

    def __init__(self, columns: Mapping[str, Array] | None = None) -> None:
        self.columns: dict[str, Array] = dict(columns or dict.fromkeys(_ROW, _NOTHING))

    def __len__(self) -> int:
        return len(self.columns["positions"])

    def keep(self, kept: Array) -> None:
        """Keep these slots and remove all others. Args: kept: bool (n,), or numbers of slots."""
        self.columns = {name: values[kept] for name, values in self.columns.items()}

    def put(self, slots: Int64Array, rows: Mapping[str, Array]) -> None:
        """Write rows into the slots that `Decider.offer` has returned."""
        # `np.resize` repeats old values in the new slots. This is harmless, because `slots` has no gaps and the next line overwrites all new slots.
        size = max(len(self), int(slots.max(initial=-1)) + 1)
        for name, values in self.columns.items():
            grown = np.resize(values, (size, *values.shape[1:])) if size > len(values) else values
            grown[slots] = rows[name]
            self.columns[name] = grown


class BufferedPresampling(PresamplingPolicy):
    """The base of online policies. All samples from the start of the trigger's window on were offered to the buffer. If `tail_triggers` moves this
    start, a policy with `restarts` begins again with an empty buffer, and other policies drop the samples outside the window. Deleted samples leave
    the buffer.
    """

    Config: ClassVar[type[BufferConfig]]
    needs_history = True
    config: BufferConfig
    restarts: ClassVar[bool] = False
    """Whether the buffer becomes empty when the start of the window moves. Policies that count offered samples need this, because their counts would
    include samples outside the window. Policies that refuse samples of full classes need this, because they would lack samples of the new window.
    """

    @abstractmethod
    def decider(self, buffer: Buffer, capacity: int, context: SelectionContext, before: Before) -> Decider:
        """Make the decider. Args: buffer: the buffer before the first offer. capacity: number of samples that the buffer may hold."""

    def keeps(self, decider: Any) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
        """Return the state of the decider: columns of any length, and JSON values. The next trigger's decider gets this state in `before`."""
        return {}, {}

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """Offer the samples that are new to the buffer, and select the content of the buffer: at most `limit` keys."""
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
    """The buffer of the previous trigger, without samples outside this trigger's window.

    buffer: empty before the first trigger. columns, values: state of the policy. first: number of the first sample in the window that was not yet
    offered. end: position after the last offered sample. num_deleted: number of offered samples that were deleted since the previous trigger.
    num_lost: number of deleted samples that were in the buffer. kept: which slots of the previous buffer remain, bool (n,).
    """

    def __init__(self, buffer: Buffer, columns: Mapping[str, Array], values: Mapping[str, Any], first: int, end: int) -> None:
        self.buffer, self.columns, self.values, self.first, self.end = buffer, columns, values, first, end
        self.num_deleted = self.num_lost = 0
        self.kept = np.ones(len(buffer), np.bool_)

    @classmethod
    def load(cls, window: SelectionWindow, context: SelectionContext, *, restarts: bool) -> Before:
        """Open the buffer of the previous trigger. Args: restarts: see `BufferedPresampling`. Raises: CorruptStateError."""
        file = context.files.open(_FILE)
        if file is None or (restarts and file.meta["start"] != window.stream_start):
            return cls(Buffer(), {}, {}, window.start, window.stream_start)
        names, meta = file.meta["columns"], file.meta
        columns = {name: np.array(file.column(name)) for name in names}
        own = {name: columns.pop(name) for name in names if name in meta["extra"]}
        first = index_of(window, meta["end"])
        before = cls(Buffer(columns), own, meta["values"], first, meta["end"])
        # `num_live` offered samples existed after the previous trigger. Now `first - window.start` of these samples exist.
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
    """Write the buffer for the next trigger. Args: end: position after the last offered sample. extra, values: state of the policy."""
    columns = {**buffer.columns, **extra}
    meta = {"start": window.stream_start, "end": end, "num_live": len(window), "columns": list(columns), "extra": list(extra)}
    context.files.write(_FILE, columns, {**meta, "values": dict(values)})


def offers(window: SelectionWindow, first: int) -> Iterator[dict[str, Array]]:
    """Yield the samples of a window from number `first` on, as rows of a buffer, in chunks."""
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
    """Raise ConfigError if a buffer has fewer slots than the window has classes. Deleted samples do not count.

    Args: strategy: name of the policy in the pipeline.
    """
    if num_classes > capacity:
        raise ConfigError(
            f"selection_strategy.presampling_config.buffer_size: {strategy} keeps samples of each class, but the window has at least "
            f"{num_classes} classes and the buffer holds {capacity} samples: set buffer_size, and selection_strategy.limit if there is one, to "
            "several times the number of classes, or choose Reservoir, which needs no classes"
        )


def changes(slots: Mapping[int, int]) -> tuple[Int64Array, Int64Array]:
    """Convert rows by slot to the result of `Decider.offer`."""
    if not slots:
        return _NOTHING, _NOTHING
    return np.fromiter(slots.keys(), np.int64, len(slots)), np.fromiter(slots.values(), np.int64, len(slots))


class Draws:
    """Draws single random numbers without a NumPy call for each number. The sequence depends only on the generator."""

    def __init__(self, generator: np.random.Generator, block: int = 4096) -> None:
        self._generator, self._block = generator, block
        self._left: list[float] = []

    def uniform(self) -> float:
        """Return a number in [0, 1)."""
        if not self._left:
            self._left = self._generator.random(self._block)[::-1].tolist()
        return self._left.pop()

    def below(self, bound: int) -> int:
        """Return a number from 0 to bound - 1. All numbers are equally likely, up to a relative error of 2^-53."""
        return int(self.uniform() * bound)


def members_by_class(labels: Int64Array) -> dict[int, list[int]]:
    """Return the slots of each class of a buffer."""
    members: dict[int, list[int]] = {}
    for slot, label in enumerate(labels.tolist()):
        members.setdefault(label, []).append(slot)
    return members


def index_of(window: SelectionWindow, position: int) -> int:
    """Return the number of the first sample of the window at or after `position` of the stream, in the numbering of the window's reader."""
    numbers = range(window.start, window.end)
    return window.start + bisect_left(numbers, position, key=lambda number: int(window.reader.positions(number, number + 1)[0]))
