"""Unusable rows of a file. Up to a bound, unusable rows are skipped. Beyond the bound, one error lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

from pydantic import Field

from modyn.errors import DataError
from modyn.storage.files.file_system import UnusableNowError
from modyn.storage.formats.base import GrowingConfig
from modyn.storage.model.samples import BadRow, IndexedSamples

_NAMED = 20
"""Largest number of bad rows that the message about a file describes. The message contains the number of all bad rows."""
_SEARCHED = 1000
"""If the number of bad rows exceeds the bound by this number, the search for bad rows ends."""

_READ_BYTES = 1 << 20
"""Number of bytes that are read at once to count lines."""


class RowsConfig(GrowingConfig):
    """Options of formats that can skip a bad row, because they know where the next row begins."""

    max_bad_rows: int = Field(0, ge=0)
    """Largest number of unusable rows that are skipped in a file (or in the rows appended to it); `modyn data problems` lists them. A file with more
    is set aside.
    """


class BadRows:
    """The bad rows of one file, in the order in which they are found.

    Args: path: path of the file, for messages. most: largest number of rows that may be skipped; a file with more bad rows is an error. None: the
    format skips no rows.
    """

    def __init__(self, path: str, most: int | None) -> None:
        self.lines = LineCounter()
        self._path, self._most = path, most
        self._found: list[BadRow] = []
        self._num_taken = 0

    def add(self, row: BadRow) -> None:
        """Add a bad row. Raises the error of `check` if there are enough bad rows to end the search."""
        self._found.append(row)
        # A file of another format may have millions of bad rows. The first bad rows are enough for the message.
        if len(self._found) >= (self._most or 0) + _SEARCHED:
            self.check("at least ")

    def take(self) -> Sequence[BadRow]:
        """Return the rows that were found since the last call."""
        first, self._num_taken = self._num_taken, len(self._found)
        return self._found[first:]

    def check(self, least: str = "") -> None:
        """Raise an error if there are more bad rows than may be skipped: UnusableNowError if the file will be usable later, else DataError.

        Args: least: text before the number of rows in the message: "at least " if the file was not read to its end.
        """
        if len(self._found) > (self._most or 0):
            raise too_many(self._path, self._found, self._most, least)


def too_many(path: str, rows: Sequence[BadRow], most: int | None, least: str = "") -> DataError:
    """Return the error for a file with more bad rows than may be skipped. If the file could be used without the rows whose times are in the future,
    the error is an UnusableNowError.

    Args: rows: at least one. The reason of a single row becomes the message. most: see `BadRows`. least: see `BadRows.check`.
    """
    num_early = sum(row.is_early for row in rows)
    # Rows with future times become usable later, so the file is tried again if the number of other bad rows is within the bound.
    kind = UnusableNowError if num_early and len(rows) - num_early <= (most or 0) else DataError
    first, *others = rows
    if not others:
        return kind(first.reason)
    named = "; ".join(row.reason.removeprefix(f"{path}, ") for row in rows[:_NAMED])
    more = f"; and {least}{len(rows) - _NAMED:,} more" if len(rows) > _NAMED else ""
    bound, advice = ("", "") if most is None else (f", max_bad_rows is {most:,}", ", or raise the bound to skip them")
    return kind(f"{path}: {least}{len(rows):,} rows cannot be used{bound}; correct them{advice}: {named}{more}")


class LineCounter:
    """Counts the lines of a text file, which end with \\n, \\r\\n or \\r. The file is read once, up to the last requested line. The position of the
    file does not change.

    >>> import io
    >>> counter, file = LineCounter(), io.BytesIO(b"a\\nb\\r\\nc\\rd")
    >>> [counter.number(file, offset) for offset in (0, 2, 5, 7)]
    [1, 2, 3, 4]
    """

    def __init__(self) -> None:
        self._number, self._end, self._ends_with_cr = 1, 0, False

    def number(self, file: BinaryIO, offset: int) -> int:
        """Return the number, from 1, of the line that begins at byte `offset`. Offsets must not decrease from call to call. Raises: OSError."""
        before = file.tell()
        file.seek(self._end)
        while self._end < offset and (part := file.read(min(offset - self._end, _READ_BYTES))):
            self._number += part.count(b"\n") + part.count(b"\r") - part.count(b"\r\n")
            self._number -= self._ends_with_cr and part.startswith(b"\n")
            self._end, self._ends_with_cr = self._end + len(part), part.endswith(b"\r")
        file.seek(before)
        return self._number


def with_path(found: Iterator[IndexedSamples], place: str, path: str) -> Iterator[IndexedSamples]:
    """Yield the chunks `found` in the copy at `place`. In reasons and errors, `place` is replaced by `path`, the original file."""
    try:
        for chunk in found:
            rows = [row._replace(reason=row.reason.replace(place, path)) for row in chunk.skipped]
            yield replace(chunk, skipped=rows) if rows else chunk
    except DataError as error:
        kind = type(error) if isinstance(error, UnusableNowError) else DataError
        raise kind(error.message.replace(place, path)) from error
