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
from datetime import UTC, datetime

from modyn.errors import ConfigError, DataError
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP

_KNOWN = re.compile(r"|name:.+|column:.+|field:[0-9]+:[1-8]|field:[^:.]+(\.[^:.]+)*", re.DOTALL)
_SOURCES = (
    "allowed are '' (modification time), 'name:REGEX', 'column:N', 'column:NAME', 'field:OFFSET[:SIZE]' and 'field:NAME[.INNER]'"
)


def name_pattern(source: str) -> re.Pattern[str] | None:
    """The REGEX of a `timestamp_source`; None if the time is not in the file's name. Raises: ConfigError: the source is none of the above."""
    if not _KNOWN.fullmatch(source):
        raise ConfigError(f"timestamp_source '{source}' is not known; {_SOURCES}")
    if not source.startswith("name:"):
        return None
    try:
        pattern = re.compile(source.removeprefix("name:"))
    except re.error as error:
        raise ConfigError(f"timestamp_source '{source}' is not a regular expression: {error}") from error
    if pattern.groups < 1:
        raise ConfigError(
            f"timestamp_source '{source}' has no group; put the part of the file's name that is the time in parentheses"
        )
    return pattern


def time_in_name(path: str, pattern: re.Pattern[str]) -> int:
    """The time that `pattern` finds in the name of a file, in seconds since 1970. Raises: DataError: there is none."""
    name = os.path.basename(path)
    match = pattern.search(name)
    if match is None:
        raise DataError(
            f"the name of {path} holds no time: '{pattern.pattern}' does not match '{name}'; rename it or change timestamp_source"
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
