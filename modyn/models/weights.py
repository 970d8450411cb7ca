"""Networks with new weights, weights in safetensors files, and the layout, header and hash of these files.

A file consists of an 8-byte little-endian length of the header, a JSON header {name: {dtype, shape, data_offsets}}, and the bytes of the tensors.
Reading a file never runs code, and every number in the header is checked before it is used. Only `build_model`, `save_weights` and `load_weights`
import torch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from modyn.config.base import load_section
from modyn.errors import ConfigError, CorruptStateError, InvalidArgumentError
from modyn.models import MODELS, config_class, is_registered
from modyn.models.names import Pretrained
from modyn.registry import load_object

if TYPE_CHECKING:
    from torch import nn

_DTYPES_BY_BITS = {
    4: "F4",
    6: "F6_E2M3 F6_E3M2",
    8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
    16: "U16 I16 F16 BF16",
    32: "U32 I32 F32",
    64: "U64 I64 F64 C64",
}
DTYPE_BITS = {name: bits for bits, names in _DTYPES_BY_BITS.items() for name in names.split()}
"""Width of each dtype of the format, in bits."""

STATISTICS: Final = "modyn.preprocessing"
"""Name of a U8 tensor (n,) that is not part of the module. The tensor holds the statistics of the preprocessing that makes the inputs of the model.
"""
_MAX_HEADER_BYTES = 100_000_000
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Description of a tensor. The values of the tensor are the bytes [start, start + num_bytes) of its file."""

    name: str
    dtype: str
    """A name of `DTYPE_BITS`."""
    shape: tuple[int, ...]
    start: int = field(default=0, compare=False)

    @property
    def num_bytes(self) -> int:
        """Return the size of the tensor's values in bytes."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


Layout = tuple[TensorSpec, ...]
"""The tensors of a model, in the order of `wire_order`."""


def wire_order(specs: Iterable[TensorSpec]) -> Layout:
    """Order tensors by width, widest dtype first, then by name. Every tensor then starts at a multiple of its width, which memory-mapped readers
    need.
    """
    return tuple(sorted(specs, key=lambda spec: (-DTYPE_BITS[spec.dtype], spec.name)))


def header_bytes(layout: Layout) -> bytes:
    """Return the header of a safetensors file whose tensors follow in the order of `layout`."""
    header: dict[str, object] = {}
    end = 0
    for spec in layout:
        start, end = end, end + spec.num_bytes
        header[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_tensors(path: Path) -> list[TensorSpec]:
    """Return the tensors of a file, in the order of their bytes. Raises CorruptStateError: the header does not match the file."""
    with path.open("rb") as file:
        file_bytes, length = path.stat().st_size, int.from_bytes(file.read(8), "little")
        if file_bytes < 8 or length > min(_MAX_HEADER_BYTES, file_bytes - 8):
            raise CorruptStateError(f"{path} is not a safetensors file: its header does not fit into its {file_bytes} bytes")
        text = file.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        found = [_spec_of(str(key), value, 8 + length) for key, value in header.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptStateError(f"{path} is not a safetensors file: {type(error).__name__} in its header: {error}") from error
    found.sort(key=lambda spec: (spec.start, spec.num_bytes))
    end = 8 + length
    for spec in found:
        if spec.start != end:
            raise CorruptStateError(f"{path}: tensor '{spec.name}' starts at byte {spec.start}, not at {end}")
        end += spec.num_bytes
    if end != file_bytes:
        raise CorruptStateError(
            f"{path} has {file_bytes} bytes, but its header promises {end}: the file is truncated or has a tail"
        )
    return found


def _spec_of(name: str, value: dict[str, object], base: int) -> TensorSpec:
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if dtype not in DTYPE_BITS:
        raise ValueError(f"tensor '{name}' has the unknown dtype {dtype!r}")
    if not (isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)):
        raise ValueError(f"tensor '{name}' has the shape {shape!r}")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(offset) is int and offset >= 0 for offset in offsets)):
        raise ValueError(f"tensor '{name}' has the offsets {offsets!r}")
    spec = TensorSpec(name, str(dtype), tuple(shape), base + offsets[0])
    if offsets[1] - offsets[0] != spec.num_bytes or math.prod(shape) * DTYPE_BITS[spec.dtype] % 8:
        raise ValueError(f"tensor '{name}' of {dtype} {shape} does not fill its {offsets[1] - offsets[0]} bytes")
    return spec


def chunks(file: BinaryIO, start: int, num_bytes: int) -> Iterator[bytes]:
    """Yield the bytes [start, start + num_bytes) of a file, one megabyte at a time. Raises CorruptStateError: the file ends earlier."""
    file.seek(start)
    while num_bytes:
        chunk = file.read(min(_CHUNK_BYTES, num_bytes))
        if not chunk:
            raise CorruptStateError(f"{getattr(file, 'name', 'the file')} ends {num_bytes} bytes too early")
        num_bytes -= len(chunk)
        yield chunk


def weights_sha256(path: Path) -> str:
    """Return the SHA-256 of name, dtype, shape and bytes of all tensors, in order of name. Equal models have equal hashes in all file formats.

    The hash does not depend on metadata, nor on the order of tensors in the file. Raises CorruptStateError: this is not a safetensors file.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for spec in sorted(read_tensors(path), key=lambda spec: spec.name):
            # Name, dtype and shape are hashed too, so that the hash changes if bytes move from one tensor to the next.
            digest.update(json.dumps([spec.name, spec.dtype, list(spec.shape)]).encode() + b"\n")
            for chunk in chunks(file, spec.start, spec.num_bytes):
                digest.update(chunk)
    return digest.hexdigest()


def build_model(id_: str, config: Mapping[str, Any], definition: str = "", pretrained: Pretrained | None = None) -> nn.Module:
    """Build a network with new weights, which PyTorch's global generator draws, or with pretrained weights of a library.

    Args: id_: `model.id` of a pipeline. config: `model.config`. definition: see `modyn.models.named.model_definition`. pretrained: None: the caller
    replaces the weights, so that pretrained weights are not loaded.
    Raises: ConfigError: the id is unknown, or the configuration is wrong. The message names the path in the pipeline.

    >>> import torch
    >>> build_model("MLP", {"input_size": 64, "hidden_sizes": [32, 16], "num_classes": 10})(torch.zeros(3, 8, 8)).shape
    torch.Size([3, 10])
    """
    from torch import nn

    if is_registered(id_):
        built = _build_registered(id_, config)
    else:
        from modyn.models.named import build_named

        built = build_named(id_, config, definition, pretrained)
    if not isinstance(built, nn.Module):
        raise ConfigError(f"model.id: '{id_}' built a {type(built).__name__}, not an nn.Module; correct its class or function")
    return built


def _build_registered(id_: str, config: Mapping[str, Any]) -> object:
    from torch import nn

    checked = load_section(config_class(id_), config, "model.config")
    kind: Any = MODELS.get(id_)
    if issubclass(kind, nn.Module):
        return kind(checked)
    if hasattr(kind, "build"):
        return kind(checked).build()
    network: Any = load_object(kind.network)
    return network(checked, *getattr(kind, "arguments", ()))


def save_weights(module: nn.Module, path: Path, statistics: bytes | None = None) -> None:
    """Write all parameters and persistent buffers of a module as a safetensors file. The module's device and mode do not matter.

    Tensors that share memory (tied weights) are written separately, so that every name can be read alone. `load_weights` keeps them tied. The same
    weights give the same bytes.

    Args: statistics: statistics of preprocessing, which the file stores and the hash includes; None: the model has no statistics.
    Raises: InvalidArgumentError: an entry of the module's state is not a tensor.
    """
    from safetensors.torch import save_file
    from torch import Tensor, contiguous_format, frombuffer, uint8

    weights: dict[str, Tensor] = {}
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            raise InvalidArgumentError(
                f"'{name}' in the model's state is a {type(value).__name__}; only tensors can be stored, as buffers or parameters"
            )
        weights[name] = value.detach().to("cpu").clone(memory_format=contiguous_format)
    if statistics is not None:
        weights[STATISTICS] = frombuffer(bytearray(statistics), dtype=uint8)
    save_file(weights, path)


def load_weights(module: nn.Module, path: Path, *, strict: bool = True) -> None:
    """Copy the weights of a file into a module by name. The module keeps its dtypes and devices. Statistics are ignored.

    Args: strict: every name must be in the file and in the module.
    Raises: InvalidArgumentError: tensors are missing, unexpected or of another shape; the message names them. CorruptStateError: the file is not a
    safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise CorruptStateError(f"{path} is not a readable safetensors file: {error}") from error
    weights.pop(STATISTICS, None)
    try:
        module.load_state_dict(weights, strict=strict)
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"the weights in {path} do not fit {type(module).__name__}; use the model and model.config they were trained with: {error}"
        ) from error


def read_statistics(path: Path) -> bytes | None:
    """Return the statistics of preprocessing in a file of weights; None: the file has no statistics. Raises CorruptStateError: this is not a
    safetensors file.
    """
    for spec in read_tensors(path):
        if spec.name == STATISTICS:
            with path.open("rb") as file:
                return b"".join(chunks(file, spec.start, spec.num_bytes))
    return None


def load_model(id_: str, config: Mapping[str, Any], path: Path, definition: str = "") -> nn.Module:
    """Build a network with the weights of the file `path`, in evaluation mode. Args, raises: see `build_model` and `load_weights`."""
    module = build_model(id_, config, definition)
    load_weights(module, path)
    return module.eval()
