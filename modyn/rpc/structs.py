"""Configuration sections on the wire: a protobuf Struct, whose numbers are all doubles, and back with whole numbers as int."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.struct_pb2 import Struct

from modyn.errors import InvalidArgumentError

_EXACT = 2**53
"""Whole numbers up to here survive as a double."""

_BIG_INT, _FLOAT, _TEXT = "$int64:", "$float:", "$text:"
"""Marks of what a Struct cannot hold, as text; and of text that could be taken for marked."""


def to_struct(data: Mapping[str, Any]) -> Struct:
    """`data` (JSON-able, string keys) as a Struct. Integers beyond 2^53 travel as marked text, so that none loses digits."""
    try:
        return ParseDict(_out(data), Struct())
    except (ParseError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"a configuration section holds something that cannot be sent: {error}") from error


def from_struct(struct: Struct) -> dict[str, Any]:
    """The dictionary that `to_struct` was given; whole numbers come back as int."""
    back: dict[str, Any] = _back(MessageToDict(struct))
    return back


def _out(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int() if abs(value) > _EXACT:
            return f"{_BIG_INT}{value}"
        case float() if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124  (NaN)
            return f"{_FLOAT}{value}"
        case str() if value.startswith("$"):
            return f"{_TEXT}{value}"
        case Mapping():
            return {str(key): _out(item) for key, item in value.items()}
        case list() | tuple():
            return [_out(item) for item in value]
    return value


def _back(value: Any) -> Any:
    match value:
        case int() if abs(value) > _EXACT:
            return float(value)  # It was one: an integer of this size travels as text.
        case float() if value.is_integer() and abs(value) <= _EXACT:
            return int(value)
        case str() if value.startswith(_BIG_INT):
            return int(value.removeprefix(_BIG_INT))
        case str() if value.startswith(_FLOAT):
            return float(value.removeprefix(_FLOAT))
        case str() if value.startswith(_TEXT):
            return value.removeprefix(_TEXT)
        case dict():
            return {key: _back(item) for key, item in value.items()}
        case list():
            return [_back(item) for item in value]
    return value
