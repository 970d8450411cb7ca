"""JSON columns: PostgreSQL's JSON knows no NaN, no infinity, no NUL and no lone surrogate, but losses, states of policies and text of
users do. They are kept as marked text."""

from __future__ import annotations

import json
import math
from typing import Any

from modyn.sanitize import sanitize

_MARK = "$float:"
_ESCAPED = "$escaped:"
"""Before text that PostgreSQL does not take as it is, and before text that starts with a mark by itself."""
_SUSPECT = (r"\u0000", r"\ud", _ESCAPED, _MARK)
"""Written JSON without any of these holds no such text."""


def to_json(value: Any) -> str:
    """`value` as JSON that PostgreSQL takes.

    >>> to_json({"loss": float("nan"), "batches": 3})
    '{"loss": "$float:nan", "batches": 3}'
    """
    try:
        written = json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_marked(value), allow_nan=False)
    return json.dumps(_marked(value)) if any(sign in written for sign in _SUSPECT) else written


def from_json(text: str | bytes) -> Any:
    """What `to_json` was given."""
    written = text.decode() if isinstance(text, bytes) else text
    value = json.loads(written)
    return _unmarked(value) if _MARK in written or _ESCAPED in written else value


def _marked(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return f"{_MARK}{value}"
        case str() if value.startswith((_ESCAPED, _MARK)) or sanitize(value) != value:
            return _ESCAPED + value.encode("unicode_escape").decode()
        case dict():
            return {_marked(key) if isinstance(key, str) else key: _marked(item) for key, item in value.items()}
        case list() | tuple():
            return [_marked(item) for item in value]
    return value


def _unmarked(value: Any) -> Any:
    match value:
        case str() if value in (f"{_MARK}nan", f"{_MARK}inf", f"{_MARK}-inf"):
            return float(value.removeprefix(_MARK))
        case str() if value.startswith(_ESCAPED):
            return value.removeprefix(_ESCAPED).encode().decode("unicode_escape")
        case dict():
            return {_unmarked_key(key): _unmarked(item) for key, item in value.items()}
        case list():
            return [_unmarked(item) for item in value]
    return value


def _unmarked_key(key: str) -> Any:
    return _unmarked(key) if key.startswith(_ESCAPED) else key
