"""Read records and labels from a file of JSON lines, for `modyn data append` and `modyn data label`."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from modyn._core import TimeFormat
from modyn.errors import DataError, NotFoundError
from modyn.registry import nearest
from modyn.storage.client import NewRecord

T = TypeVar("T")
CALL_RECORDS: Final = 1_000
CALL_BYTES: Final = 4 << 20
"""Largest number of records, and approximate number of bytes of lines, in one call."""
_AUTOMATIC: Final = TimeFormat()
_PAYLOADS: Final = ("payload", "payload_base64", "features")
_FIELDS: Final = ("key", "label", "timestamp", *_PAYLOADS)


def read_calls(path: Path, timestamp_format: str = "") -> Iterator[list[NewRecord]]:
    """Yield the records of a file in groups, one for each call of storage.

    A line is an object with "key" (idempotency key), "label" (unless the label is set later), and one of "payload" (text, sent as UTF-8),
    "payload_base64" (bytes) and "features" (an object, sent as compact JSON in the order of the line). "timestamp" (seconds since 1970, or ISO 8601)
    is optional. Empty lines are ignored.

    Args: timestamp_format: option of the dataset; "s": all numbers are seconds.
    Raises: NotFoundError: the file does not exist. DataError: a line is wrong; the error names file and line. The records before this line were
    yielded.
    """
    records: list[NewRecord] = []
    num_bytes = 0
    try:
        for record, size in _parsed(
            path, partial(parse_record, numbers=TimeFormat(timestamp_format)), "The lines before it were appended"
        ):
            records.append(record)
            num_bytes += size
            if len(records) == CALL_RECORDS or num_bytes >= CALL_BYTES:
                yield records
                records, num_bytes = [], 0
    except DataError:
        if records:
            yield records
        raise
    if records:
        yield records


def read_labels(path: Path) -> Iterator[dict[str, float]]:
    """Yield the labels of a file by key in groups, one for each call of storage. A repeated key starts a new group.

    A line is an object with "key" and "label". Raises: see `read_calls`.
    """
    labels = dict[str, float]()
    try:
        for (key, label), _ in _parsed(path, parse_label, "The labels before it were set"):
            if key in labels or len(labels) == CALL_RECORDS:
                yield labels
                labels = {}
            labels[key] = label
    except DataError:
        if labels:
            yield labels
        raise
    yield labels


def _parsed(path: Path, parse: Callable[[bytes], T], so_far: str) -> Iterator[tuple[T, int]]:
    """Yield the content of each line, and its size. Args: parse: function for one line, which may raise ValueError. so_far: sentence about the lines
    before a wrong line, for the error.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    try:
                        yield parse(line), len(line)
                    except ValueError as error:
                        raise DataError(f"{path}, line {number}: {error}. {so_far}; correct it and repeat the command") from error
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}; name a file of JSON lines") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; name a file that can be read") from error


def parse_record(line: bytes, numbers: TimeFormat = _AUTOMATIC) -> NewRecord:
    """Parse a record. Args: numbers: format of times that are numbers. Raises ValueError.

    >>> parse_record(b'{"key": "a", "label": 1, "features": {"x": 0.5}}')
    NewRecord(key='a', payload=b'{"x":0.5}', label=1, timestamp=None)
    """
    found = _object(line, _FIELDS)
    key, label, timestamp = (found.get(name) for name in ("key", "label", "timestamp"))
    key = _text_key(key)
    if label is not None and (isinstance(label, bool) or not isinstance(label, int | float)):
        raise ValueError(f"'label' is {_shown(label)}; it must be a number; leave it out if it is not known yet")
    return NewRecord(key, _payload(found), label, None if timestamp is None else _time(timestamp, numbers))


def parse_label(line: bytes) -> tuple[str, float]:
    """Parse the key of a record and its label. Raises ValueError.

    >>> parse_label(b'{"key": "a", "label": 1}')
    ('a', 1)
    """
    found = _object(line, ("key", "label"))
    key, label = found.get("key"), found.get("label")
    if isinstance(label, bool) or not isinstance(label, int | float):
        raise ValueError(f"'label' is {_shown(label)}; it must be a number")
    return _text_key(key), label


def _object(line: bytes, fields: Sequence[str]) -> dict[str, Any]:
    """Parse the JSON object of a line. Raises ValueError: the line is not an object, or has other fields."""
    try:
        found = json.loads(line, parse_constant=_refuse_constant)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"it is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    for name in found:
        if name not in fields:
            raise ValueError(f"there is no field '{name}'{nearest(name, list(fields)) or '.'} A line has {', '.join(fields)}")
    return found


def _text_key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"'key' is {_shown(key)}; it must be a text, the idempotency key")
    return key


def _time(value: object, numbers: TimeFormat) -> int:
    from modyn.storage.formats.json_fields import time_of

    try:
        return time_of(value, _AUTOMATIC if isinstance(value, str) else numbers)
    except ValueError as error:
        what = str(error).partition("; ")[0]  # the rest is advice on options of file formats
        raise ValueError(f"'timestamp' {what}; write seconds since 1970 or ISO 8601, or leave it out") from error


def _payload(found: dict[str, Any]) -> bytes:
    given = [name for name in _PAYLOADS if name in found]
    if len(given) != 1:
        raise ValueError(f"it has {' and '.join(given) or 'no payload'}; give one of {', '.join(_PAYLOADS)}")
    value = found[given[0]]
    if given[0] == "features":
        if not isinstance(value, dict):
            raise ValueError(f"'features' is {_shown(value)}; it must be an object")
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    if not isinstance(value, str):
        raise ValueError(f"'{given[0]}' is {_shown(value)}; it must be a text")
    if given[0] == "payload":
        return value.encode()
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"'payload_base64' is not Base64 ({error})") from error


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
