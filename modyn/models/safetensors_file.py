"""Safetensors files without torch: read their layout, hash their weights, write their header.

A file is an 8-byte little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the tensors' bytes.
Reading never runs code; every number in the header is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from modyn.errors import CorruptStateError

_DTYPES_BY_BITS = {
    4: "F4",
    6: "F6_E2M3 F6_E3M2",
    8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
    16: "U16 I16 F16 BF16",
    32: "U32 I32 F32",
    64: "U64 I64 F64 C64",
}
DTYPE_BITS = {name: bits for bits, names in _DTYPES_BY_BITS.items() for name in names.split()}
"""Width of every dtype of the format, in bits."""

_MAX_HEADER_BYTES = 100_000_000
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its values."""

    name: str
    dtype: str
    """A name of `DTYPE_BITS`."""
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the tensor's values in bytes."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where in a file a tensor's bytes are: [start, start + spec.num_bytes), from the beginning of the file."""

    spec: TensorSpec
    start: int


Layout = tuple[TensorSpec, ...]
"""The tensors of a model, in the order of `wire_order`."""


def wire_order(specs: Iterable[TensorSpec]) -> Layout:
    """Widest dtype first, then by name: so every tensor starts at a multiple of its width, which readers that map the file need."""
    return tuple(sorted(specs, key=lambda spec: (-DTYPE_BITS[spec.dtype], spec.name)))


def header_bytes(layout: Layout) -> bytes:
    """The beginning of a safetensors file whose tensors follow in the order of `layout`."""
    header: dict[str, object] = {}
    end = 0
    for spec in layout:
        start, end = end, end + spec.num_bytes
        header[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_entries(path: Path) -> list[TensorEntry]:
    """The tensors of the file, in the order of their bytes. Raises CorruptStateError if the header promises what the file has not."""
    with path.open("rb") as file:
        return entries_of(file, path.stat().st_size, str(path))


def entries_of(file: BinaryIO, file_bytes: int, name: str) -> list[TensorEntry]:
    """As `read_entries`, from an open file; `name` is what messages call it."""
    length = int.from_bytes(file.read(8), "little")
    if file_bytes < 8 or length > min(_MAX_HEADER_BYTES, file_bytes - 8):
        raise CorruptStateError(f"{name} is not a safetensors file: its header does not fit into its {file_bytes} bytes")
    try:
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        found = [_entry(str(key), value, 8 + length) for key, value in header.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptStateError(f"{name} is not a safetensors file: {type(error).__name__} in its header: {error}") from error
    found.sort(key=lambda entry: (entry.start, entry.spec.num_bytes))
    end = 8 + length
    for entry in found:
        if entry.start != end:
            raise CorruptStateError(f"{name}: tensor '{entry.spec.name}' starts at byte {entry.start}, not at {end}")
        end += entry.spec.num_bytes
    if end != file_bytes:
        raise CorruptStateError(f"{name} has {file_bytes} bytes, its header promises {end}: the file is truncated or has a tail")
    return found


def _entry(name: str, value: dict[str, object], base: int) -> TensorEntry:
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if dtype not in DTYPE_BITS:
        raise ValueError(f"tensor '{name}' has the unknown dtype {dtype!r}")
    if not (isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)):
        raise ValueError(f"tensor '{name}' has the shape {shape!r}")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(offset) is int and offset >= 0 for offset in offsets)):
        raise ValueError(f"tensor '{name}' has the offsets {offsets!r}")
    spec = TensorSpec(name, str(dtype), tuple(shape))
    if offsets[1] - offsets[0] != spec.num_bytes or math.prod(shape) * DTYPE_BITS[str(dtype)] % 8:
        raise ValueError(f"tensor '{name}' of {dtype} {shape} does not fill its {offsets[1] - offsets[0]} bytes")
    return TensorEntry(spec, base + offsets[0])


def chunks(file: BinaryIO, start: int, num_bytes: int, chunk_bytes: int = _CHUNK_BYTES) -> Iterator[bytes]:
    """The bytes [start, start + num_bytes) of the file, a piece at a time. Raises CorruptStateError if the file ends earlier."""
    file.seek(start)
    while num_bytes:
        piece = file.read(min(chunk_bytes, num_bytes))
        if not piece:
            raise CorruptStateError(f"{getattr(file, 'name', 'the file')} ends {num_bytes} bytes too early")
        num_bytes -= len(piece)
        yield piece


def file_weights_sha256(path: Path, entries: list[TensorEntry] | None = None) -> str:
    """SHA-256 over (name, dtype, shape, bytes) of each tensor, in order of name: what makes two models equal, whatever file they are in.

    Metadata and the order of tensors in the file do not count. `entries` saves reading the header again.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for entry in sorted(entries if entries is not None else read_entries(path), key=lambda entry: entry.spec.name):
            digest.update(hash_prefix(entry.spec))
            for piece in chunks(file, entry.start, entry.spec.num_bytes):
                digest.update(piece)
    return digest.hexdigest()


def hash_prefix(spec: TensorSpec) -> bytes:
    """What is hashed before a tensor's bytes: unambiguous, so that bytes cannot move from one tensor to the next unnoticed."""
    return json.dumps([spec.name, spec.dtype, list(spec.shape)]).encode() + b"\n"
