"""Text and JSON of values that JSON, PostgreSQL or a protobuf Struct cannot hold: they are escaped, or written as marked text and come back
unchanged.

Marked are NaN and infinities, integers beyond 2^53 (a Struct holds doubles only), text with NUL or lone surrogates, and text that
starts with `$` itself.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Final

MAX_EXACT_INT: Final = 2**53
"""Integers up to this size survive as a double."""

_INT, _FLOAT, _TEXT = "$int:", "$float:", "$text:"
_SUSPECT = (r"\u0000", r"\ud", '"$')
"""Written JSON without any of these holds no text that needs a mark."""


def sanitize(text: str) -> str:
    """Escape NUL and lone surrogates: a user's exception may quote a NUL, and a file's name may be no valid text.

    >>> print(sanitize("bad value \\0 in caf\\udce9.csv"))
    bad value \\x00 in caf\\udce9.csv
    """
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def to_json(value: Any, *, sort_keys: bool = False) -> str:
    """`value` as JSON that PostgreSQL accepts.

    Args: sort_keys: mappings are equal whatever their order.

    >>> to_json({"loss": float("nan"), "batches": 3})
    '{"loss": "$float:nan", "batches": 3}'
    """
    try:
        written = json.dumps(value, allow_nan=False, sort_keys=sort_keys)
    except ValueError:
        return json.dumps(mark(value), allow_nan=False, sort_keys=sort_keys)
    return json.dumps(mark(value), sort_keys=sort_keys) if any(sign in written for sign in _SUSPECT) else written


def from_json(text: str | bytes) -> Any:
    """The value that `to_json` was given."""
    written = text.decode() if isinstance(text, bytes) else text
    value = json.loads(written)
    return unmark(value) if '"$' in written else value


def mark(value: Any) -> Any:
    """`value` with marked text in place of what cannot be held; mappings become dicts with text keys, tuples lists."""
    match value:
        case bool():
            return value
        case int() if abs(value) > MAX_EXACT_INT:
            return f"{_INT}{value}"
        case float() if not math.isfinite(value):
            return f"{_FLOAT}{value}"
        case str() if value.startswith("$") or sanitize(value) != value:
            return _TEXT + value.encode("unicode_escape").decode()
        case Mapping():
            return {mark(str(key)): mark(item) for key, item in value.items()}
        case list() | tuple():
            return [mark(item) for item in value]
    return value


def unmark(value: Any) -> Any:
    """The value that `mark` was given."""
    match value:
        case str() if value.startswith(_TEXT):
            return value.removeprefix(_TEXT).encode().decode("unicode_escape")
        case str() if value.startswith(_FLOAT):
            return float(value.removeprefix(_FLOAT))
        case str() if value.startswith(_INT):
            return int(value.removeprefix(_INT))
        case dict():
            return {unmark(key): unmark(item) for key, item in value.items()}
        case list():
            return [unmark(item) for item in value]
    return value


def whole_numbers(value: Any) -> Any:
    """`value` with floats that are exact integers as int, as they are after the wire: a Struct holds doubles only."""
    match value:
        case float() if value.is_integer() and abs(value) <= MAX_EXACT_INT:
            return int(value)
        case Mapping():
            return {key: whole_numbers(item) for key, item in value.items()}
        case list() | tuple():
            return [whole_numbers(item) for item in value]
    return value


def json_digest(value: object) -> str:
    """SHA-256 of JSON data in hexadecimal, whatever the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
