"""Tensors in JSON and as bytes: what goes in comes out, and what is wrong is refused with its name."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from modyn.errors import InvalidArgumentError
from modyn.serving.messages.infer import InferAnswer, InferRequest
from modyn.serving.messages.json_parts import PART_BYTES, PART_VALUES, load_tensors
from modyn.serving.messages.json_tensors import JsonRequest, encode_answer, from_bytes, parse_inputs, parse_request, to_bytes
from modyn.serving.messages.signature import DTYPES, Tensor, datatype_of
from modyn.serving.observations.router import split_observations

NUMBERS = st.sampled_from([dtype for name, dtype in DTYPES.items() if name != "BYTES"])
SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, max_side=4)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    if draw(st.booleans()):
        dtype = draw(NUMBERS)
        elements = arrays.from_dtype(dtype, allow_nan=False, allow_infinity=False)
        return draw(arrays.arrays(dtype, SHAPES, elements=elements))
    texts = draw(st.lists(st.text(max_size=5), min_size=1, max_size=5))
    values = np.empty(len(texts), np.object_)
    values[:] = [text.encode() for text in texts]
    return values


@given(tensors(), st.booleans(), st.booleans())
def test_a_tensor_comes_back_as_it_was_sent(values: Tensor, in_binary: bool, out_binary: bool) -> None:
    """An answer can be parsed as a request: the same JSON, with the same bytes after it."""
    answer = InferAnswer("m", "1", "id", {"x": values})
    body, head = encode_answer(answer, JsonRequest(InferRequest("m", {}), all_binary=out_binary))
    fields = json.loads(body[:head])
    assert fields["outputs"][0]["datatype"] == datatype_of(values.dtype)
    fields["inputs"] = fields.pop("outputs")
    request = json.dumps(fields).encode()
    found = parse_request("m", None, request + (body[head:] if head else b""), len(request) if head else None)
    assert found.request.request_id == "id"
    again = found.request.inputs["x"]
    assert (again.dtype, again.shape) == (values.dtype, values.shape)
    assert again.tolist() == values.tolist()
    copied = from_bytes("x", datatype_of(values.dtype), values.shape, to_bytes(values))
    assert copied.tolist() == values.tolist()


@given(tensors(), st.integers(1, 60), st.sampled_from([None, 1]), st.booleans(), st.booleans())
def test_a_request_in_parts_is_the_whole(
    values: Tensor, part_bytes: int, indent: int | None, is_flat: bool, is_wrong: bool
) -> None:
    """Each list of values is decoded in parts: the tensors are those of the whole, and so is what is said of a wrong request."""
    data: Any = [item.decode() for item in values] if values.dtype == object else (values.ravel() if is_flat else values).tolist()
    if is_wrong:
        data.insert(len(data) // 2, {"data": ["]", 1]})
    item = {"data": data, "name": 'the "data": [1, ', "datatype": datatype_of(values.dtype), "shape": list(values.shape)}
    body = json.dumps({"parameters": {"data": [1, 2, 3]}, "inputs": [item, {**item, "name": "other"}]}, indent=indent).encode()
    seen = list[object]()
    for fields in (orjson.loads(body), load_tensors(body, part_bytes)):
        try:
            seen.append({name: (found.dtype, found.tolist()) for name, found in parse_inputs(fields).items()})
        except InvalidArgumentError as error:
            seen.append(type(error))
    assert seen[0] == seen[1]
    assert is_wrong == (seen[0] is InvalidArgumentError)


@pytest.mark.parametrize(
    ("text", "num_parts"),
    [
        ("[1, 2, 3, 4]", 4),
        ("[[1, 2], [3, 4]]", 4),
        ("[ [[[1, 2]], [[3, 4]]] , [[[5, 6]], [[7, -8.5e-1]]] ]", 8),
        ('["a, b", "c\\\\", "d\\", ", "e"]', 3),
        ("[true, null, 1e5, 2]", 4),
        ('[["a"], ["b"]]', 0),
        ('[{"a": 1}, {"b": 2}]', 0),
        ("[]", 0),
    ],
)
def test_lists_are_split_between_their_items(text: str, num_parts: int) -> None:
    found = load_tensors(b'{"inputs": [{"data": %b, "shape": [4]}]}' % text.encode(), 1)["inputs"][0]
    assert found["shape"] == [4]
    if not num_parts:
        assert found["data"] == json.loads(text)
        return
    parts = list(found["data"].take())
    assert len(parts) == num_parts
    values = np.array(json.loads(text), object)
    assert [item for part in parts for item in part] == values.ravel().tolist()
    assert found["data"].fits(values.shape)
    assert found["data"].fits([2, 1, values.size // 2]) == (values.ndim == 1)


@pytest.mark.parametrize("text", ["[1,  , 2]", "[1, 2, ]", "[, 1]", "[1, 2", "[1], [2]", '"data": [1, 2]', "[1, 2]]", "[1, [2]"])
def test_what_is_not_json_as_a_whole_is_refused_in_parts_with_its_place(text: str) -> None:
    body = b'{"inputs": [{"data": %b, "shape": [2]}]}' % text.encode()
    with pytest.raises(orjson.JSONDecodeError) as expected:
        orjson.loads(body)
    with pytest.raises(orjson.JSONDecodeError, match=re.escape(str(expected.value))):
        load_tensors(body, 1)


def request(missing: object = None, **changes: Any) -> bytes:
    item = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2], **changes}
    return json.dumps({"inputs": [item], "parameters": {"missing": missing}}).encode()


DEEP = b"[" * 1000 + b"]" * 1000
"""Value of more levels than Python's own text of a value has."""


def nested(value: object, depth: int) -> object:
    return value if depth == 0 else [nested(value, depth - 1)]


@pytest.mark.parametrize("field", [b'"x": [%b[]]', b'"id": [%b{}]', b'"outputs": [%b[]]'])
def test_more_lists_than_are_decoded_in_a_moment_are_refused(field: bytes) -> None:
    """A reader's 24 MB of empty lists took 2 s, in which no prediction was answered."""
    body = b'{"inputs": [], %b}' % (field % (b"[]," * 500_000))
    with pytest.raises(InvalidArgumentError, match="more than 500,000 lists and objects, and cannot be decoded in parts"):
        parse_request("m", None, body)
    with pytest.raises(InvalidArgumentError, match="more than 500,000 lists and objects"):
        list(split_observations(body))
    nested_rows = request(shape=[600_000, 1], data="ROWS").replace(b'"ROWS"', b"[[1]" + b",[1]" * 599_999 + b"]")
    assert parse_request("m", None, nested_rows).request.inputs["x"].shape == (600_000, 1), "they are decoded in parts"


def test_whole_numbers_on_both_sides_of_what_int64_holds() -> None:
    found = parse_request("m", None, request(datatype="UINT64", data=[[0, 2**63 + 1]])).request.inputs["x"]
    assert found.tolist() == [[0, 2**63 + 1]]
    with pytest.raises(InvalidArgumentError, match=f"input 'x': {2**63} does not fit into INT64"):
        parse_request("m", None, request(datatype="INT64", data=[0, 2**63]))


def test_an_id_that_is_null_is_none() -> None:
    assert parse_request("m", None, b'{"inputs": [], "id": null, "outputs": null, "parameters": null}').request.request_id == ""


def test_nested_lists_are_taken_as_well_as_flat_ones() -> None:
    for texts in (["a", None], [["a", None]]):
        assert parse_request("m", "3", request(datatype="BYTES", data=texts)).request.inputs["x"].tolist() == [[b"a", None]]
    for data in ([1, 2.5], [[1, 2.5]]):
        found = parse_request("m", "3", request(data=data)).request
        assert (found.model, found.version, found.inputs["x"].tolist()) == ("m", "3", [[1.0, 2.5]])


def test_the_largest_numbers_of_a_datatype_fit_also_as_they_are_written_in_short() -> None:
    for datatype, text, largest in (("FP32", b"3.4028235e38", 2.0**128 - 2.0**104), ("FP16", b"65519", 65504.0)):
        body = request(datatype=datatype, data=[0, -1]).replace(b"-1", text)
        assert parse_request("m", None, body).request.inputs["x"].tolist() == [[0.0, largest]]


def test_a_tensor_may_have_whole_numbers_of_both_ends_of_a_datatype() -> None:
    for datatype, data in (("UINT64", [0, 2**64 - 1]), ("INT64", [-(2**63), 2**63 - 1]), ("INT8", [[-128, 127]])):
        values = parse_request("m", None, request(datatype=datatype, data=data)).request.inputs["x"]
        assert (values.dtype, values.ravel().tolist()) == (DTYPES[datatype], np.ravel(np.array(data, object)).tolist())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the request is not JSON"),
        (
            b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [NaN]}]}',
            "the request is not JSON (NaN is not JSON either)",
        ),
        (b"[]", "the request is []; write an object"),
        (b"{}", "'inputs' is missing; write a list of objects"),
        (b'{"input": []}', "'inputs' is missing, did you mean 'input'?"),
        (request(name=3), "'name' of an input is 3; write a text"),
        (request(datatype="FLOAT"), "input 'x': datatype is 'FLOAT'"),
        (request(shape=[1, -2]), "input 'x': shape is [1, -2]; write a list of sizes"),
        (request(shape=[1, True]), "input 'x': shape is [1, True]; write a list of sizes"),
        (request(data=None), "input 'x': data is missing; write a list of values"),
        (request(data=[1, 2, 3]), "input 'x': data has 3 values; its shape [1, 2] has 2"),
        (request(data=[[1], [2]]), "input 'x': data has nested as [2, 1]; its shape [1, 2] has 2"),
        (request(data=[[1], 2]), "input 'x': data is not a tensor of numbers"),
        (request(data=["1", "2"]), "input 'x': data holds something else than numbers, which FP32 needs"),
        (request(data=[1, {}]), "input 'x': data holds something else than numbers, which FP32 needs"),
        (request(data=[1e300, 1]), "input 'x': a number in data does not fit into FP32"),
        (request(datatype="FP16", data=[-(2**63), 1]), "input 'x': a number in data does not fit into FP16"),
        (request(datatype="FP16", data=[65520, 1]), "input 'x': a number in data does not fit into FP16"),
        (request(data=[2.0**128 - 2.0**103, 1]), "input 'x': a number in data does not fit into FP32"),
        (request(datatype="INT8", data=[1, 2.5]), "input 'x': data holds something else than whole numbers, which INT8 needs"),
        (request(datatype="INT64", data=[True, 3]), "input 'x': data holds something else than whole numbers, which INT64 needs"),
        (request(data=[[1.5, False]]), "input 'x': data holds something else than numbers, which FP32 needs"),
        (request(datatype="INT8", data=[1, 128]), "input 'x': 128 does not fit into INT8"),
        (request(datatype="UINT8", data=[-1, 2]), "input 'x': -1 does not fit into UINT8"),
        (request(datatype="INT64", data=[-1, 2**63]), "input 'x': 9223372036854775808 does not fit into INT64"),
        (request(datatype="UINT64", data=[-1, 2**63]), "input 'x': -1 does not fit into UINT64"),
        (request(datatype="INT8", data=[1, None]), "input 'x': data holds something else than whole numbers, which INT8 needs"),
        (request(datatype="BOOL", data=[0, 1]), "input 'x': data holds something else than true or false, which BOOL needs"),
        (request(datatype="BYTES", data=["a", 1]), "input 'x': data holds 1; BYTES are texts in JSON"),
        (request(datatype="BYTES", data=[["a"], ["b"]]), "input 'x': data has nested as [2, 1]; its shape [1, 2] has 2"),
        (
            request(datatype="BYTES", data=[["a", "b"], "c"]),
            "input 'x': data is not a tensor of texts or numbers: its lists differ in length or depth",
        ),
        (request(datatype="BYTES", data=[[["a", None]]]), "input 'x': data has nested as [1, 1, 2]; its shape [1, 2] has 2"),
        (request(datatype="BYTES", data=nested("a", 70)), "input 'x': no tensor has the shape [1, 1, 1,"),
        (request(shape=[0, 2**62], data=[]), f"input 'x': no tensor has the shape [0, {2**62}]; send at most"),
        # The product of these sizes has more digits than Python converts to a text.
        (request(shape=[2**63 - 1] * 1000), "input 'x': no tensor has the shape [9223372036854775807, "),
        (request(shape="DEEP").replace(b'"DEEP"', DEEP), "input 'x': shape is [[[["),
        (b'{"inputs": [], "parameters": {"timeout": %b}}' % DEEP, "the parameter timeout is [[[["),
        (b'{"inputs": [], "id": %b}' % DEEP, "id is [[[["),
        (request(shape=[1] * 65, data=[1]), "input 'x': no tensor has the shape [1, 1, 1,"),
        (request(datatype="BYTES", shape=[0, 2**62], data=[]), f"input 'x': no tensor has the shape [0, {2**62}]; send at most"),
        (
            request(data=None, parameters={"binary_data_size": 8}),
            "input 'x': binary_data_size is 8, and 0 bytes are left in the body",
        ),
        (request(parameters={"binary_data_size": 8}), "input 'x' has data and binary_data_size; send its values one way"),
        (
            b'{"inputs": [], "parameters": {"binary_data_output": "false"}}',
            "the parameter binary_data_output is 'false'; write true or false",
        ),
        (
            b'{"inputs": [], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}',
            "the parameter binary_data is 1; write true or false",
        ),
        (b'{"inputs": [], "id": 3}', "id is 3; write a text of at most 128 characters"),
        (b'{"inputs": [], "parameters": {"timeout": -1}}', "the parameter timeout is -1"),
        (b'{"inputs": [], "outputs": [{}]}', "'name' of an output is missing"),
        (request(missing=[1]), "the parameter missing is [1]; write positions by input"),
        (request(missing="{"), "the parameter missing is not JSON"),
        (request(missing={"y": [0]}), "the parameter missing names 'y', which is not an input of the request"),
        (request(missing={"x": [2]}), "input 'x': missing is [2]; write a list of positions from 0 on, below 2"),
        (request(missing={"x": [-1]}), "input 'x': missing is [-1]"),
        (request(missing={"x": [True]}), "input 'x': missing is [True]"),
        (request(datatype="INT8", missing={"x": [0]}), "input 'x': INT8 has no missing values"),
    ],
)
def test_what_is_wrong_is_named(body: bytes, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        parse_request("m", None, body)


def test_an_input_that_is_sent_twice_is_refused() -> None:
    item = json.loads(request())["inputs"][0]
    with pytest.raises(InvalidArgumentError, match="input 'x' is sent twice"):
        parse_request("m", None, json.dumps({"inputs": [item, item]}).encode())


@pytest.mark.parametrize("datatype", ["FP32", "BOOL", "BYTES"])
@pytest.mark.parametrize("shape", [(0, 2**63), (0, *[1] * 64), (0, 2**64 - 1)])
def test_shapes_that_no_array_can_have_are_refused(datatype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="input 'x': no tensor has the shape"):
        from_bytes("x", datatype, shape, b"")


def test_bytes_that_do_not_fit_are_refused() -> None:
    for header, wanted in ((0, "is 0, and the body"), (999, "is 999, and the body")):
        with pytest.raises(InvalidArgumentError, match=f"Inference-Header-Content-Length {wanted}"):
            parse_request("m", None, b"{}", header)
    plain = request()
    with pytest.raises(InvalidArgumentError, match="3 bytes after the JSON belong to no input"):
        parse_request("m", None, plain + b"abc", len(plain))
    with pytest.raises(InvalidArgumentError, match=r"input 'x' has 3 bytes; FP32 of shape \[1\] has 4"):
        from_bytes("x", "FP32", (1,), b"abc")
    with pytest.raises(InvalidArgumentError, match="value 1 ends after its bytes"):
        from_bytes("x", "BYTES", (2,), b"\1\0\0\0a\5\0\0\0b")


def test_options_of_a_request() -> None:
    body = {
        "inputs": [], "id": "seven", "parameters": {"timeout": 1500, "binary_data_output": True},
        "outputs": [{"name": "a", "parameters": {"binary_data": False}}, {"name": "b"}],
    }  # fmt: skip
    found = parse_request("m", None, json.dumps(body).encode())
    assert (found.request.request_id, found.request.timeout_s, found.request.outputs) == ("seven", 0.0015, ("a", "b"))
    assert (sorted(found.binary), found.all_binary) == (["b"], False)


def test_what_is_named_as_missing_is_nan_or_none() -> None:
    for missing in ({"x": [1]}, '{"x": [1]}'):
        values = parse_request("m", None, request(missing=missing)).request.inputs["x"]
        assert np.isnan(values).tolist() == [[False, True]]
        texts = parse_request("m", None, request(missing=missing, datatype="BYTES", data=["a", ""])).request.inputs["x"]
        assert texts.tolist() == [[b"a", None]]


def test_nan_becomes_null_in_json_and_stays_in_bytes() -> None:
    answer = InferAnswer("m", "1", "id", {"x": np.array([math.nan, 1], np.float32)})
    body, _ = encode_answer(answer, JsonRequest(InferRequest("m", {})))
    assert json.loads(body)["outputs"][0]["data"] == [None, 1.0]
    body, head = encode_answer(answer, JsonRequest(InferRequest("m", {}), all_binary=True))
    assert np.isnan(np.frombuffer(body[head:], np.float32)[0])


def test_many_values_of_an_answer_are_encoded_as_few_are() -> None:
    for values in (
        np.arange(3 * PART_VALUES) / 7,
        np.arange(2.0 * PART_VALUES + 1, dtype=np.float32) - 0.1,
        np.full(2 * PART_VALUES, np.nan),
    ):
        answer = InferAnswer("m", "1", "r", {"x": values.reshape(1, -1)})
        body, _ = encode_answer(answer, JsonRequest(InferRequest("m", {})))
        output = json.loads(body)["outputs"][0]
        assert output["data"] == orjson.loads(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY))
        assert output["shape"] == [1, len(values)]


def test_whole_numbers_of_a_large_request_are_rounded_as_those_among_fractions() -> None:
    number = 2**60 + 2**36 + 1  # by way of float64 it becomes 2**60 as float32, otherwise the next float32
    small = parse_request("m", None, request(data=[number, 0.5])).request.inputs["x"].tolist()
    count = PART_BYTES
    body = request(data=[number] * count + [0.5], shape=[1, count + 1])
    large = parse_request("m", None, body).request.inputs["x"].tolist()
    assert (
        small[0][0]
        == large[0][0]
        == parse_request("m", None, request(data=[number, 1])).request.inputs["x"].tolist()[0][0]
        == 2.0**60
    )
