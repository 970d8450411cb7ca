"""Raw weights after a small header. This format gives the smallest file. Names, dtypes and shapes are in the catalogue, not in the file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from modyn.errors import CorruptStateError
from modyn.model_storage.formats import FullModelFormat
from modyn.models.weights import Layout, chunks, header_bytes, read_tensors, wire_order

_MAGIC: Final = b"MODYNRAW"
_HEADER: Final = struct.Struct("<8sIIQ")
"""Magic, version of the format, number of tensors, bytes that follow; little-endian."""
_VERSION: Final = 1


class BinaryFullModel(FullModelFormat):
    """Tensors one after the other in `wire_order`, little-endian, without gaps."""

    def encode(self, safetensors: Path, encoded: Path) -> None:
        """Encode: write header and tensors in chunks. Values of every dtype are copied as bytes."""
        layout = wire_order(read_tensors(safetensors))
        with safetensors.open("rb") as source, encoded.open("xb") as target:
            target.write(_HEADER.pack(_MAGIC, _VERSION, len(layout), sum(spec.num_bytes for spec in layout)))
            for spec in layout:
                for chunk in chunks(source, spec.start, spec.num_bytes):
                    target.write(chunk)

    def decode(self, encoded: Path, layout: Layout, safetensors: Path) -> None:
        """Write a safetensors header from `layout`, then the bytes. Raises CorruptStateError for another header or size."""
        num_bytes = sum(spec.num_bytes for spec in layout)
        with encoded.open("rb") as source, safetensors.open("xb") as target:
            header = source.read(_HEADER.size)
            if header != _HEADER.pack(_MAGIC, _VERSION, len(layout), num_bytes):
                raise CorruptStateError(
                    f"{encoded} does not begin as raw weights of {len(layout)} tensors and {num_bytes} bytes do"
                )
            if encoded.stat().st_size != _HEADER.size + num_bytes:
                raise CorruptStateError(
                    f"{encoded} has {encoded.stat().st_size} bytes, its header promises {_HEADER.size + num_bytes}"
                )
            target.write(header_bytes(layout))
            for chunk in chunks(source, _HEADER.size, num_bytes):
                target.write(chunk)
