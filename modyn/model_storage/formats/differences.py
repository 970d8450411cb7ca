"""Weights as the difference to the weights of another version, the base, exact bit by bit.

The file is a header and then blocks of numbers. A block has numbers of one width, of one or several tensors in `wire_order`. A number of the block is
the difference of two bit patterns, which are read as whole numbers: differences of floats would be rounded. A tensor that the base lacks, or has
with another dtype or shape, is compared with zeros. The bytes of a block are ordered by significance: first the lowest byte of each number, last the
highest byte of each number. So the highest bytes, which are mostly zeros, follow each other, and can be compressed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from modyn.errors import CorruptStateError
from modyn.model_storage.section import DifferenceConfig
from modyn.models.weights import DTYPE_BITS, Layout, TensorSpec, header_bytes, read_tensors, wire_order

_MAGIC: Final = b"MODYNDIF"
_HEADER: Final = struct.Struct("<8sIIQ")
"""Magic, version of the format, number of tensors, bytes of their values; little-endian."""
_VERSION: Final = 1
_BLOCK_BYTES: Final = 4 << 20
"""Most bytes of a block; a multiple of every width."""
_LONGEST_RUN: Final = 0xFFFF
_RUN_COUNT: Final = struct.Struct("<I")
"""Number of runs of a plane; 0: the bytes of the plane follow as they are."""

_Bytes = npt.NDArray[np.uint8]
_Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor or a part of it. start, base_start: position in the file of the version, and in that of the base; None: compare with zeros."""

    start: int
    base_start: int | None
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Block:
    """Numbers of `width` bytes that are processed at once. floats: whether the numbers are floats."""

    width: int
    floats: bool
    pieces: tuple[_Piece, ...]

    @property
    def num_bytes(self) -> int:
        return sum(piece.num_bytes for piece in self.pieces)


class WeightsDifference:
    """Converts weights to differences, and back, in bounded memory. Args: base: safetensors file with the weights of the base."""

    def __init__(self, config: DifferenceConfig, base: Path) -> None:
        self._config, self._base = config, base

    def encode(self, safetensors: Path, encoded: Path) -> None:
        """Write the new file `encoded`. Values of every dtype are compared as bits."""
        layout = wire_order(read_tensors(safetensors))
        with safetensors.open("rb") as new, self._base.open("rb") as old, encoded.open("xb") as target:
            target.write(_header(layout))
            for block in _blocks(layout, read_tensors(self._base)):
                numbers = self._difference(
                    block,
                    _read(new, block, [piece.start for piece in block.pieces]),
                    _read(old, block, [piece.base_start for piece in block.pieces]),
                )
                planes = np.ascontiguousarray(numbers.view(np.uint8).reshape(-1, block.width).T)
                if self._config.rle:
                    for plane in planes:
                        target.write(_runs(plane))
                else:
                    target.write(planes.reshape(-1).data)

    def decode(self, encoded: Path, layout: Layout, safetensors: Path) -> None:
        """Write the new file `safetensors` with the weights. Args: layout: see `FullModelFormat.decode`.

        Raises: CorruptStateError: `encoded` is not a difference of weights with this layout.
        """
        with encoded.open("rb") as source, self._base.open("rb") as old, safetensors.open("xb") as target:
            if source.read(_HEADER.size) != _header(layout):
                raise CorruptStateError(f"{encoded} does not begin as a difference of {len(layout)} tensors does")
            target.write(header_bytes(layout))
            for block in _blocks(layout, read_tensors(self._base)):
                planes = self._read_planes(source, block)
                numbers = np.ascontiguousarray(planes.T).reshape(-1).view(f"<u{block.width}")
                known = _read(old, block, [piece.base_start for piece in block.pieces])
                target.write(self._sum(block, numbers, known).view(np.uint8).data)
            if source.read(1):
                raise CorruptStateError(f"{encoded} does not end after the differences of {len(layout)} tensors")

    def _difference(self, block: _Block, new: _Bytes, old: _Bytes) -> _Numbers:
        numbers, known = new.view(f"<u{block.width}"), old.view(f"<u{block.width}")
        sign_at = 8 * block.width - 1
        if self._config.operator == "sub":
            numbers -= known  # Unsigned numbers wrap around, so the sum restores each bit pattern, also those of NaN and -0.0.
            if self._config.split_exponent:
                return (numbers << 1) ^ (0 - (numbers >> sign_at))
            return numbers
        numbers ^= known
        if self._config.split_exponent and block.floats:
            return (numbers << 1) | (numbers >> sign_at)
        return numbers

    def _sum(self, block: _Block, numbers: _Numbers, old: _Bytes) -> _Numbers:
        """Return the numbers of the version: the reverse of `_difference`."""
        known, sign_at = old.view(f"<u{block.width}"), 8 * block.width - 1
        restored: _Numbers
        if self._config.operator == "sub":
            if self._config.split_exponent:
                numbers = (numbers >> 1) ^ (0 - (numbers & 1))
            restored = numbers + known
        else:
            if self._config.split_exponent and block.floats:
                numbers = (numbers >> 1) | (numbers << sign_at)
            restored = numbers ^ known
        return restored

    def _read_planes(self, source: BinaryIO, block: _Block) -> _Bytes:
        """Return the bytes of a block by significance, uint8 (width, n)."""
        num_numbers = block.num_bytes // block.width
        if self._config.rle:
            return np.stack([_read_runs(source, num_numbers) for _ in range(block.width)])
        return np.frombuffer(_exactly(source, block.num_bytes), np.uint8).reshape(block.width, num_numbers)


def _header(layout: Layout) -> bytes:
    return _HEADER.pack(_MAGIC, _VERSION, len(layout), sum(spec.num_bytes for spec in layout))


def _blocks(layout: Layout, base: Iterable[TensorSpec]) -> Iterator[_Block]:
    """Divide the tensors of a layout into blocks. Several small tensors of one kind share a block."""
    of_base = {spec.name: spec for spec in base}
    for (width, floats), specs in groupby(layout, _kind):
        pieces, room = list[_Piece](), _BLOCK_BYTES
        for spec in specs:
            known = of_base.get(spec.name)
            done = 0
            while done < spec.num_bytes:
                size = min(room, spec.num_bytes - done)
                pieces.append(
                    _Piece(spec.start + done, known.start + done if known is not None and known == spec else None, size)
                )
                done, room = done + size, room - size
                if not room:
                    yield _Block(width, floats, tuple(pieces))
                    pieces, room = [], _BLOCK_BYTES
        if pieces:
            yield _Block(width, floats, tuple(pieces))


def _kind(spec: TensorSpec) -> tuple[int, bool]:
    """Return the bytes of a number of the tensor, and whether it is a float. A complex number is two floats; smaller numbers share a byte."""
    bits = 32 if spec.dtype == "C64" else DTYPE_BITS[spec.dtype]
    return max(1, bits // 8), spec.dtype.startswith(("F", "BF", "C"))


def _read(file: BinaryIO, block: _Block, starts: Iterable[int | None]) -> _Bytes:
    """Return the bytes of a block in one array; zeros where `starts` is None. Raises CorruptStateError: the file ends earlier."""
    values, at = np.zeros(block.num_bytes, np.uint8), 0
    for piece, start in zip(block.pieces, starts, strict=True):
        if start is not None:
            file.seek(start)
            part = values.data[at : at + piece.num_bytes]
            if file.readinto(part) != piece.num_bytes:  # type: ignore[attr-defined]
                raise CorruptStateError(f"{file.name} ends too early")
        at += piece.num_bytes
    return values


def _exactly(source: BinaryIO, num_bytes: int) -> bytes:
    found = source.read(num_bytes)
    if len(found) != num_bytes:
        raise CorruptStateError(f"{source.name} ends {num_bytes - len(found)} bytes too early")
    return found


def _runs(plane: _Bytes) -> bytes:
    """Return the runs of equal bytes: their number, lengths (uint16) and values; or the bytes as they are, if that is shorter."""
    size = len(plane)
    is_start = np.ones(size, np.bool_)
    np.not_equal(plane[1:], plane[:-1], out=is_start[1:])
    is_start[::_LONGEST_RUN] = True
    starts = np.flatnonzero(is_start)
    if 3 * len(starts) >= size:
        return _RUN_COUNT.pack(0) + plane.tobytes()
    lengths = np.diff(starts, append=size).astype("<u2")
    return _RUN_COUNT.pack(len(starts)) + lengths.tobytes() + plane[starts].tobytes()


def _read_runs(source: BinaryIO, size: int) -> _Bytes:
    """Return the plane of `size` bytes that `_runs` wrote. Raises CorruptStateError."""
    [count] = _RUN_COUNT.unpack(_exactly(source, _RUN_COUNT.size))
    if not count:
        return np.frombuffer(_exactly(source, size), np.uint8)
    if count > size:
        raise CorruptStateError(f"{source.name} has {count} runs in {size} bytes")
    lengths = np.frombuffer(_exactly(source, 2 * count), "<u2")
    values = np.frombuffer(_exactly(source, count), np.uint8)
    if int(lengths.sum(dtype=np.int64)) != size:
        raise CorruptStateError(f"{source.name} has runs of other lengths than its tensors")
    return np.repeat(values, lengths)
