"""Converters of values that JSON, PostgreSQL or a protobuf Struct cannot represent. `sanitize` escapes such values. `mark` writes such values as
marked text, and `unmark` converts marked text back to the same values.

Marked values are NaN and infinities, integers beyond 2^53 (a Struct contains only doubles), text with NUL or lone surrogates, and text that starts
with `$`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, Self

from pydantic import TypeAdapter, ValidationError

from modyn.errors import CorruptStateError

MAX_EXACT_INT: Final = 2**53
"""Largest integer up to which a double represents every integer exactly."""

_INT, _FLOAT, _TEXT = "$int:", "$float:", "$text:"
_SUSPECT = (r"\u0000", r"\ud", '"$')
"""If JSON contains none of these substrings, none of its texts needs a mark."""


def sanitize(text: str) -> str:
    """Escape NUL and lone surrogates. A user's exception may quote a NUL, and a file name may be invalid UTF-8.

    >>> print(sanitize("bad value \\0 in caf\\udce9.csv"))
    bad value \\x00 in caf\\udce9.csv
    """
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def to_json(value: Any, *, sort_keys: bool = False) -> str:
    """Convert a value to JSON that PostgreSQL accepts.

    Args: sort_keys: sort keys, so that mappings with the same items give the same text.

    >>> to_json({"loss": float("nan"), "batches": 3})
    '{"loss": "$float:nan", "batches": 3}'
    """
    try:
        written = json.dumps(value, allow_nan=False, sort_keys=sort_keys)
    except ValueError:
        return json.dumps(mark(value), allow_nan=False, sort_keys=sort_keys)
    return json.dumps(mark(value), sort_keys=sort_keys) if any(sign in written for sign in _SUSPECT) else written


def from_json(text: str | bytes) -> Any:
    """Convert the result of `to_json` to the original value."""
    written = text.decode() if isinstance(text, bytes) else text
    value = json.loads(written)
    return unmark(value) if '"$' in written else value


def mark(value: Any) -> Any:
    """Convert values that cannot be represented to marked text. Mappings become dicts with text keys, and tuples become lists."""
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
    """Convert the output of `mark` back to the original value."""
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
    """Replace floats that are exact integers by int, because a Struct contains only doubles."""
    match value:
        case float() if value.is_integer() and abs(value) <= MAX_EXACT_INT:
            return int(value)
        case Mapping():
            return {key: whole_numbers(item) for key, item in value.items()}
        case list() | tuple():
            return [whole_numbers(item) for item in value]
    return value


def json_digest(value: object) -> str:
    """Return the SHA-256 of JSON data in hexadecimal, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class JsonRecord:
    """A frozen dataclass that is converted to JSON data, for a Struct in messages and for a JSON column in tables."""

    __slots__ = ()

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Read the output of `to_mapping`. Unknown keys are ignored. Raises: CorruptStateError."""
        try:
            record: Self = adapter(cls).validate_python(mapping)
        except ValidationError as error:
            found = "; ".join(
                f"{'.'.join(map(str, each['loc']))}: {each['msg']}, not {each['input']!r}" for each in error.errors()
            )
            raise CorruptStateError(f"a stored {cls.__name__} cannot be read: {found}") from error
        return record

    def to_mapping(self) -> dict[str, Any]:
        """Return the record as JSON data, without the fields that have their default values."""
        written: dict[str, Any] = adapter(type(self)).dump_python(self, mode="json", exclude_defaults=True)
        return written


adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Return Pydantic's converter of a dataclass."""
