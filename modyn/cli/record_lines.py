"""Records in a file of JSON lines, as `modyn data append` reads them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from modyn.errors import DataError, NotFoundError
from modyn.registry import nearest
from modyn.storage.client import NewRecord

CALL_RECORDS: Final = 1_000
CALL_BYTES: Final = 4 << 20
"""A call has at most so many records, and about so many bytes of lines."""
_PAYLOADS: Final = ("payload", "payload_base64", "features")
_FIELDS: Final = ("key", "label", "timestamp", *_PAYLOADS)


def read_calls(path: Path) -> Iterator[list[NewRecord]]:
    """Yield the records of a file in the groups in which they are sent.

    A line is an object with "key" (idempotency key), "label" unless it comes later, one of "payload" (text, sent as UTF-8), "payload_base64" (bytes)
    and "features" (an object, sent as compact JSON in the order of the line), and optionally "timestamp" (seconds since 1970). Empty lines count for
    nothing.

    Raises: NotFoundError: there is no such file. DataError: a line is no record; it names file and line. The records before it were yielded.
    """
    records: list[NewRecord] = []
    num_bytes = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    records.append(parse_record(line))
                except ValueError as error:
                    if records:
                        yield records
                    raise DataError(
                        f"{path}, line {number}: {error}. The lines before it were appended; correct it and repeat the command"
                    ) from error
                num_bytes += len(line)
                if len(records) == CALL_RECORDS or num_bytes >= CALL_BYTES:
                    yield records
                    records, num_bytes = [], 0
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}; name a file of JSON lines") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; name a file that can be read") from error
    if records:
        yield records


def parse_record(line: bytes) -> NewRecord:
    """Make a record of one line. Raises: ValueError: says what is wrong with it.

    >>> parse_record(b'{"key": "a", "label": 1, "features": {"x": 0.5}}')
    NewRecord(key='a', payload=b'{"x":0.5}', label=1, timestamp=None)
    """
    try:
        found = json.loads(line, parse_constant=_refuse_constant)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"it is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    for name in found:
        if name not in _FIELDS:
            raise ValueError(f"there is no field '{name}'{nearest(name, list(_FIELDS)) or '.'} A line has {', '.join(_FIELDS)}")
    key, label, timestamp = (found.get(name) for name in ("key", "label", "timestamp"))
    if not isinstance(key, str):
        raise ValueError(f"'key' is {_shown(key)}; it must be a text, the idempotency key")
    if "label" in found and (isinstance(label, bool) or not isinstance(label, int | float)):
        raise ValueError(f"'label' is {_shown(label)}; it must be a number, or left out if it comes later")
    if timestamp is not None and (isinstance(timestamp, bool) or not isinstance(timestamp, int)):
        raise ValueError(f"'timestamp' is {_shown(timestamp)}; it must be whole seconds since 1970, or left out")
    return NewRecord(key, _payload(found), label, timestamp)


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
        raise ValueError(f"'payload_base64' is no Base64 ({error})") from error


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
