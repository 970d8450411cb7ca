"""The place of a sample's time: `timestamp_source` of a dataset.

| source | meaning |
|---|---|
| `` | modification time of the file, whole seconds |
| `name:REGEX` | group 1 of REGEX, found (RE2) in the file's name: ISO 8601, or whole seconds if all digits; `(?P<date>...)` is always ISO 8601 |
| `column:N`, `column:NAME` | column N (from 0) of a CSV row, or the one that the first line names so: whole seconds or ISO 8601 |
| `column:NAME` | column NAME of a Parquet row: whole seconds, ISO 8601, a date or a timestamp |
| `field:OFFSET` or `field:OFFSET:SIZE` | signed integer of SIZE (default 8) bytes at byte OFFSET of a binary record: seconds |
| `field:NAME` or `field:OUTER.INNER` | field of a JSON object: whole seconds or ISO 8601 |

All times are seconds since 1970; a time without a zone is UTC.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from modyn.errors import ConfigError, DataError
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP

_MAX_REGEX = 1000
"""Characters."""
_KNOWN = re.compile(r"|name:.+|column:.+|field:[0-9]+:[1-8]|field:[^:.]+(\.[^:.]+)*", re.DOTALL)
_SOURCES = (
    "allowed are '' (modification time), 'name:REGEX', 'column:N', 'column:NAME', 'field:OFFSET[:SIZE]' and 'field:NAME[.INNER]'"
)


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A regular expression that finds the time in names of files, with RE2: in time linear in the name, and without holding up other threads.

    time_group: number of the group that is whole seconds or ISO 8601. date_group: of one that is always ISO 8601; 0: there is none.
    """

    regex: str
    time_group: int = 1
    date_group: int = 0
    time_format: str = ""
    """For `strptime`; empty: whole seconds or ISO 8601."""

    def times(self, paths: Sequence[str]) -> list[int | DataError]:
        """Return the time in the name of each of `paths`, in seconds since 1970, or why there is none."""
        import pyarrow as pa  # Loads slowly, and is not needed without a pattern.
        import pyarrow.compute as pc

        # A name that is no text matches with what can be shown of it.
        names = pa.array([os.fsencode(os.path.basename(path)).decode("utf-8", "replace") for path in paths], pa.string())
        found = pc.match_substring_regex(names, pattern=self.regex).to_pylist()
        whole = rf"(?s:\A.*?)(?:{self.regex})(?s:.*)\z"
        groups = [self.time_group, *([self.date_group] if self.date_group else [])]
        texts, *dates = (
            pc.replace_substring_regex(names, pattern=whole, replacement=rf"\{group}").to_pylist() for group in groups
        )
        of_dates = dates[0] if dates else [""] * len(texts)
        return list(map(self._time, paths, found, texts, of_dates))

    def _time(self, path: str, found: bool, text: str, date: str) -> int | DataError:
        if not found:
            name = os.path.basename(path)
            return DataError(
                f"the name of {path} holds no time: '{self.regex}' does not match '{name}'; rename it or change timestamp_source"
            )
        if self.time_format:
            return self._formatted(path, date or text)
        try:
            seconds = int(text) if not date and re.fullmatch(r"-?[0-9]{1,30}", text) else iso_seconds(date or text)
        except ValueError:
            return DataError(
                f"the name of {path} holds no time: '{date or text}' is neither whole seconds nor ISO 8601; rename the file"
            )
        if not MIN_TIMESTAMP <= seconds <= MAX_TIMESTAMP:
            return DataError(f"the time in the name of {path} is not within int64 seconds: {seconds}; rename the file")
        return seconds

    def _formatted(self, path: str, text: str) -> int | DataError:
        try:
            return _seconds(datetime.strptime(text, self.time_format))
        except ValueError:
            return DataError(
                f"the name of {path} holds no time: '{text}' is not written as timestamp_format '{self.time_format}'; rename the file, or "
                "correct timestamp_format"
            )


def name_pattern(source: str, time_format: str = "") -> NamePattern | None:
    """The REGEX of a `timestamp_source`; None if the time is not in the file's name.

    Args: time_format: how the time in the name is written, for `strptime`; empty: whole seconds or ISO 8601.
    Raises: ConfigError: the source is none of the above, or the format is not one.
    """
    if time_format and not source.startswith("name:"):
        raise ConfigError(f"timestamp_format is for times in names of files; timestamp_source is '{source}', not 'name:REGEX'")
    if time_format:
        _check_format(time_format)
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
    return NamePattern(regex, 1, pattern.groupindex.get("date", 0), time_format)


def _check_format(time_format: str) -> None:
    example = datetime(2001, 2, 3, tzinfo=UTC)
    try:
        found = _seconds(datetime.strptime(example.strftime(time_format), time_format))
    except ValueError as error:
        raise ConfigError(
            f"timestamp_format '{time_format}' is not one that strptime knows: {error}; write for example %Y%m%d_%H%M%S"
        ) from error
    if found != _seconds(example):
        raise ConfigError(f"timestamp_format '{time_format}' leaves out year, month or day; write for example %Y%m%d_%H%M%S")


def out_of_range(path: str) -> DataError:
    """The error of a file whose modification time cannot be kept: it would be cut to the nearest that can."""
    return DataError(
        f"the modification time of {path} lies beyond the years 1677 to 2262; correct it with `touch`, or take the time from another "
        "place with timestamp_source"
    )


def iso_seconds(text: str) -> int:
    """Whole seconds since 1970 of an ISO 8601 time, rounded down; without a zone it is UTC. Raises ValueError.

    >>> iso_seconds("1970-01-02"), iso_seconds("1970-01-01T01:00:00.5+01:00"), iso_seconds("1969-12-31T23:59:59.5")
    (86400, 0, -1)
    """
    return _seconds(datetime.fromisoformat(text))


def _seconds(moment: datetime) -> int:
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() // 1)
