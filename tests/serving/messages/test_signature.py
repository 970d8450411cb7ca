"""Tensors that do not fit a signature are refused, with their name, what was sent and what is expected."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from modyn.errors import InvalidArgumentError
from modyn.serving.messages.signature import DTYPES, ModelSignature, TensorSignature, datatype_of

TWO = ModelSignature(
    (TensorSignature("image", "FP32", (-1, 2, -1)), TensorSignature("text", "BYTES", (-1, 1))),
    (TensorSignature("output", "FP32", (-1, 10)),),
)


def inputs(**changes: Any) -> dict[str, Any]:
    return {"image": np.zeros((3, 2, 5), np.float32), "text": np.full((3, 1), b"a", np.object_), **changes}


def test_what_fits_is_counted_in_rows() -> None:
    assert TWO.is_batched
    assert TWO.check_inputs(inputs()) == 3
    fixed = ModelSignature((TensorSignature("x", "INT64", (2,)),), ())
    assert not fixed.is_batched
    assert fixed.check_inputs({"x": np.zeros(2, np.int64)}) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"imgae": np.zeros(1, np.float32)}, "the model has no input 'imgae', did you mean 'image'?; it takes 'image', 'text'"),
        ({"image": np.zeros((3, 2, 5), np.float64)}, "input 'image' was sent as FP64; the model takes FP32"),
        ({"image": np.zeros((3, 5), np.float32)}, "input 'image' was sent with shape [3, 5]; the model takes [-1, 2, -1]"),
        ({"image": np.zeros((3, 3, 5), np.float32)}, "input 'image' was sent with shape [3, 3, 5]; the model takes [-1, 2, -1]"),
        ({"image": np.zeros((4, 2, 5), np.float32)}, "the inputs differ in their number of rows: 'image' 4, 'text' 3"),
        ({"image": np.full((3, 2, 5), np.nan, np.float32)}, "input 'image' holds NaN at [0, 0, 0], 30 of 30 values"),
        (
            {"image": np.zeros((0, 2, 5), np.float32), "text": np.empty((0, 1), np.object_)},
            "the request has no rows; send at least one",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        TWO.check_inputs(inputs(**changes))


def test_a_missing_input_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="input 'text' is missing; the model takes 'image', 'text'"):
        TWO.check_inputs({"image": inputs()["image"]})


def test_nan_is_taken_where_the_model_fills_it_in_and_infinity_nowhere() -> None:
    filled = TensorSignature("x", "FP32", (-1,), nan_allowed=True)
    filled.check(np.array([np.nan], np.float32))
    for signature in (filled, TensorSignature("x", "FP32", (-1,))):
        with pytest.raises(InvalidArgumentError, match=r"input 'x' holds -inf at \[1\], 1 of 2 values; send finite numbers"):
            signature.check(np.array([1, -np.inf], np.float32))


def test_a_wrong_signature_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="datatype 'FP32x', did you mean 'FP32'"):
        TensorSignature("x", "FP32x", ())
    with pytest.raises(InvalidArgumentError, match="sizes are at least 0"):
        TensorSignature("x", "FP32", (-2,))
    with pytest.raises(InvalidArgumentError, match="two inputs of the model are named 'x'"):
        ModelSignature((TensorSignature("x", "FP32", ()), TensorSignature("x", "FP32", ())), ())
    with pytest.raises(InvalidArgumentError, match="did you mean 'output'"):
        TWO.check_wanted(["ouput"])
    with pytest.raises(InvalidArgumentError, match="complex128 has no name"):
        datatype_of(np.dtype(complex))


@given(st.sampled_from(sorted(DTYPES)), arrays.array_shapes(min_dims=1, max_dims=4, max_side=4), st.data())
def test_a_shape_fits_exactly_if_each_size_is_any_or_equal(datatype: str, shape: tuple[int, ...], data: st.DataObject) -> None:
    wanted = tuple(data.draw(st.sampled_from((-1, size, size + 1))) for size in shape)
    values = np.full(shape, b"", np.object_) if datatype == "BYTES" else np.zeros(shape, DTYPES[datatype])
    signature = TensorSignature("x", datatype, wanted)
    if all(size in (-1, given_) for size, given_ in zip(wanted, shape, strict=True)):
        signature.check(values)
    else:
        with pytest.raises(InvalidArgumentError, match="was sent with shape"):
            signature.check(values)
