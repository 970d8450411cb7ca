"""Layout of a decoded or augmented sample: tensors, arrays, images, bytes and numbers, alone or in tuples and dicts, and the positions of their bytes
in one buffer. An equal value can be made from the buffer. Tensors and arrays share the buffer's memory. An image keeps mode, size and pixels, but not
its `info`.

The layout is JSON, small and equal for all samples of one shape. A layout is a *leaf*, [kind, dtype, shape, order], or ["tuple", [layout, …]], or
["dict", [[name, layout], …]]. `order` is the order of the axes in memory if it differs from the order in `shape`, for example in a permuted image.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from modyn.errors import InvalidArgumentError

ByteArray = npt.NDArray[np.uint8]
Layout = tuple[Any, ...]
"""A parsed layout, with tuples instead of the lists of JSON."""

ALIGNMENT: Final = 16
"""Each leaf begins at a multiple of this number of bytes, so numbers of all types are aligned."""
MAX_DEPTH: Final = 16
"""Largest depth of nested tuples and dicts."""
_NAMES: Final = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in (
        torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
        torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    )
}  # fmt: skip
_DTYPES: Final = {name: dtype for dtype, name in _NAMES.items()}
_NUMBERS: Final = {bool: ("bool", "|b1"), int: ("int", "<i8"), float: ("float", "<f8"), complex: ("complex", "<c16")}
"""Kind and dtype of Python's own numbers."""
_KINDS: Final = {"torch", "numpy", "image", "scalar", "bytes", "memoryview", *(kind for kind, _ in _NUMBERS.values())}
_PIXEL_BYTES: Final = {"L": 1, "LA": 2, "I;16": 2, "RGB": 3, "YCbCr": 3, "HSV": 3, "LAB": 3, "RGBA": 4, "CMYK": 4, "I": 4, "F": 4}
"""Bytes for each pixel, by mode of image. Only images of these modes can be cached, because their pixels alone define the image. Other modes have a
palette, or pack pixels into bits."""
_ORIENTATION: Final = 0x0112
"""EXIF tag of the orientation."""
_ALLOWED: Final = "dense tensors on the CPU, arrays of numbers, images of PIL, numbers, or tuples or dicts of such"

T = TypeVar("T")


class Leaf(NamedTuple):
    """One tensor, array, image, number or byte string."""

    kind: str
    """torch, numpy, image, scalar (a number of NumPy), bool, int, float, complex, bytes, memoryview."""
    dtype: str
    """Name of the dtype in PyTorch, or NumPy's `dtype.str`; for an image, its mode."""
    shape: tuple[int, ...]
    """Shape of the value; for an image, its width and height."""
    order: tuple[int, ...]
    """Axes from the slowest to the fastest; empty: the order of `shape`."""

    @property
    def shape_in_memory(self) -> tuple[int, ...]:
        """The shape of the axes in `order`."""
        return tuple(self.shape[axis] for axis in self.order) if self.order else self.shape

    @property
    def num_bytes(self) -> int:
        """Size of all elements in bytes."""
        if self.kind == "image":
            return math.prod(self.shape) * _PIXEL_BYTES[self.dtype]
        itemsize = _DTYPES[self.dtype].itemsize if self.kind == "torch" else np.dtype(self.dtype).itemsize
        return math.prod(self.shape) * itemsize

    @property
    def axes(self) -> tuple[int, ...]:
        """Position in memory of each axis of `shape`. `permute` with these positions undoes `order`."""
        return tuple(sorted(range(len(self.order)), key=self.order.__getitem__))

    def value(self, content: ByteArray) -> Any:
        """Make the leaf's value from its bytes. A tensor or array shares the memory of these bytes. Args: content: uint8 (num_bytes,), aligned and
        writable."""
        if self.kind == "torch":
            dtype, shape = _DTYPES[self.dtype], self.shape_in_memory
            # An array without bytes may have a stride that `view` refuses.
            tensor = torch.from_numpy(content).view(dtype).reshape(shape) if len(content) else torch.empty(shape, dtype=dtype)
            return tensor.permute(self.axes) if self.order else tensor
        if self.kind == "image":
            return Image.frombytes(self.dtype, self.shape, content.tobytes())  # type: ignore[arg-type]
        if self.kind == "bytes":
            return content.tobytes()
        if self.kind == "memoryview":
            return content.data
        array = content.view(self.dtype).reshape(self.shape_in_memory)
        if self.kind == "numpy":
            return array.transpose(self.axes) if self.order else array
        return array[()] if self.kind == "scalar" else array.item()


@dataclass(frozen=True, slots=True)
class ValuePlan:
    """Layout of a value, and the position of each leaf in its bytes."""

    text: bytes
    """The layout as JSON."""
    layout: Layout
    leaves: tuple[Leaf, ...]
    """Leaves in the order of the layout."""
    spans: tuple[tuple[int, int], ...]
    """[start, stop) of each leaf; starts are multiples of ALIGNMENT, the bytes between leaves are 0."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole value."""
        return self.spans[-1][1] if self.spans else 0

    def value(self, content: ByteArray) -> Any:
        """Make the value from its bytes. Tensors and arrays share the memory of these bytes. Args: content: see `Leaf.value`."""
        leaves = (leaf.value(content[start:stop]) for leaf, (start, stop) in zip(self.leaves, self.spans, strict=True))
        return _build(self.layout, leaves)


def take_apart(value: object) -> tuple[ValuePlan, list[ByteArray]]:
    """Return the layout of a value, and the bytes of each leaf. The bytes of a contiguous tensor or array share its memory.

    Raises: InvalidArgumentError: the value or a part of it cannot be kept; the message names the part.
    """
    found: list[ByteArray] = []
    layout = _flatten(value, "", found)
    return plan_of_layout(layout), found


@lru_cache(maxsize=1024)
def plan_of_layout(layout: Layout) -> ValuePlan:
    """Return the plan of a layout. Equal layouts get the same plan."""
    plan = plan_of_text(json.dumps(layout, separators=(",", ":")).encode())
    assert plan is not None
    return plan


@lru_cache(maxsize=1024)
def plan_of_text(text: bytes) -> ValuePlan | None:
    """Parse a layout. Returns None if this version does not write such a layout."""
    try:
        # The text may come from another program, so every wrong form is refused here.
        layout = _as_tuples(json.loads(text))
        leaves = tuple(_leaves(layout))
        spans, end = [], 0
        for leaf in leaves:
            if not _is_known(leaf) or (leaf.order and sorted(leaf.order) != list(range(len(leaf.shape)))):
                return None
            start = end + -end % ALIGNMENT
            end = start + leaf.num_bytes
            spans.append((start, end))
        return ValuePlan(text, layout, leaves, tuple(spans))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _is_known(leaf: Leaf) -> bool:
    """Whether this version writes such a leaf. Another program may have written the layout."""
    sizes_are_whole = all(type(size) is int and size >= 0 for size in leaf.shape)
    return sizes_are_whole and leaf.kind in _KINDS and (leaf.kind in ("torch", "image") or np.dtype(leaf.dtype).kind in "biufc")


def _flatten(value: Any, where: str, found: list[ByteArray]) -> Layout:
    """Return the layout of `value`, and add its leaves to `found`. Types must match exactly, because the attributes of a subclass would be lost.
    Args: where: path in the whole value, for messages."""
    kind = type(value)
    if kind is torch.Tensor:
        _check_tensor(value, where)
        order = _order(value.stride())
        in_order = _plain(value.permute(order) if order else value).contiguous()
        # `reshape` would keep strides of axes with one element that `view` refuses.
        found.append(in_order.as_strided((value.numel(),), (1,)).view(torch.uint8).numpy())
        return "torch", _NAMES[value.dtype], tuple(value.shape), order
    if kind is np.ndarray or isinstance(value, np.generic):
        if value.dtype.kind not in "biufc":
            raise _refused(where, f"a {kind.__name__} of dtype {value.dtype}")
        # A number of NumPy has no strides.
        order = _order(value.strides) if kind is np.ndarray else ()
        array = value.transpose(order) if order else value
        found.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return "numpy" if kind is np.ndarray else "scalar", value.dtype.str, tuple(value.shape), order
    if kind in _NUMBERS:
        name, dtype = _NUMBERS[kind]
        try:
            found.append(np.array([value], dtype).view(np.uint8))
        except OverflowError:
            raise _refused(where, f"a whole number beyond 64 bits, {value:.3e}") from None
        return name, dtype, (), ()
    if kind not in (tuple, dict):
        return _flatten_bytes(value, where, found)
    # `where` has a bracket for each level, so the number of brackets is the depth.
    if where.count("[") >= MAX_DEPTH:
        raise _refused("", f"a value with more than {MAX_DEPTH} tuples and dicts within each other")
    if kind is tuple:
        return "tuple", tuple(_flatten(part, f"{where}[{i}]", found) for i, part in enumerate(value))
    for name in value:
        # Converting names to text could make two names of a dict equal.
        if type(name) is not str:
            raise _refused(where, f"a dict with {name!r}, a {type(name).__name__}, for a name")
    return "dict", tuple((name, _flatten(part, f"{where}[{name!r}]", found)) for name, part in value.items())


def _flatten_bytes(value: Any, where: str, found: list[ByteArray]) -> Layout:
    """Flatten bytes and images, see `_flatten`."""
    if type(value) is bytes or (type(value) is memoryview and value.contiguous and value.format == "B"):
        found.append(np.frombuffer(value, np.uint8))
        return type(value).__name__, "|u1", (len(found[-1]),), ()
    if not isinstance(value, Image.Image):
        raise _refused(where, f"a {type(value).__name__}")
    _check_image(value, where)
    found.append(np.frombuffer(value.tobytes(), np.uint8))
    return "image", value.mode, value.size, ()


def _check_tensor(tensor: torch.Tensor, where: str) -> None:
    """Raise InvalidArgumentError for a tensor that its elements do not define completely."""
    what = None
    if type(tensor) is not torch.Tensor:
        what = f"a {type(tensor).__name__}"
    elif tensor.is_nested:
        what = "a nested tensor"
    elif tensor.layout != torch.strided:
        what = f"a sparse tensor ({tensor.layout})"
    elif tensor.is_quantized:
        what = f"a quantized tensor ({tensor.dtype})"
    elif tensor.device.type != "cpu":
        what = f"a tensor on the device {tensor.device}"
    elif tensor.requires_grad:
        what = "a tensor that requires a gradient"
    elif tensor.dtype not in _NAMES:
        what = f"a tensor of {tensor.dtype}"
    if what:
        raise _refused(where, what)


def _check_image(image: Image.Image, where: str) -> None:
    """Raise InvalidArgumentError for an image with relevant content besides its pixels. An image that is not read yet is refused too, because
    transformations could read the image at a smaller size."""
    if type(image) is not Image.Image:
        raise _refused(where, f"a {type(image).__name__} that is not read yet (`image.convert('RGB')` reads it)")
    if "transparency" in image.info:
        raise _refused(where, "an image with a transparent colour (`image.convert('RGBA')` keeps it)")
    if image.mode not in _PIXEL_BYTES:
        raise _refused(where, f"an image of mode {image.mode} (`image.convert('RGB')` changes it)")
    if "exif" in image.info and image.getexif().get(_ORIENTATION, 1) != 1:
        raise _refused(where, "an image that EXIF says to turn (`ImageOps.exif_transpose(image)` turns it)")


def _refused(where: str, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{f'part {where} of the sample' if where else 'the sample'} is {what}; the cache cannot keep it: parser and "
        f"transformations must return {_ALLOWED}, or `split` must give that form no part"
    )


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Resolve a conjugate or negative view, so that the bytes equal the elements."""
    return tensor.resolve_conj().resolve_neg()


def _order(strides: Sequence[int]) -> tuple[int, ...]:
    """Return the axes from the slowest to the fastest in memory; empty: the order of `shape`."""
    # A negative stride means that the elements of the axis are in memory in reverse order; only its size matters here.
    if all(map(lambda slow, fast: abs(slow) >= abs(fast), strides, strides[1:])):
        return ()
    return tuple(sorted(range(len(strides)), key=lambda axis: -abs(strides[axis])))


def _as_tuples(parsed: Any) -> Any:
    return tuple(map(_as_tuples, parsed)) if isinstance(parsed, list) else parsed


def _leaves(layout: Layout) -> Iterator[Leaf]:
    kind, *rest = layout
    if kind == "tuple":
        for part in rest[0]:
            yield from _leaves(part)
    elif kind == "dict":
        for _, part in rest[0]:
            yield from _leaves(part)
    else:
        yield Leaf(*layout)


def _build(layout: Layout, leaves: Iterator[T]) -> Any:
    if layout[0] == "tuple":
        return tuple(_build(part, leaves) for part in layout[1])
    return {name: _build(part, leaves) for name, part in layout[1]} if layout[0] == "dict" else next(leaves)
