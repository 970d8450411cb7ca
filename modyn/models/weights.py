"""Weights of a module to and from safetensors files, and the hash by which two models are equal.

Only `save_weights`, `load_weights` and hashing a state dict need torch, and import it when called.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from modyn.errors import CorruptStateError, InvalidArgumentError
from modyn.models.safetensors_file import TensorSpec, file_weights_sha256, hash_prefix

if TYPE_CHECKING:
    from torch import Tensor, nn

_DTYPE_NAMES = {
    "torch.bool": "BOOL",
    "torch.uint8": "U8",
    "torch.int8": "I8",
    "torch.uint16": "U16",
    "torch.int16": "I16",
    "torch.uint32": "U32",
    "torch.int32": "I32",
    "torch.uint64": "U64",
    "torch.int64": "I64",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float32": "F32",
    "torch.float64": "F64",
    "torch.complex64": "C64",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.float8_e8m0fnu": "F8_E8M0",
    "torch.float8_e4m3fnuz": "F8_E4M3FNUZ",
    "torch.float8_e5m2fnuz": "F8_E5M2FNUZ",
}
"""What safetensors calls torch's dtypes."""


def save_weights(module: nn.Module, path: Path) -> None:
    """All parameters and persistent buffers of the module as a safetensors file; the module's device and mode do not matter.

    Tensors that share memory (tied weights) are written once each, so that every name can be read alone. The same weights give the
    same bytes. Raises InvalidArgumentError for state that is no tensor.
    """
    from safetensors.torch import save_file

    save_file(_plain(module.state_dict()), path)


def load_weights(module: nn.Module, path: Path, *, strict: bool = True) -> None:
    """Copy the weights in the file into the module, where names agree; dtypes and devices are the module's.

    strict: every name must be in both. Raises InvalidArgumentError naming tensors that are missing, unexpected or of another shape,
    CorruptStateError if the file is not a safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise CorruptStateError(f"{path} is not a readable safetensors file: {error}") from error
    try:
        module.load_state_dict(weights, strict=strict)
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"the weights in {path} do not fit {type(module).__name__}; use the model and model.config they were trained with: {error}"
        ) from error


def weights_sha256(weights: Path | Mapping[str, Tensor]) -> str:
    """SHA-256 over (name, dtype, shape, bytes) of each tensor, in order of name.

    Args: weights: a safetensors file, which is read without torch, or a state dict. The same weights have the same hash in both.
    """
    if isinstance(weights, Path):
        return file_weights_sha256(weights)
    from torch import uint8

    digest = hashlib.sha256()
    for name, tensor in sorted(_plain(weights).items()):
        digest.update(hash_prefix(TensorSpec(name, _DTYPE_NAMES[str(tensor.dtype)], tuple(tensor.shape))))
        # A view as bytes has every dtype, numpy (which knows no bfloat16) does not.
        digest.update(tensor.reshape(-1).view(uint8).numpy().data)
    return digest.hexdigest()


def _plain(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor contiguous, on the CPU, in memory of its own."""
    from torch import Tensor, contiguous_format

    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise InvalidArgumentError(
                f"'{name}' in the model's state is a {type(value).__name__}; only tensors can be stored, as buffers or parameters"
            )
        found[name] = value.detach().to("cpu").clone(memory_format=contiguous_format)
    return found
