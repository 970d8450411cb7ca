"""Reads label and time from one JSON object. Errors give the exact reason."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress

from modyn._core import TimeFormat, quoted
from modyn.json_codec import sanitize
from modyn.storage.formats.text_start import UTF8_MARK

FieldPath = tuple[str, ...]
"""Names of fields, from the outermost object to the innermost."""

FIELD_TIMES = r"(?s)field:(?!\d+$)([^:.]+(?:\.[^:.]+)*)"
"""Regular expression of a timestamp_source that names a field."""
ROUNDED = "is a whole number that no float64 is: it would be rounded; set label_type to int"
"""The problem of a whole-number label in a dataset with fractions as labels. The C++ core uses the same text."""
_INT64 = range(-(2**63), 2**63)


def field_path(text: str) -> FieldPath:
    """Return the path of a dotted name. Raises: ValueError: a part of the name is empty.

    >>> field_path("meta.label")
    ('meta', 'label')
    """
    path = tuple(text.split("."))
    if not all(path):
        raise ValueError(f"'{text}' is not a name or names with dots between")
    return path


def parse_object(text: bytes) -> dict[str, object]:
    """Parse `text` as one JSON object; NaN and Infinity, which Python writes, are numbers. Raises: ValueError: the text is not a JSON object; the
    message is the reason."""
    try:
        found = _DECODER.decode(text.removeprefix(UTF8_MARK).decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: {error.reason} at its byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg} at its character {error.pos}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError(f"it is not a JSON object but {_kind(found)}")
    return found


def label_in(found: dict[str, object], path: FieldPath, *, floats: bool) -> int | float:
    """Return the label at `path` in a parsed object.

    Args: found: the values of the object by name. floats: whether labels are float64; otherwise whole numbers in the range of int64.
    Raises: ValueError: there is no such label; the message names the value that was found.
    """
    value = _at(found, path)
    # In Python, True and False are integers, but they are not labels.
    if isinstance(value, bool) or not isinstance(value, int | float if floats else int):
        raise ValueError(f"the label '{'.'.join(path)}' is {_kind(value)}, not {'a number' if floats else 'a whole number'}")
    if floats and isinstance(value, int):
        # A number that is too large for a float stays an int, and is refused below.
        with suppress(OverflowError):
            if int(float(value)) != value:
                raise ValueError(f"the label '{'.'.join(path)}'{_shown(value)} {ROUNDED}")
            value = float(value)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"the label '{'.'.join(path)}' is NaN, not a number")
    if not (isinstance(value, float) and math.isfinite(value) if floats else value in _INT64):
        raise ValueError(f"the label '{'.'.join(path)}'{_shown(value)} is out of the range of {'float64' if floats else 'int64'}")
    return value


def class_in(found: dict[str, object], path: FieldPath) -> str:
    """Return the name of the class at `path` in a parsed object. Raises: ValueError: it is neither a text nor a whole number, or it is empty."""
    value, name = _at(found, path), ".".join(path)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"the label '{name}' is {_kind(value)}, neither a text nor a whole number")
    if value == "":
        raise ValueError(f"the label '{name}' is empty, and it names a class")
    return str(value)


def seconds_in(found: dict[str, object], path: FieldPath, times: TimeFormat) -> int:
    """Return the time at `path` in a parsed object, in seconds since 1970.

    Args: found: the values of the object by name. times: how times are written, as numbers or texts.
    Raises: ValueError: there is no such time; the message names the value that was found.
    """
    value, name = _at(found, path), ".".join(path)
    try:
        return time_of(value, times)
    except ValueError as error:
        raise ValueError(f"the time '{name}' {error}") from error


def time_of(value: object, times: TimeFormat) -> int:
    """Return the seconds since 1970 of a JSON value. Raises: ValueError: the value is not a time; the message is the predicate of a sentence."""
    match value:
        case str():
            return times.of_text(sanitize(value), typed=True)
        # `bool` is matched before `int`, because `bool` is a subclass of `int`.
        case bool():
            pass
        case int() if value in _INT64:
            return times.of_integer(value)
        case int():
            raise ValueError("is a whole number of more than 64 bits; correct it")
        case float():
            return times.of_float(value)
    raise ValueError(f"is {_kind(value)}, neither a number nor a text; correct it")


def value_in(found: dict[str, object], path: FieldPath) -> object:
    """Return the value at `path` in a parsed object, of any type; None: there is no value.

    >>> value_in({"meta": {"site": "a"}}, ("meta", "site")), value_in({"meta": 1}, ("meta", "site"))
    ('a', None)
    """
    value: object = found
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def field_names(found: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield the names of all fields of a parsed object, including fields of inner objects, whose names have dots.

    >>> list(field_names({"y": 1, "meta": {"site": "a"}}))
    ['y', 'meta', 'meta.site']
    """
    for name, value in found.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from field_names(value, f"{prefix}{name}.")


class _Repeating(dict[str, object]):
    """An object with a repeated field. `_at` refuses the repeated field. All other code reads its last value."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.repeated = {name for name, count in Counter(name for name, _ in pairs).items() if count > 1}


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    # The slower class is only needed for objects with a repeated field, which are rare.
    return found if len(found) == len(pairs) else _Repeating(pairs)


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _at(found: dict[str, object], path: FieldPath) -> object:
    value: object = found
    for depth, name in enumerate(path):
        if not isinstance(value, dict) or name not in value:
            raise ValueError(f"there is no field '{'.'.join(path[: depth + 1])}'")
        if isinstance(value, _Repeating) and name in value.repeated:
            raise ValueError(f"the field '{'.'.join(path[: depth + 1])}' occurs in it more than once")
        value = value[name]
    return value


_KINDS: dict[type, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a fraction",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def _kind(value: object) -> str:
    """Describe the type of a value, and show the value if this is allowed (see `quoted`)."""
    shown = _shown(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    return f"{_KINDS[type(value)]},{shown}" if shown else _KINDS[type(value)]


def _shown(value: str | float) -> str:
    """Return a value in quotes after a blank; empty if it must not be shown (see `quoted`)."""
    shown = quoted(sanitize(str(value)))
    return f" {shown}" if shown else ""
