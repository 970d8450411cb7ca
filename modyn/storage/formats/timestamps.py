"""The place of a sample's time: `timestamp_source` of a dataset.

| source | meaning |
|---|---|
| `` | modification time of the file, whole seconds |
| `name:REGEX` | group 1 of REGEX, searched in the file's name: ISO 8601, or whole seconds if it is all digits; `(?P<date>...)` is always ISO 8601 |
| `column:N` | column N (from 0) of a CSV row: whole seconds or ISO 8601 |
| `column:NAME` | column NAME of a Parquet row: whole seconds, ISO 8601, a date or a timestamp |
| `field:OFFSET` or `field:OFFSET:SIZE` | signed integer of SIZE (default 8) bytes at byte OFFSET of a binary record: seconds |
| `field:NAME` or `field:OUTER.INNER` | field of a JSON object: whole seconds or ISO 8601 |

All times are seconds since 1970; a time without a zone is UTC.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from modyn.errors import ConfigError, DataError
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP


@dataclass(frozen=True, slots=True)
class FromModificationTime:
    """Every sample of a file has the file's modification time."""


@dataclass(frozen=True, slots=True)
class FromName:
    """Every sample of a file has the time in the file's name."""

    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class FromColumn:
    """A CSV row has its time in this column, counted from 0."""

    column: int


@dataclass(frozen=True, slots=True)
class FromField:
    """A binary record has its time at this byte offset, as a signed integer of `size` bytes."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class FromNamedColumn:
    """A row of a table has its time in the column of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class FromNamedField:
    """A JSON object has its time at this path of names."""

    path: tuple[str, ...]


TimestampSource = FromModificationTime | FromName | FromColumn | FromField | FromNamedColumn | FromNamedField

_SOURCES = (
    "allowed are '' (modification time), 'name:REGEX', 'column:N', 'column:NAME', 'field:OFFSET[:SIZE]' and 'field:NAME[.INNER]'"
)


def parse_timestamp_source(text: str) -> TimestampSource:
    """Parse a `timestamp_source`. Raises: ConfigError."""
    kind, _, rest = text.partition(":")
    if not text:
        return FromModificationTime()
    if kind == "name" and rest:
        return FromName(_pattern(text, rest))
    if kind == "column" and rest.isdecimal():
        return FromColumn(int(rest))
    if kind == "field" and (match := re.fullmatch(r"(\d+)(?::([1-8]))?", rest)):
        return FromField(int(match[1]), int(match[2] or 8))
    if kind == "column" and rest:
        return FromNamedColumn(rest)
    if kind == "field" and rest and ":" not in rest and all(rest.split(".")):
        return FromNamedField(tuple(rest.split(".")))
    raise ConfigError(f"timestamp_source '{text}' is not known; {_SOURCES}")


def _pattern(text: str, regex: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise ConfigError(f"timestamp_source '{text}' is not a regular expression: {error}") from error
    if pattern.groups < 1:
        raise ConfigError(
            f"timestamp_source '{text}' has no group; put the part of the file's name that is the time in parentheses"
        )
    return pattern


def timestamp_of_file(path: str, mtime_ns: int, source: TimestampSource) -> int | None:
    """The time that all samples of a file share, in seconds since 1970; None if each sample has its own. Raises: DataError."""
    if isinstance(source, FromModificationTime):
        return mtime_ns // 1_000_000_000
    if not isinstance(source, FromName):
        return None
    name = os.path.basename(path)
    match = source.pattern.search(name)
    if match is None:
        raise DataError(
            f"the name of {path} holds no time: '{source.pattern.pattern}' does not match '{name}'; rename it or change timestamp_source"
        )
    date = match.groupdict().get("date")
    text = (match[1] or "") if date is None else date
    try:
        seconds = int(text) if date is None and re.fullmatch(r"-?\d+", text) else iso_seconds(text)
    except ValueError as error:
        raise DataError(
            f"the name of {path} holds no time: '{text}' is neither whole seconds nor ISO 8601; rename the file"
        ) from error
    if not MIN_TIMESTAMP <= seconds <= MAX_TIMESTAMP:
        raise DataError(f"the time in the name of {path} is not within int64 seconds: {seconds}; rename the file")
    return seconds


def iso_seconds(text: str) -> int:
    """Whole seconds since 1970 of an ISO 8601 time, rounded down; without a zone it is UTC. Raises ValueError.

    >>> iso_seconds("1970-01-02"), iso_seconds("1970-01-01T01:00:00.5+01:00"), iso_seconds("1969-12-31T23:59:59.5")
    (86400, 0, -1)
    """
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() // 1)
