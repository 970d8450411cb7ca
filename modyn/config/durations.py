"""Times as users write them: `3d`, `1y`, `2014-01-31`. Everything inside counts int64 seconds since 1970."""

from __future__ import annotations

import datetime as dt
import re
from contextlib import suppress
from typing import Annotated

from pydantic import BeforeValidator, Field

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
DURATION_PATTERN = r"^\s*\d+\s*[smhdwy]\s*$"
TIMESTAMP_PATTERN = r"^\s*([+-]?\d+|\d{4}-?\d{2}-?\d{2}([T ].+)?)\s*$"
"""What editors accept as text; parse_duration and parse_timestamp decide."""
_DURATION = re.compile(r"\s*(\d+)\s*([smhdwy])\s*")
_INT64 = range(-(2**63), 2**63)
_MOST_SECONDS = 10**11
"""More are of the year 5138 and later, and of milliseconds of 1973 and later."""
_1971, _2101 = 31_536_000, 4_133_980_800
_YEARS, _DAYS = range(1900, 2101), range(1900_00_00, 2101_00_00)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def parse_duration(value: object) -> int:
    """Return the seconds of `<int><unit>`, unit one of s m h d w y (y = 365 days); an int is taken as seconds.

    Raises: ValueError: other text or another type; pydantic makes a problem of it, with the path of the value.

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
    """Return seconds as users write them, in the largest unit that divides them; the number itself of 0 and less.

    >>> format_duration(172800), format_duration(90), format_duration(0)
    ('2d', '90s', '0')
    """
    if seconds <= 0:
        return str(seconds)
    unit = next(name for name in reversed(SECONDS) if seconds % SECONDS[name] == 0)
    return f"{seconds // SECONDS[unit]}{unit}"


def parse_timestamp(value: object) -> int:
    """Return the seconds since 1970 of an int or an ISO 8601 date (UTC unless it says otherwise); may be negative.

    Raises: ValueError: `value` is neither, or beyond 64 bits.

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
        raise ValueError(f"{value!r} is most likely no number of seconds since 1970; write '{meant}'{seconds_too}")
    if is_number and seconds in _DAYS:
        raise ValueError(f"{value!r} has the digits of a date, and is no day of the calendar; write a date such as 2014-01-31")
    return seconds


def format_timestamp(timestamp: int) -> str:
    """Return seconds since 1970 as text, UTC; the number itself beyond the calendar.

    >>> format_timestamp(86400), format_timestamp(2**60)
    ('1970-01-02 00:00:00', '1152921504606846976')
    """
    try:
        return (_EPOCH + dt.timedelta(seconds=int(timestamp))).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return str(timestamp)


def _meant(number: int) -> str:
    """What a number most likely is if it is no time in seconds, as in data (`timestamp_format`): YYYY, YYYYMMDD or a finer unit, of 1900 to 2100."""
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
"""Seconds; written as `3d`."""

Timestamp = Annotated[
    int, BeforeValidator(parse_timestamp, json_schema_input_type=int | Annotated[str, Field(pattern=TIMESTAMP_PATTERN)])
]
"""Seconds since 1970; written as an int or an ISO 8601 date."""
