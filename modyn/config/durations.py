"""Converters of times that users write, such as `3d`, `1y` and `2014-01-31`, to int64 seconds."""

from __future__ import annotations

import datetime as dt
import re
from contextlib import suppress
from typing import Annotated

from pydantic import BeforeValidator, Field

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
DURATION_PATTERN = r"^\s*\d+\s*[smhdwy]\s*$"
TIMESTAMP_PATTERN = r"^\s*([+-]?\d+|\d{4}-?\d{2}-?\d{2}([T ].+)?)\s*$"
"""Pattern for editors. `parse_timestamp` decides which texts are valid."""
_DURATION = re.compile(r"\s*(\d+)\s*([smhdwy])\s*")
_INT64 = range(-(2**63), 2**63)
_MOST_SECONDS = 10**11
"""Bound of plausible seconds since 1970. A larger number is a time after the year 5138, or a time after 1973 in milliseconds."""
_1971, _2101 = 31_536_000, 4_133_980_800
_YEARS, _DAYS = range(1900, 2101), range(1900_00_00, 2101_00_00)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def parse_duration(value: object) -> int:
    """Convert `<int><unit>`, with a unit of s m h d w y (y = 365 days), to seconds. An int is a number of seconds.

    Raises: ValueError: `value` is another text or type; pydantic converts this error to a problem with the path of the value.

    >>> parse_duration("2d")
    172800
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a duration; write <int> and one of s m h d w y, for example '3d'")
    return int(match[1]) * SECONDS[match[2]]


def format_duration(seconds: int) -> str:
    """Format seconds in the largest unit that divides the number. 0 and negative values are formatted as plain numbers.

    >>> format_duration(172800), format_duration(90), format_duration(0)
    ('2d', '90s', '0')
    """
    if seconds <= 0:
        return str(seconds)
    unit = next(name for name in reversed(SECONDS) if seconds % SECONDS[name] == 0)
    return f"{seconds // SECONDS[unit]}{unit}"


def parse_timestamp(value: object) -> int:
    """Convert an int or an ISO 8601 date, by default in UTC, to seconds since 1970, which may be negative.

    Raises: ValueError: `value` is neither an int nor such a date, exceeds 64 bits, or is a number that is probably not in seconds.

    >>> parse_timestamp("1970-01-02")
    86400
    """
    is_number = (isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value)) or (
        isinstance(value, int) and not isinstance(value, bool)
    )
    try:
        seconds = int(str(value)) if is_number else _seconds(dt.datetime.fromisoformat(str(value).strip()))
    except ValueError:
        raise ValueError(f"{value!r} is not a timestamp; write seconds since 1970 or a date such as 2014-01-31") from None
    if seconds not in _INT64:
        raise ValueError(f"{value!r} does not fit into 64 bits of seconds since 1970")
    if is_number and (meant := _meant(seconds)):
        seconds_too = f", or '{format_timestamp(seconds)}' for the second" if seconds in _YEARS else ""
        raise ValueError(f"{value!r} is probably not in seconds since 1970; write '{meant}'{seconds_too}")
    if is_number and seconds in _DAYS:
        raise ValueError(f"{value!r} has the digits of a date, but is not a day of the calendar; write a date such as 2014-01-31")
    return seconds


def format_timestamp(timestamp: int) -> str:
    """Format seconds since 1970 as a UTC time, or as a number if the time is outside of the calendar.

    >>> format_timestamp(86400), format_timestamp(2**60)
    ('1970-01-02 00:00:00', '1152921504606846976')
    """
    try:
        return (_EPOCH + dt.timedelta(seconds=int(timestamp))).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return str(timestamp)


def _meant(number: int) -> str:
    """Guess a time from 1900 to 2100 for a number that may be YYYY, YYYYMMDD, or in milli-, micro- or nanoseconds. Empty: no time fits."""
    if number in _YEARS:
        return f"{number}-01-01"
    with suppress(ValueError):
        if number in _DAYS:
            return str(dt.datetime.strptime(str(number), "%Y%m%d").date())
    in_units = (number // per_second for per_second in (10**3, 10**6, 10**9)) if number >= _MOST_SECONDS else ()
    return next((format_timestamp(seconds) for seconds in in_units if _1971 <= seconds < _2101), "")


def _seconds(when: dt.datetime) -> int:
    aware = when if when.tzinfo else when.replace(tzinfo=dt.UTC)
    return int((aware - _EPOCH) // dt.timedelta(seconds=1))


Duration = Annotated[
    int, BeforeValidator(parse_duration, json_schema_input_type=int | Annotated[str, Field(pattern=DURATION_PATTERN)])
]
"""Type of a field in seconds, which users write in the form `3d`."""

Timestamp = Annotated[
    int, BeforeValidator(parse_timestamp, json_schema_input_type=int | Annotated[str, Field(pattern=TIMESTAMP_PATTERN)])
]
"""Type of a field in seconds since 1970, which users write as an int or an ISO 8601 date."""
