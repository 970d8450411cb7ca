"""One sample's value as one buffer, and back. In workers only: imports torch.

A buffer is a header, the layout of the value (`value_layout.py`), and its bytes, compressed or not:

    XXH64 of all that follows: 8 bytes, then b"MDC", version: 1, compression: 1, unused: 1, size of the layout: 2, size of the bytes before
    compression: 8; layout; 0 up to a multiple of 16; bytes

Integers are little endian. A buffer that is damaged, of another version or compressed by what is not installed counts as not found.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Literal, get_args

import numpy as np
import torch

from modyn._core import checksum
from modyn.cache.keys import CODEC_VERSION
from modyn.cache.tier import BoolArray, Buffer, PartedBuffer
from modyn.cache.value_layout import (
    ALIGNMENT,
    ByteArray,
    Leaf,
    ValuePlan,
    layout_of_rows,
    map_parts,
    plan_of_layout,
    plan_of_text,
    rows_of,
    take_apart,
)
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.models.calls import Data
from modyn.zstd import zstd

Compression = Literal["none", "zstd", "lz4"]
_COMPRESSIONS: Final = get_args(Compression)
"""A buffer holds the position in it."""
ZSTD_LEVEL: Final = 1
"""The fastest: what is slower to read than to decode again is of no use in a cache."""

_HEADER: Final = struct.Struct("<Q3sBBxHQ")
_CHECKED: Final = 8
"""Bytes from here on are checked."""
_MAGIC: Final = b"MDC"
_DEFAULTS: Final = {"float": 1.0, "complex": 1j}
"""Kinds of leaves that PyTorch turns into tensors of its default type, each with one."""

Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""Returns a contiguous tensor of this shape and type."""


def _allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


class SampleCodec:
    """Encodes with one compression, and decodes what any was used for. For any thread."""

    def __init__(self, compression: Compression = "none") -> None:
        """Raises: ConfigError: the package is missing."""
        if compression == "lz4" and _lz4() is None:
            raise ConfigError(
                "compression 'lz4' needs the package lz4, which is not installed: pip install 'modyn[lz4]', or write zstd, which is always there"
            )
        self._compression = _COMPRESSIONS.index(compression)

    def encode(self, value: object) -> bytes:
        """Write one value: a tensor, an array, a number, bytes, or a tuple or dict of such. Its memory is copied.

        Raises: InvalidArgumentError: it cannot be kept (sparse, quantized, of objects, of another type …); names what and where it is.
        """
        return bytes(self.encode_parts(value))

    def encode_parts(self, value: object) -> PartedBuffer:
        """As `encode`, without copying: the buffer shares the memory of the value. Not compressed, its bytes are read only when it is written."""
        plan, leaves = take_apart(value)
        parts: list[Buffer] = []
        end = 0
        for leaf, (start, stop) in zip(leaves, plan.spans, strict=True):
            parts += [part for part in (bytes(start - end), leaf.data) if len(part)]
            end = stop
        head = self._head(plan)
        if self._compression:
            parts = [_compress(self._compression, b"".join(parts))]
        return PartedBuffer(len(head) + sum(map(len, parts)), partial(_seal, head, parts))

    def encode_rows(self, data: Data) -> list[Buffer]:
        """Write each row of a batch, as `encode` would write `data[i]`, all at once.

        Args: data: a tensor (n, …), or a tuple or dict of tensors with n rows. Returns: n buffers, which share one memory.
        Raises: InvalidArgumentError: as `encode`, or tensors have no rows, or not equally many.
        """
        num = _num_rows(data)
        if num == 0:
            return []
        layout, columns = map_parts(data, layout_of_rows)
        plan = plan_of_layout(layout)
        head = self._head(plan)
        table = np.zeros((num, len(head) + plan.num_bytes), np.uint8)
        table[:, : len(head)] = np.frombuffer(head, np.uint8)
        for column, (start, stop) in zip(columns, plan.spans, strict=True):
            table[:, len(head) + start : len(head) + stop] = column
        size, flat = table.shape[1], table.reshape(-1).data
        buffers: list[Buffer] = [flat[start : start + size] for start in range(0, len(flat), size)]
        if self._compression:
            return [b"".join(_seal(head, [_compress(self._compression, bytes(buffer[len(head) :]))])) for buffer in buffers]
        table[:, :_CHECKED].view("<u8")[:, 0] = [checksum(buffer[_CHECKED:]) for buffer in buffers]
        return buffers

    def decode(self, buffer: Buffer | None) -> Any:
        """Read one value, which may be written to: it shares the buffer where that may be, and is copied otherwise.

        Args: buffer: of `encode`; None: there is none. Returns: the value; None: there is none, or it is damaged.
        """
        opened = None if buffer is None else _open(buffer)
        if opened is None:
            return None
        plan, content = opened
        is_shared = content.flags.writeable and content.ctypes.data % ALIGNMENT == 0
        return plan.value(content if is_shared else content.copy())

    def decode_rows(
        self,
        buffers: Sequence[Buffer | None],
        allocate: Allocate = _allocate,
    ) -> tuple[Data | None, BoolArray]:
        """Read many values of one shape into one batch, as stacking the values of `decode` would make it; each is copied once.

        Args: buffers: n, of `encode`; None: there is none. allocate: of the batch, in shared memory, say.
        Returns: a batch of n rows, and bool (n,), which of its rows are found: others are undefined. Not found is also what differs in shape or
        type from the first that is found. The batch is None where none is found, or no batch can be made of such values.
        """
        decoder = RowDecoder(len(buffers), allocate)
        decoder.fill(0, buffers)
        return decoder.batch(), decoder.found

    def _head(self, plan: ValuePlan) -> bytes:
        """All before the bytes of a value, with 0 for the checksum."""
        if len(plan.text) > 0xFFFF:
            raise InvalidArgumentError(
                f"the sample has {len(plan.leaves)} parts, and their names and shapes take more than 65,535 bytes: the cache cannot keep it"
            )
        header = _HEADER.pack(0, _MAGIC, CODEC_VERSION, self._compression, len(plan.text), plan.num_bytes)
        return header + plan.text + bytes(-(len(header) + len(plan.text)) % ALIGNMENT)


class RowDecoder:
    """Reads values of one shape into the rows of a batch, as `SampleCodec.decode_rows` describes, some at a time: their buffers may be freed before
    others are read."""

    def __init__(self, num_rows: int, allocate: Allocate = _allocate) -> None:
        self.found: BoolArray = np.zeros(num_rows, np.bool_)
        """(num_rows,), which rows are filled."""
        self._allocate = allocate
        self._plan: ValuePlan | None = None
        self._has_rows = True
        """False: no batch can be made of what was found first."""
        self._tensors: list[torch.Tensor] = []
        self._targets: list[tuple[ByteArray, int, int]] = []
        """For each tensor its bytes, (num_rows, bytes of a row), and where they lie in a value."""

    def fill(self, start: int, buffers: Sequence[Buffer | None]) -> None:
        """Fill the rows from `start` on, one for each buffer. None: there is none."""
        for row, buffer in enumerate(buffers, start):
            opened = _open(buffer) if buffer is not None and self._has_rows else None
            if opened is None:
                continue
            plan, content = opened
            if self._plan is None:
                self._begin(plan)
            if self._plan is not None and plan.text == self._plan.text:
                for target, first, stop in self._targets:
                    target[row] = content[first:stop]
                self.found[row] = True

    def batch(self) -> Data | None:
        """Return the batch; None: there is none. To be called once, at the end."""
        if self._plan is None:
            return None
        columns = zip(self._tensors, self._plan.leaves, strict=True)
        batch: Data = self._plan.build([_as_stacked(tensor, leaf, self._allocate) for tensor, leaf in columns])
        return batch

    def _begin(self, plan: ValuePlan) -> None:
        """Allocate a batch of such values, if there can be one."""
        dtypes = [dtype for leaf in plan.leaves if (dtype := leaf.row_dtype()) is not None]
        if len(dtypes) < len(plan.leaves) or not dtypes:
            self._has_rows = False
            return
        self._plan = plan
        for leaf, dtype, span in zip(plan.leaves, dtypes, plan.spans, strict=True):
            # What is permuted at the end is copied then, to where it is to be.
            tensor = (_allocate if leaf.order else self._allocate)((len(self.found), *leaf.shape_in_memory), dtype)
            self._tensors.append(tensor)
            self._targets.append((rows_of(tensor), *span))


def _seal(head: bytes, parts: Sequence[Buffer]) -> Sequence[Buffer]:
    """The pieces of a buffer. Args: head: of `_head`. parts: the bytes of the value."""
    checked = head[_CHECKED:]
    return [checksum(checked, *parts).to_bytes(_CHECKED, "little") + checked, *parts]


def _open(buffer: Buffer) -> tuple[ValuePlan, ByteArray] | None:
    """How the value of a buffer is laid out, and its bytes, shared where they are not compressed. None: it is damaged."""
    if len(buffer) < _HEADER.size:
        return None
    expected, magic, version, compression, size, num_bytes = _HEADER.unpack_from(buffer)
    if (magic, version) != (_MAGIC, CODEC_VERSION) or checksum(memoryview(buffer)[_CHECKED:]) != expected:
        return None
    stop = _HEADER.size + size
    plan = plan_of_text(bytes(buffer[_HEADER.size : stop]))
    if plan is None or plan.num_bytes != num_bytes:
        return None
    stored = memoryview(buffer)[stop + -stop % ALIGNMENT :]
    if compression:
        unpacked = _decompress(compression, stored, num_bytes)
        if unpacked is None:
            return None
        stored = memoryview(unpacked)
    return (plan, np.frombuffer(stored, np.uint8)) if len(stored) == num_bytes else None


def _num_rows(data: Data) -> int:
    parts = data if isinstance(data, tuple) else tuple(data.values()) if isinstance(data, dict) else (data,)
    rows = {len(part) if isinstance(part, torch.Tensor) and part.ndim else -1 for part in parts}
    if len(rows) != 1 or -1 in rows:
        raise InvalidArgumentError("a batch is a tensor (n, …), or a tuple or dict of at least one such, all with n rows")
    return rows.pop()


def _as_stacked(tensor: torch.Tensor, leaf: Leaf, allocate: Allocate) -> torch.Tensor:
    """A column as stacking makes it: axes in their own order, Python's numbers in the default type."""
    if leaf.order:
        return allocate((len(tensor), *leaf.shape), tensor.dtype).copy_(tensor.permute(0, *(1 + axis for axis in leaf.axes)))
    return tensor.to(torch.tensor(_DEFAULTS[leaf.kind]).dtype) if leaf.kind in _DEFAULTS else tensor


@cache
def _lz4() -> Any:
    return import_module("lz4.block") if find_spec("lz4") else None


def _compress(compression: int, content: bytes) -> bytes:
    packed: bytes = (
        zstd.compress(content, level=ZSTD_LEVEL)
        if _COMPRESSIONS[compression] == "zstd"
        else _lz4().compress(content, store_size=False)
    )
    return packed


def _decompress(compression: int, stored: memoryview, num_bytes: int) -> bytes | None:
    """At most the bytes that there must be; None: there are others, or what reads them is not installed."""
    name = _COMPRESSIONS[compression] if compression < len(_COMPRESSIONS) else ""
    if name == "zstd":
        reader = zstd.ZstdDecompressor()
        try:
            content: bytes = reader.decompress(stored, max_length=num_bytes + 1)
        except zstd.ZstdError:
            return None
        return content if reader.eof else None
    if name != "lz4" or _lz4() is None:
        return None
    try:
        unpacked: bytes = _lz4().decompress(stored, uncompressed_size=num_bytes)
    except _lz4().LZ4BlockError:
        return None
    return unpacked
