"""A state dict in the format of `torch.save`, which `torch.load(path, weights_only=True)` reads. This module writes and reads the file without torch.

Such a file is an uncompressed zip archive. One member is a pickle that names the tensors. Each other member has the bytes of one tensor. This module
writes the pickle opcode by opcode. The module never reads the pickle, because the catalogue has the layout. Therefore no content of a file can run
code.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from modyn.errors import CorruptStateError, InvalidArgumentError
from modyn.model_storage.formats import FullModelFormat
from modyn.models.weights import DTYPE_BITS, Layout, TensorSpec, chunks, header_bytes, read_tensors, wire_order

_STORAGES: Final = {
    "BOOL": "BoolStorage",
    "U8": "ByteStorage",
    "I8": "CharStorage",
    "I16": "ShortStorage",
    "I32": "IntStorage",
    "I64": "LongStorage",
    "F16": "HalfStorage",
    "BF16": "BFloat16Storage",
    "F32": "FloatStorage",
    "F64": "DoubleStorage",
    "C64": "ComplexFloatStorage",
}
"""Dtypes for which torch has a storage class."""
_UNTYPED: Final = {
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
"""Newer dtypes, which torch saves as bytes and the name of the dtype."""

_ROOT: Final = "model"
_ALIGNMENT: Final = 64
"""Alignment of storages in the file, in bytes, because torch maps storages into memory at their file positions."""
_ZIP64_BYTES: Final = 20


class PyTorchFullModel(FullModelFormat):
    """{name: tensor}, readable by torch ≥ 2.6 with `weights_only=True`."""

    def encode(self, safetensors: Path, encoded: Path) -> None:
        """Encode: equal weights give equal files. Raises InvalidArgumentError for a dtype that torch lacks."""
        layout = wire_order(read_tensors(safetensors))
        with safetensors.open("rb") as source, zipfile.ZipFile(encoded, "x", zipfile.ZIP_STORED) as archive:
            for name, fixed in (("data.pkl", _pickled(layout)), ("byteorder", b"little"), ("version", b"3\n")):
                _add(archive, f"{_ROOT}/{name}", len(fixed), (fixed,))
            for index, spec in enumerate(layout):
                _add(archive, f"{_ROOT}/data/{index}", spec.num_bytes, chunks(source, spec.start, spec.num_bytes))

    def decode(self, encoded: Path, layout: Layout, safetensors: Path) -> None:
        """Decode: copy the members, not the pickle. Raises CorruptStateError if a member is missing, compressed or of another size."""
        try:
            with zipfile.ZipFile(encoded) as archive, safetensors.open("xb") as target:
                target.write(header_bytes(layout))
                for index, spec in enumerate(layout):
                    member = archive.getinfo(f"{_ROOT}/data/{index}")
                    if member.file_size != spec.num_bytes or member.compress_type != zipfile.ZIP_STORED:
                        raise CorruptStateError(f"{encoded}: '{spec.name}' has {member.file_size} bytes, not {spec.num_bytes}")
                    with archive.open(member) as source:
                        while chunk := source.read(1 << 20):
                            target.write(chunk)
        except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise CorruptStateError(f"{encoded} is not a state dict as this format writes it: {error}") from error


def _add(archive: zipfile.ZipFile, name: str, num_bytes: int, parts: Iterable[bytes]) -> None:
    """Add one member whose bytes start at a multiple of the alignment. The member has no date, so that equal weights give equal files."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.file_size = num_bytes
    large = num_bytes * 1.05 > zipfile.ZIP64_LIMIT
    header = 30 + len(name.encode()) + 4 + (_ZIP64_BYTES if large else 0)
    assert archive.fp is not None
    padding = -(archive.fp.tell() + header) % _ALIGNMENT
    info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
    with archive.open(info, "w", force_zip64=large) as member:
        for part in parts:
            member.write(part)


def _pickled(layout: Layout) -> bytes:
    """Return the pickle of {name: tensor}, protocol 2. The key of a tensor's storage is the index of the tensor in `layout`."""
    items = b"".join(_pickled_text(spec.name) + _pickled_tensor(str(index), spec) for index, spec in enumerate(layout))
    return pickle.PROTO + b"\x02" + pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS + pickle.STOP


def _pickled_tensor(key: str, spec: TensorSpec) -> bytes:
    """Pickle a call of `_rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks)`, or of v3, which also takes the dtype."""
    stride, strides = 1, []
    for size in reversed(spec.shape):
        strides.append(stride)
        stride *= max(size, 1)
    sizes = (_tuple(map(_int, spec.shape)), _tuple(map(_int, reversed(strides))))
    no_hooks = _global("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    if spec.dtype in _STORAGES:
        storage = _storage(_global("torch", _STORAGES[spec.dtype]), key, spec.num_bytes * 8 // DTYPE_BITS[spec.dtype])
        arguments = [storage, _int(0), *sizes, pickle.NEWFALSE, no_hooks]
        return _global("torch._utils", "_rebuild_tensor_v2") + _tuple(arguments) + pickle.REDUCE
    if spec.dtype in _UNTYPED:
        storage = _storage(_global("torch.storage", "UntypedStorage"), key, spec.num_bytes)
        arguments = [storage, _int(0), *sizes, pickle.NEWFALSE, no_hooks, _global("torch", _UNTYPED[spec.dtype])]
        return _global("torch._utils", "_rebuild_tensor_v3") + _tuple(arguments) + pickle.REDUCE
    raise InvalidArgumentError(
        f"PyTorchFullModel cannot hold the dtype {spec.dtype} of tensor '{spec.name}'; choose SafetensorsFullModel in "
        "model_storage.full_model_strategy"
    )


def _storage(kind: bytes, key: str, num_elements: int) -> bytes:
    return (
        _tuple((_pickled_text("storage"), kind, _pickled_text(key), _pickled_text("cpu"), _int(num_elements))) + pickle.BINPERSID
    )


def _global(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _pickled_text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return pickle.BINUNICODE + len(encoded).to_bytes(4, "little") + encoded


def _int(value: int) -> bytes:
    encoded = pickle.encode_long(value)
    return pickle.LONG1 + len(encoded).to_bytes(1, "little") + encoded


def _tuple(items: Iterable[bytes]) -> bytes:
    return pickle.MARK + b"".join(items) + pickle.TUPLE
