"""Where the time of a sample is: the `timestamp_source` of a dataset.

| source | meaning |
|---|---|
| `` | modification time of the file, whole seconds |
| `name:REGEX` | group 1 of REGEX, found (RE2) in the file's name, or the group `(?P<date>...)`; of an image_folder, in the path below the class |
| `column:N`, `column:NAME` | column N (from 0) of a CSV row, or the column with this name in the first line |
| `column:NAME` | column NAME of a Parquet row: number, text, date or timestamp |
| `field:OFFSET` or `field:OFFSET:SIZE` | signed integer of SIZE (default 8) bytes at byte OFFSET of a binary record |
| `field:NAME` or `field:OUTER.INNER` | field of a JSON object: number or text |

`timestamp_format` says how times are written. `_core.TimeFormat` reads times for all formats. Only this class defines spellings, units, bounds and
advice. All times are seconds since 1970, of the years 1 to 9999. A time without a zone is UTC.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from modyn._core import TimeFormat
from modyn.errors import ConfigError, DataError, InvalidArgumentError
from modyn.records import Int64Array

_YEARS = 1900, 2100
_MONTHS = 1900_01, 2100_12
_DAYS = 10_01_01, 99_12_31
"""Numbers YYMMDD with YY from 10 to 99. With a smaller YY, the number has fewer than six digits."""
_NOT_FROM_0 = 10**9
"""A second of the year 2001. In a dataset that counts seconds from 0, all times are below this number."""
_SET_FORMAT = "set the option timestamp_format='{spelling}', or timestamp_format='s' if they are seconds of January 1970"
_MAX_REGEX = 1000
"""Largest number of characters of a regular expression."""
_KNOWN = re.compile(r"|name:.+|column:.+|field:[0-9]+:[1-8]|field:[^:.]+(\.[^:.]+)*", re.DOTALL)
_SOURCES = (
    "allowed are '' (modification time), 'name:REGEX', 'column:N', 'column:NAME', 'field:OFFSET[:SIZE]' and 'field:NAME[.INNER]'"
)


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A regular expression that finds the time in names of files. RE2 takes time linear in the name's length and does not block other threads.

    time_group: number of the group with the time. date_group: number of the group with a date of eight digits; 0: there is no such group.
    time_format: `timestamp_format`.
    """

    regex: str
    time_group: int = 1
    date_group: int = 0
    time_format: str = ""

    def times(self, paths: Sequence[str], names: Sequence[str] | None = None) -> list[int | DataError]:
        """Return the time in the name of each of `paths`, in seconds since 1970, or the reason why the name has no time.

        Args: paths: full paths, for messages. names: the texts that are searched; None: the names of the files.
        """
        import pyarrow as pa  # Loads slowly, and is not needed without a pattern.
        import pyarrow.compute as pc

        # A name that is not valid text is matched by its printable form.
        shown = list(map(os.path.basename, paths)) if names is None else names
        searched = pa.array([os.fsencode(name).decode("utf-8", "replace") for name in shown], pa.string())
        found = pc.match_substring_regex(searched, pattern=self.regex).to_pylist()
        whole = rf"(?s:\A.*?)(?:{self.regex})(?s:.*)\z"
        groups = [self.time_group, *([self.date_group] if self.date_group else [])]
        texts, *dates = (
            pc.replace_substring_regex(searched, pattern=whole, replacement=rf"\{group}").to_pylist() for group in groups
        )
        of_dates = dates[0] if dates else [""] * len(texts)
        times = time_format(self.time_format)
        return [self._time(times, *name) for name in zip(paths, shown, found, texts, of_dates, strict=True)]

    def _time(self, times: TimeFormat, path: str, name: str, found: bool, text: str, date: str) -> int | DataError:
        if not found:
            return DataError(
                f"the name of {path} holds no time: '{self.regex}' does not match '{name}'; rename it or change timestamp_source"
            )
        try:
            return times.of_text(date or text, typed=bool(date))
        except ValueError as error:
            return DataError(f"the name of {path} holds no time: {error}; or rename the file")


def name_pattern(source: str, spelling: str = "") -> NamePattern | None:
    """Return the pattern in a `timestamp_source`; None if the time is not in the file's name.

    Args: spelling: `timestamp_format`.
    Raises: ConfigError: the source is not known, or its regular expression cannot be used.
    """
    if not _KNOWN.fullmatch(source):
        raise ConfigError(f"timestamp_source '{source}' is not known; {_SOURCES}")
    if not source.startswith("name:"):
        return None
    regex = source.removeprefix("name:")
    import pyarrow as pa  # As in `NamePattern.times`.
    import pyarrow.compute as pc

    if len(regex) > _MAX_REGEX:
        raise ConfigError(
            f"the regular expression of a timestamp_source has {len(regex)} characters; at most {_MAX_REGEX} are allowed"
        )
    try:
        pc.match_substring_regex(pa.array([""]), pattern=regex)
        pattern = re.compile(regex)
    except (pa.ArrowInvalid, re.error) as error:
        raise ConfigError(
            f"timestamp_source '{source}' is not a regular expression that RE2 knows, which has no look-ahead and no references back: {error}"
        ) from error
    if pattern.groups < 1:
        raise ConfigError(
            f"timestamp_source '{source}' has no group; put the part of the file's name that is the time in parentheses"
        )
    if max(pattern.groupindex.get("date", 0), 1) > 9:
        raise ConfigError(f"timestamp_source '{source}': the group (?P<date>...) is not one of the first nine")
    return NamePattern(regex, 1, pattern.groupindex.get("date", 0), spelling)


def time_format(text: str) -> TimeFormat:
    """Build the reader of times for a `timestamp_format`. Raises: ConfigError: the text is not a `timestamp_format`."""
    try:
        return TimeFormat(text)
    except InvalidArgumentError as error:
        raise ConfigError(error.message) from error


def out_of_range(path: str) -> DataError:
    """Return the error for a file with a modification time out of range. Listings change such a time to the nearest valid time."""
    return DataError(
        f"the modification time of {path} is beyond the years 1677 to 2262; correct it with `touch`, or take the time from another "
        "place with timestamp_source"
    )


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The earliest and latest time of a set, in seconds since 1970, and whether all times look like months (YYYYMM, 1900 to 2100) or days (YYMMDD).
    are_digits: whether the numbers may have another meaning than seconds; false if their type defines the unit. a_year: one of the times that look
    like years; 0: there is none."""

    earliest: int
    latest: int
    are_months: bool
    are_days: bool
    are_digits: bool = True
    a_year: int = 0

    @classmethod
    def of(cls, timestamps: Int64Array | int, *, are_digits: bool = True) -> TimeRange:
        """Return the range of at least one time.

        >>> TimeRange.of(np.array([201301, 201313])).are_months, TimeRange.of(201301).are_months
        (False, True)
        >>> TimeRange.of(np.array([240301, 240229])).are_days, TimeRange.of(241301).are_days
        (True, False)
        """
        times = np.asarray(timestamps)
        earliest, latest = int(times.min()), int(times.max())

        def have_digits(bounds: tuple[int, int], **parts: tuple[int, int]) -> bool:
            """Whether all times are numbers within `bounds` with valid digits. Args: parts: factor of the two digits of a part, and largest value."""
            if earliest < bounds[0] or latest > bounds[1]:
                return False
            digits = ((times // factor % 100, most) for factor, most in parts.values())
            return all(bool(((part >= 1) & (part <= most)).all()) for part, most in digits)

        are_months, are_days = have_digits(_MONTHS, month=(1, 12)), have_digits(_DAYS, month=(100, 12), day=(1, 31))
        years = times[(times >= _YEARS[0]) & (times <= _YEARS[1])]
        return cls(earliest, latest, are_months, are_days, are_digits, int(years.flat[0]) if years.size else 0)

    def joined(self, other: TimeRange | None) -> TimeRange:
        """Return the range of both sets of times. Args: other: None: the second set is empty."""
        if other is None:
            return self
        return TimeRange(
            min(self.earliest, other.earliest),
            max(self.latest, other.latest),
            self.are_months and other.are_months,
            self.are_days and other.are_days,
            self.are_digits and other.are_digits,
            other.a_year or self.a_year,
        )

    def why_no_seconds(self, others: tuple[int, int] | None, advice: str = _SET_FORMAT) -> str:
        """Return what the times most likely mean instead of seconds, and what to do; empty: the times are plausible seconds.

        Args: others: earliest and latest of the dataset's other times; None: there are no other times. If the earliest is at least 0 and below all
        numbers that look like years (or months, or days), and the latest is below 10^9 (a second of 2001), the dataset counts seconds from 0, and all
        times are plausible. advice: what to do; `{spelling}` is replaced by the `timestamp_format` that would read the digits.
        """
        if not self.are_digits:
            return ""
        if self.earliest >= _YEARS[0] and self.latest <= _YEARS[1]:
            what, spelling, first = "years", "%Y", _YEARS[0]
        elif self.are_months:
            what, spelling, first = "months", "%Y%m", _MONTHS[0]
        elif self.are_days:
            what, spelling, first = "days", "%y%m%d", _DAYS[0]
        elif self.a_year and self.latest >= _NOT_FROM_0:  # A set that counts seconds from 0 has no time of this century.
            return (
                f"the time {self.a_year}, next to times of this century, is most likely a year and not in seconds since 1970; write all times in "
                "one format, or mark times in seconds by timestamp_format='s'"
            )
        else:
            return ""
        if others is not None and 0 <= others[0] < first and others[1] < _NOT_FROM_0:
            return ""
        shown = str(self.earliest) if self.earliest == self.latest else f"{self.earliest} to {self.latest}"
        return f"the times here, {shown}, are most likely {what} and no seconds since 1970; {advice.format(spelling=spelling)}"
