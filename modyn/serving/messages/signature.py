"""Signature of a model: names, datatypes and shapes of the inputs and outputs. The signature checks the tensors that a client sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from modyn.errors import InvalidArgumentError
from modyn.registry import nearest

Tensor = npt.NDArray[Any]
Tensors = Mapping[str, Tensor]
"""Arrays by name of the tensor. A BYTES tensor is an array of dtype object that contains `bytes`."""

IMAGE: Final = "image"
"""Name of the input of a model whose pipeline decodes images."""

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
"""NumPy dtypes by the protocol's names. Source: Open Inference Protocol, version 2, "Tensor Data Types"."""

_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


def datatype_of(dtype: np.dtype[Any]) -> str:
    """Return the protocol's name of a dtype. Raises InvalidArgumentError: the protocol has no name for the dtype, for example for complex numbers.

    >>> datatype_of(np.dtype("float32"))
    'FP32'
    """
    name = _NAMES.get(dtype)
    if name is None:
        raise InvalidArgumentError(
            f"dtype {dtype} has no name in the Open Inference Protocol; convert it to one of {', '.join(DTYPES)}"
        )
    return name


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """One input or output of a model."""

    name: str
    datatype: str
    """A key of `DTYPES`."""
    shape: tuple[int, ...]
    """Sizes of the dimensions; -1: any size. If the first size is -1, the first dimension is the batch."""
    nan_allowed: bool = False
    """Whether the model fills in missing values: NaN in floating-point tensors, None in BYTES. Infinite values are always refused."""
    example: bytes = b""
    """Value of a BYTES tensor that the model takes, for warm-up."""

    def __post_init__(self) -> None:
        if self.datatype not in DTYPES:
            raise InvalidArgumentError(
                f"tensor '{self.name}' has the datatype {self.datatype!r}{nearest(self.datatype, list(DTYPES))}; known are {', '.join(DTYPES)}"
            )
        if any(size < -1 for size in self.shape):
            raise InvalidArgumentError(
                f"tensor '{self.name}' has the shape {list(self.shape)}; sizes are at least 0, or -1 for any"
            )

    def check(self, values: Tensor) -> None:
        """Raise InvalidArgumentError if `values` do not fit. The message names the tensor, the sent value and the expected value."""
        if values.dtype != DTYPES[self.datatype]:
            raise InvalidArgumentError(
                f"input '{self.name}' was sent as {_NAMES.get(values.dtype, values.dtype)}; the model takes {self.datatype}"
            )
        sent, wanted = list(values.shape), list(self.shape)
        if len(sent) != len(wanted) or sent != [given if size < 0 else size for size, given in zip(wanted, sent, strict=True)]:
            raise InvalidArgumentError(
                f"input '{self.name}' was sent with shape {sent}; the model takes {wanted}, where -1 is any size"
            )
        if not self.nan_allowed and values.dtype.kind == "O" and any(value is None for value in values.flat):
            raise InvalidArgumentError(
                f"input '{self.name}' holds null, and the model does not fill in missing values; send texts"
            )
        # In the usual case, one pass is enough. Only the error message needs the position of a wrong number.
        if values.dtype.kind == "f" and np.count_nonzero(np.isfinite(values)) != values.size:
            self._refuse_not_finite(values)

    def _refuse_not_finite(self, values: Tensor) -> None:
        """Raise InvalidArgumentError if a number is infinite, or if a number is NaN although the tensor allows no missing values."""
        wrong = np.isinf(values) if self.nan_allowed else ~np.isfinite(values)
        if not wrong.any():
            return
        place = [int(index) for index in np.argwhere(wrong)[0]]
        what = "NaN" if np.isnan(values[*place]) else str(values[*place])
        missing = (
            "NaN where one is missing" if self.nan_allowed else "or serve a model whose preprocessing fills in missing values"
        )
        raise InvalidArgumentError(
            f"input '{self.name}' holds {what} at {place}, {int(wrong.sum())} of {values.size} values; send finite numbers, {missing}"
        )


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """Inputs and outputs of a model, in the order of their definition."""

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    is_batched: bool = field(init=False, repr=False)
    """Whether requests can be joined, because the first dimension of each input is the batch dimension."""
    input_names: frozenset[str] = field(init=False, repr=False)
    output_names: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        is_batched = bool(self.inputs) and all(tensor.shape[:1] == (-1,) for tensor in self.inputs)
        # The class is frozen, and these fields are computed.
        object.__setattr__(self, "is_batched", is_batched)
        object.__setattr__(self, "input_names", frozenset(tensor.name for tensor in self.inputs))
        object.__setattr__(self, "output_names", tuple(tensor.name for tensor in self.outputs))
        for kind, tensors in (("input", self.inputs), ("output", self.outputs)):
            names = [tensor.name for tensor in tensors]
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise InvalidArgumentError(f"two {kind}s of the model are named '{twice}'; give each a name of its own")

    def check_inputs(self, inputs: Tensors) -> int:
        """Return the number of rows of a request; 1 if the model is not batched.

        Raises: InvalidArgumentError: a tensor is missing, unknown, or does not fit; the inputs have different numbers of rows, or no rows.
        """
        if inputs.keys() != self.input_names:
            raise self._wrong_names(inputs)
        for tensor in self.inputs:
            tensor.check(inputs[tensor.name])
        if not self.is_batched:
            return 1
        rows = [len(inputs[tensor.name]) for tensor in self.inputs]
        if min(rows) != max(rows):
            shown = ", ".join(f"'{tensor.name}' {number}" for tensor, number in zip(self.inputs, rows, strict=True))
            raise InvalidArgumentError(
                f"the inputs differ in their number of rows: {shown}; send the same number of rows in each"
            )
        if rows[0] == 0:
            raise InvalidArgumentError("the request has no rows; send at least one")
        return rows[0]

    def _wrong_names(self, inputs: Tensors) -> InvalidArgumentError:
        names = [tensor.name for tensor in self.inputs]
        for name in inputs:
            if name not in names:
                return InvalidArgumentError(f"the model has no input '{name}'{nearest(name, names)}; it takes {_listed(names)}")
        missing = next(name for name in names if name not in inputs)
        return InvalidArgumentError(f"input '{missing}' is missing; the model takes {_listed(names)}")

    def check_wanted(self, wanted: Sequence[str]) -> None:
        """Raise InvalidArgumentError if the model lacks a requested output."""
        for name in wanted:
            if name not in self.output_names:
                near = nearest(name, [*self.output_names])
                raise InvalidArgumentError(f"the model has no output '{name}'{near}; it returns {_listed(self.output_names)}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
