"""Converters of requests and answers to the protocol's JSON, with or without its binary tensor extension.

Source: Open Inference Protocol, version 2, "HTTP/REST"; "Binary Tensor Data Extension".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from modyn.errors import InvalidArgumentError
from modyn.registry import nearest
from modyn.serving.messages.infer import InferAnswer, InferRequest
from modyn.serving.messages.json_parts import PART_VALUES, ListInParts, dumps_values, load_tensors, load_whole
from modyn.serving.messages.parameters import refuse_unsupported, timeout_of
from modyn.serving.messages.shown import shown
from modyn.serving.messages.signature import DTYPES, ModelSignature, Tensor, TensorSignature, datatype_of

MAX_ID: Final = 128
"""Largest number of characters of a request id. Storage refuses a longer key of an observation."""

_MAX_DIMENSIONS: Final = 64
"""Largest number of dimensions of an array in NumPy."""
_TAKEN: Final[dict[str, tuple[frozenset[type], str]]] = {
    "b": (frozenset({bool}), "true or false"),
    "i": (frozenset({int}), "whole numbers"),
    "u": (frozenset({int}), "whole numbers"),
    "f": (frozenset({int, float, type(None)}), "numbers"),
}
"""Classes of JSON values that each kind of dtype accepts, and the name of these values in messages."""
_INFINITE: Final = {np.dtype(np.float16): 65520.0, np.dtype(np.float32): 2.0**128 - 2.0**103}
"""The smallest number that rounds to infinity, by dtype. FP64 has no entry, because no JSON number rounds to infinity as FP64."""


class JsonRequest(NamedTuple):
    """A request and the format of its answer. binary: names of the outputs that are sent as bytes after the JSON."""

    request: InferRequest
    binary: frozenset[str] = frozenset()
    all_binary: bool = False


def parse_request(model: str, version: str | None, body: bytes, header_bytes: int | None = None) -> JsonRequest:
    """Decode the body of a request.

    Args: header_bytes: size of the JSON, if tensors follow the JSON as bytes; None: the whole body is JSON.
    Raises: InvalidArgumentError: a tensor or field is wrong; the message names the tensor or field.
    """
    if header_bytes is not None and not 0 < header_bytes <= len(body):
        raise InvalidArgumentError(f"Inference-Header-Content-Length is {header_bytes}, and the body has {len(body)} bytes")
    rest: memoryview | bytes = b"" if header_bytes is None else memoryview(body)[header_bytes:]
    fields = load_object(body[:header_bytes], "the request", load_tensors)
    return _with_options(model, version, parse_inputs(fields, rest), fields)


def parse_inputs(fields: Mapping[str, Any], rest: memoryview | bytes = b"") -> dict[str, Tensor]:
    """Return the tensors of the field `inputs`. Args: rest: bytes of tensors without data in the JSON. Raises InvalidArgumentError."""
    inputs: dict[str, Tensor] = {}
    start = 0
    for item in _list(fields, "inputs"):
        name = _text(item, "name", "an input")
        if name in inputs:
            raise InvalidArgumentError(f"input '{name}' is sent twice")
        shape = _shape(item, name)
        datatype = _datatype(item, name)
        parameters = _mapping(item, "parameters", f"input '{name}'") if "parameters" in item else {}
        refuse_unsupported(parameters, f"input '{name}'")
        size = parameters.get("binary_data_size")
        if size is None:
            inputs[name] = from_data(name, datatype, shape, item.get("data"))
            continue
        if item.get("data") is not None:
            raise InvalidArgumentError(f"input '{name}' has data and binary_data_size; send its values one way")
        # `isinstance` would accept true, because a bool is an int.
        if type(size) is not int or not 0 <= size <= len(rest) - start:
            raise InvalidArgumentError(
                f"input '{name}': binary_data_size is {shown(size)}, and {len(rest) - start} bytes are left in the body"
            )
        inputs[name] = from_bytes(name, datatype, shape, rest[start : start + size])
        start += size
    # Every byte must belong to an input. Otherwise the client and the server disagree about the sizes.
    if start != len(rest):
        raise InvalidArgumentError(f"{len(rest) - start} bytes after the JSON belong to no input; set binary_data_size of each")
    return inputs


def _with_options(model: str, version: str | None, inputs: Mapping[str, Tensor], fields: Mapping[str, Any]) -> JsonRequest:
    parameters = _mapping(fields, "parameters", "the request")
    refuse_unsupported(parameters, "the request")
    inputs = with_missing(inputs, parameters.get("missing"))
    request_id = "" if fields.get("id") is None else request_id_of(fields["id"])
    outputs, binary = [], set()
    all_binary = _is_set(parameters, "binary_data_output")
    for item in _list(fields, "outputs") if fields.get("outputs") is not None else ():
        name = _text(item, "name", "an output")
        outputs.append(name)
        of_output = _mapping(item, "parameters", f"output '{name}'")
        refuse_unsupported(of_output, f"output '{name}'")
        if _is_set(of_output, "binary_data", all_binary):
            binary.add(name)
    return JsonRequest(
        InferRequest(model, inputs, version, request_id, tuple(outputs), timeout_of(parameters.get("timeout"))),
        frozenset(binary),
        all_binary and not outputs,
    )


def request_id_of(value: object) -> str:
    """Check and return a client's request id. Raises InvalidArgumentError: the id is not a text, or is too long."""
    if not isinstance(value, str) or len(value) > MAX_ID:
        raise InvalidArgumentError(f"id is {shown(value)}; write a text of at most {MAX_ID} characters")
    return value


def with_missing(inputs: Mapping[str, Tensor], places: object) -> Mapping[str, Tensor]:
    """Return the inputs with the missing values marked: None in BYTES tensors, NaN in floating-point tensors. The parameter `missing` of a request
    names the missing values.

    The parameter is necessary because the bytes of a tensor cannot express a missing text: an empty text is a value.

    Args: places: the positions of missing values in the flat list of values, counted from 0, by input; either a dictionary or its JSON text; None: no
    value is missing.
    Raises: InvalidArgumentError: an input is wrong; the message names the input.

    >>> with_missing({"site": np.array([b"a.org", b""], object)}, '{"site": [1]}')["site"].tolist()
    [b'a.org', None]
    """
    if places is None:
        return inputs
    if isinstance(places, str):
        places = load_object(places.encode(), "the parameter missing")
    if not isinstance(places, dict):
        raise InvalidArgumentError(
            f'the parameter missing is {shown(places)}; write positions by input, such as {{"site": [0, 3]}}'
        )
    return {**inputs, **{name: _mark_missing(name, inputs, found) for name, found in places.items()}}


def _mark_missing(name: str, inputs: Mapping[str, Tensor], places: object) -> Tensor:
    if name not in inputs:
        raise InvalidArgumentError(
            f"the parameter missing names '{name}'{nearest(name, list(inputs))}, which is not an input of the request"
        )
    # The inputs may share memory with the body of the request, so they are not changed in place.
    values = inputs[name].copy()
    if values.dtype.kind not in "Of":
        raise InvalidArgumentError(f"input '{name}': {datatype_of(values.dtype)} has no missing values; send FP64, or BYTES")
    if not isinstance(places, list) or not all(type(place) is int and 0 <= place < values.size for place in places):
        raise InvalidArgumentError(
            f"input '{name}': missing is {shown(places)}; write a list of positions from 0 on, below {values.size}"
        )
    values.reshape(-1)[places] = None if values.dtype == np.object_ else math.nan
    return values


def encode_answer(answer: InferAnswer, wanted: JsonRequest) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the size of the JSON if tensors follow the JSON as bytes; None: the whole body is JSON.

    JSON lacks NaN and infinity, so they become null. A client that needs these values must request binary outputs.
    """
    outputs, tail = [], []
    for name, values in answer.outputs.items():
        item: dict[str, Any] = {"name": name, "datatype": datatype_of(values.dtype), "shape": values.shape}
        if wanted.all_binary or name in wanted.binary:
            content = to_bytes(values)
            item["parameters"] = {"binary_data_size": len(content)}
            tail.append(content)
        else:
            item["data"] = _json_values(values)
        outputs.append(item)
    fields = {"model_name": answer.model, "model_version": answer.version, "id": answer.request_id, "outputs": outputs}
    head = orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
    return (head, None) if not tail else (b"".join([head, *tail]), len(head))


def server_metadata() -> dict[str, Any]:
    """Return the name and version of this server, and the protocol extensions that it supports over HTTP."""
    return {"name": "modyn", "version": version("modyn"), "extensions": ["binary_tensor_data"]}


def metadata(model: str, versions: Sequence[str], signature: ModelSignature) -> dict[str, Any]:
    """Return the description of a model."""

    def tensors(found: Sequence[TensorSignature]) -> list[dict[str, Any]]:
        return [{"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)} for tensor in found]

    return {
        "name": model,
        "versions": list(versions),
        "platform": "pytorch",
        "inputs": tensors(signature.inputs),
        "outputs": tensors(signature.outputs),
    }


def from_data(name: str, datatype: str, shape: tuple[int, ...], data: object) -> Tensor:
    """Make a tensor from a flat or nested list of JSON values. Raises InvalidArgumentError: the type, number or shape of the values is wrong."""
    if isinstance(data, list):
        return _reshape_data(name, shape, _from_list(name, datatype, data))
    if not isinstance(data, ListInParts):
        raise InvalidArgumentError(f"input '{name}': data is {shown(data)}; write a list of values, or set binary_data_size")
    try:
        values = _reshape_data(name, shape, np.concatenate([_from_list(name, datatype, part) for part in data.take()]))
    except ValueError as error:
        raise _ragged(name) from error
    if not data.fits(shape):
        raise InvalidArgumentError(f"input '{name}': data is nested, and not as its shape {list(shape)} is")
    return values


def _from_list(name: str, datatype: str, data: list[Any]) -> Tensor:
    if datatype == "BYTES":
        return _texts(name, data)
    try:
        values = np.array(data)
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"input '{name}': data is not a tensor of numbers: {error}") from error
    wanted = DTYPES[datatype]
    types, what = _TAKEN[wanted.kind]
    if not _types(data) <= types:
        raise InvalidArgumentError(f"input '{name}': data holds something else than {what}, which {datatype} needs")
    # NumPy cannot express null in numbers, so such a list has become an array of objects.
    if wanted.kind == "f" and values.dtype == np.object_:
        values = np.array(_nulls_as_nan(data))
    elif wanted.kind in "iu" and values.dtype.kind == "f":  # NumPy makes floats of a list that contains both 0 and 2**63
        values = np.array(data, np.object_)
    return _cast(name, datatype, values)


def _ragged(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"input '{name}': data is not a tensor of texts or numbers: its lists differ in length or depth")


def from_bytes(name: str, datatype: str, shape: tuple[int, ...], content: memoryview | bytes) -> Tensor:
    """Make a tensor from little-endian bytes. In BYTES tensors, a length of 4 bytes precedes each value. Raises InvalidArgumentError."""
    if datatype == "BYTES":
        return _reshape_data(name, shape, _split(name, bytes(content)))
    wanted, count = DTYPES[datatype], math.prod(shape)
    if len(content) != count * wanted.itemsize:
        raise InvalidArgumentError(
            f"input '{name}' has {len(content)} bytes; {datatype} of shape {list(shape)} has {count * wanted.itemsize}"
        )
    if datatype == "BOOL":
        # A byte may be any number, and a bool of NumPy must be 0 or 1.
        return reshaped(name, np.frombuffer(content, np.uint8), shape).astype(np.bool_)
    return reshaped(name, np.frombuffer(content, wanted.newbyteorder("<")).astype(wanted, copy=False), shape)


def reshaped(name: str, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return values in another shape. Raises InvalidArgumentError: no array can have this shape."""
    try:
        return values.reshape(shape)
    except ValueError as error:
        raise _no_tensor(name, shape) from error


def check_dimensions(name: str, shape: Sequence[int]) -> None:
    """Raise InvalidArgumentError for too many dimensions, before anything is computed from the sizes. The product of 30,000 sizes takes seconds."""
    if len(shape) > _MAX_DIMENSIONS:
        raise _no_tensor(name, shape)


def _no_tensor(name: str, shape: Sequence[int]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"input '{name}': no tensor has the shape {shown(list(shape))}; send at most {_MAX_DIMENSIONS} dimensions, and sizes that fit into memory"
    )


def to_bytes(values: Tensor) -> bytes:
    """Return the bytes of a tensor in the format that `from_bytes` reads."""
    if values.dtype == np.object_:
        return b"".join(len(value).to_bytes(4, "little") + value for value in values.ravel())
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()


def load_object(text: bytes, what: str, loads: Callable[[bytes], Any] = load_whole) -> dict[str, Any]:
    """Parse a JSON object. Raises InvalidArgumentError: the text is not a JSON object, or too large to be decoded."""
    try:
        fields = loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidArgumentError(f"{what} is not JSON (NaN is not JSON either): {error}") from error
    if not isinstance(fields, dict):
        raise InvalidArgumentError(f"{what} is {shown(fields)}; write an object")
    return fields


def _cast(name: str, datatype: str, values: Tensor) -> Tensor:
    wanted = DTYPES[datatype]
    if wanted == values.dtype:
        return values
    if wanted.kind in "iu" and values.size:
        low, high = int(values.min()), int(values.max())
        bounds = np.iinfo(wanted)
        if low < bounds.min or high > bounds.max:
            raise InvalidArgumentError(f"input '{name}': {low if low < bounds.min else high} does not fit into {datatype}")
    if wanted.kind == "f":  # a part of the list may consist of whole numbers
        values = values.astype(np.float64, copy=False)
    # If a number is too large, NumPy rounds it to infinity without an error.
    if wanted in _INFINITE and np.count_nonzero(np.abs(values) >= _INFINITE[wanted]):
        raise InvalidArgumentError(f"input '{name}': a number in data does not fit into {datatype}")
    return values.astype(wanted)


def _reshape_data(name: str, shape: tuple[int, ...], values: Tensor) -> Tensor:
    count = math.prod(shape)
    if values.size != count or (values.ndim > 1 and values.shape != shape):
        given = f"nested as {list(values.shape)}" if values.ndim > 1 else f"{values.size} values"
        raise InvalidArgumentError(f"input '{name}': data has {given}; its shape {list(shape)} has {count}")
    return reshaped(name, values, shape)


def _types(data: list[Any]) -> set[type]:
    """Return the classes of all values, including the values of nested lists."""
    found = set(map(type, data))
    if list in found:
        found = {kind for item in data for kind in (_types(item) if isinstance(item, list) else (type(item),))}
    return found


def _nulls_as_nan(data: list[Any]) -> list[Any]:
    """Replace null by NaN: JSON writes a missing number as null."""
    return [_nulls_as_nan(item) if isinstance(item, list) else math.nan if item is None else item for item in data]


def _texts(name: str, data: list[Any]) -> Tensor:
    nesting = [len(data)]
    while list in set(map(type, data)):
        sizes = {len(item) if isinstance(item, list) else -1 for item in data}
        if len(sizes) > 1:
            raise _ragged(name)
        nesting += sizes
        data = [value for item in data for value in item]
    for item in data:
        if not (item is None or isinstance(item, str)):
            raise InvalidArgumentError(
                f"input '{name}': data holds {shown(item)}; BYTES are texts in JSON, null where one is missing"
            )
    return reshaped(name, _objects([None if item is None else item.encode() for item in data]), tuple(nesting))


def _split(name: str, content: bytes) -> Tensor:
    found: list[bytes] = []
    start = 0
    while start < len(content):
        end = start + 4 + int.from_bytes(content[start : start + 4], "little")
        if end > len(content):
            raise InvalidArgumentError(
                f"input '{name}': value {len(found)} ends after its bytes; each has its length in 4 bytes before it"
            )
        found.append(content[start + 4 : end])
        start = end
    return _objects(found)


def _objects(values: Sequence[bytes | None]) -> Tensor:
    made = np.empty(len(values), np.object_)
    for first in range(0, len(values), PART_VALUES):  # in parts, so that other threads run between them
        made[first : first + PART_VALUES] = values[first : first + PART_VALUES]
    return made


def _json_values(values: Tensor) -> Any:
    if values.dtype == np.object_:
        return [value.decode("utf-8", "replace") for value in values.ravel()]
    return values.ravel() if values.size <= PART_VALUES else dumps_values(values.ravel())


def _list(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = fields.get(name)
    if not isinstance(found, list) or not set(map(type, found)) <= {dict}:
        near = "" if found is not None else nearest(name, list(fields))
        raise InvalidArgumentError(f"'{name}' is {shown(found)}{near}; write a list of objects, one for each tensor")
    return found


def _mapping(fields: Mapping[str, Any], name: str, what: str) -> Mapping[str, Any]:
    found = fields.get(name)
    if found is not None and not isinstance(found, dict):
        raise InvalidArgumentError(f"'{name}' of {what} is {shown(found)}; write an object")
    return found or {}


def _is_set(parameters: Mapping[str, Any], name: str, otherwise: bool = False) -> bool:
    found = parameters.get(name)
    if found is not None and not isinstance(found, bool):
        raise InvalidArgumentError(f"the parameter {name} is {shown(found)}; write true or false")
    return otherwise if found is None else found


def _text(item: Mapping[str, Any], name: str, what: str) -> str:
    found = item.get(name)
    if not isinstance(found, str):
        raise InvalidArgumentError(f"'{name}' of {what} is {shown(found)}; write a text")
    return found


def _shape(item: Mapping[str, Any], name: str) -> tuple[int, ...]:
    found = item.get("shape")
    if not isinstance(found, list) or not set(map(type, found)) <= {int} or min(found, default=0) < 0:
        raise InvalidArgumentError(f"input '{name}': shape is {shown(found)}; write a list of sizes, for example [1, 3]")
    check_dimensions(name, found)
    return tuple(found)


def _datatype(item: Mapping[str, Any], name: str) -> str:
    found = item.get("datatype")
    if not isinstance(found, str) or found not in DTYPES:
        near = nearest(found, list(DTYPES)) if isinstance(found, str) else ""
        raise InvalidArgumentError(f"input '{name}': datatype is {shown(found)}{near}; known are {', '.join(DTYPES)}")
    return found
