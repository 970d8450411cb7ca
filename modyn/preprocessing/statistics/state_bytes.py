"""Encodes statistics of preprocessing as bytes. Equal statistics give equal bytes, and damaged bytes are refused.

Little-endian: a prefix of 32 bytes (magic, version, CRC-32 of all that follows, size of the header, size of the arrays), the header as JSON with
sorted keys, and the arrays one after the other. In the header, {"array": [dtype, shape]} refers to the next array, and {"texts": [n, size]} to the
next two arrays, for n strings: the end of each string, and the UTF-8 bytes of all strings. Decoding runs no code and uses no pickle.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from modyn.errors import CorruptStateError

MAGIC: Final = b"MODYNPRE"
VERSION: Final = 1
_PREFIX: Final = struct.Struct("<8sIIQQ")
_DTYPES: Final = {"<i8": np.int64, "<f8": np.float64, "|u1": np.uint8}


def encode_state(state: Mapping[str, Any]) -> bytes:
    """Encode names with numbers, strings, null, lists of strings, arrays of int64 or float64, and mappings of these.

    Raises: TypeError: a value is of another type.
    """
    arrays: list[npt.NDArray[Any]] = []
    header = json.dumps(_described(state, arrays), sort_keys=True, separators=(",", ":")).encode()
    body = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    checksum = zlib.crc32(body, zlib.crc32(header))
    return _PREFIX.pack(MAGIC, VERSION, checksum, len(header), len(body)) + header + body


def decode_state(content: bytes) -> dict[str, Any]:
    """Decode the output of `encode_state`. Raises: CorruptStateError: the bytes are damaged, or come from another version of Modyn."""
    if len(content) < _PREFIX.size or content[:8] != MAGIC:
        raise _corrupt("their beginning is wrong")
    _, version, checksum, header_size, body_size = _PREFIX.unpack_from(content)
    if version != VERSION:
        raise CorruptStateError(
            f"statistics of preprocessing have version {version}, this Modyn reads version {VERSION}; use the Modyn that wrote them, or train again"
        )
    if len(content) != _PREFIX.size + header_size + body_size:
        raise _corrupt(f"{len(content)} bytes are not the {_PREFIX.size + header_size + body_size} bytes that were written")
    if zlib.crc32(memoryview(content)[_PREFIX.size :]) != checksum:
        raise _corrupt("they do not match their checksum")
    try:
        header = json.loads(content[_PREFIX.size : _PREFIX.size + header_size])
        reader = _Reader(memoryview(content)[_PREFIX.size + header_size :])
        state: dict[str, Any] = reader.value(header)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(f"their header cannot be read: {error}") from error
    return state


def _corrupt(what: str) -> CorruptStateError:
    return CorruptStateError(
        f"the statistics of preprocessing are damaged: {what}; take another version of the model, or train again"
    )


def _described(value: Any, arrays: list[npt.NDArray[Any]]) -> Any:
    """Return the header's description of a value, and append the value's arrays to `arrays` in reading order."""
    if isinstance(value, Mapping):
        return {"state": {name: _described(value[name], arrays) for name in sorted(value)}}
    if isinstance(value, np.ndarray):
        dtype = value.dtype.newbyteorder("<").str
        if dtype not in _DTYPES:
            raise TypeError(f"an array of {value.dtype} is not a statistic; use int64 or float64")
        arrays.append(value.astype(dtype, copy=False))
        return {"array": [dtype, list(value.shape)]}
    if isinstance(value, list):
        encoded = [text.encode() for text in value]
        arrays += [np.cumsum([len(text) for text in encoded], dtype=np.int64), np.frombuffer(b"".join(encoded), np.uint8)]
        return {"texts": [len(value), len(arrays[-1])]}
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"a {type(value).__name__} is not a statistic; use numbers, strings, lists of strings or arrays")


class _Reader:
    def __init__(self, body: memoryview) -> None:
        self._body, self._at = body, 0

    def value(self, described: Any) -> Any:
        if not isinstance(described, dict):
            return described
        if "state" in described:
            return {name: self.value(described["state"][name]) for name in sorted(described["state"])}
        if "texts" in described:
            ends = self._array("<i8", [described["texts"][0]]).tolist()
            packed = self._array("|u1", [described["texts"][1]]).tobytes()
            return [packed[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]
        return self._array(*described["array"]).copy()

    def _array(self, dtype: str, shape: list[int]) -> npt.NDArray[Any]:
        num_bytes = prod(shape) * np.dtype(_DTYPES[dtype]).itemsize
        part = self._body[self._at : self._at + num_bytes]
        self._at += num_bytes
        array: npt.NDArray[Any] = np.frombuffer(part, dtype).reshape(shape)
        return array
