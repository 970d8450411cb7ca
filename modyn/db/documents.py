"""JSON columns: PostgreSQL's JSON knows no NaN and no infinity, but losses and metrics do. They are kept as marked text."""

from __future__ import annotations

import json
import math
from typing import Any

_MARK = "$float:"


def to_json(value: Any) -> str:
    """`value` as JSON that PostgreSQL takes.

    >>> to_json({"loss": float("nan"), "batches": 3})
    '{"loss": "$float:nan", "batches": 3}'
    """
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_marked(value), allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """What `to_json` was given."""
    value = json.loads(text)
    marker = _MARK.encode() if isinstance(text, bytes) else _MARK
    return _unmarked(value) if marker in text else value  # type: ignore[operator]


def _marked(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return f"{_MARK}{value}"
        case dict():
            return {key: _marked(item) for key, item in value.items()}
        case list() | tuple():
            return [_marked(item) for item in value]
    return value


def _unmarked(value: Any) -> Any:
    match value:
        case str() if value in (f"{_MARK}nan", f"{_MARK}inf", f"{_MARK}-inf"):
            return float(value.removeprefix(_MARK))
        case dict():
            return {key: _unmarked(item) for key, item in value.items()}
        case list():
            return [_unmarked(item) for item in value]
    return value
