"""Rows of a file that cannot be used: listed all at once, and skipped up to a bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import Field

from modyn.errors import DataError
from modyn.storage.files.file_system import UnusableNowError
from modyn.storage.formats.base import GrowingConfig
from modyn.storage.model.samples import BadRow, IndexedSamples

_NAMED = 20
"""Most bad rows that the reason of a file names; all are counted."""
_SEARCHED = 1000
"""So many more than the bound are looked for before a file is given up."""


class RowsConfig(GrowingConfig):
    """Options of formats of which a bad row can be skipped: it is known where the next one begins."""

    max_bad_rows: int = Field(0, ge=0)
    """Most rows of a file (or of what was appended to it) that are skipped because they cannot be used; `modyn data problems` lists them. A file
    with more is set aside."""


class BadRows:
    """The bad rows of one file, in the order in which they are found.

    Args: path: of the file, for messages. most: so many rows are skipped; one more is an error of the file. None: the format skips none.
    """

    def __init__(self, path: str, most: int | None) -> None:
        self._path, self._most = path, most
        self._found: list[BadRow] = []
        self._num_taken = 0

    def add(self, row: BadRow) -> None:
        """Note a bad row. Raises: as `check`: there are very many."""
        self._found.append(row)
        if len(self._found) >= (self._most or 0) + _SEARCHED:
            self.check("at least ")

    def take(self) -> Sequence[BadRow]:
        """The rows that were found since the last call."""
        first, self._num_taken = self._num_taken, len(self._found)
        return self._found[first:]

    def check(self, least: str = "") -> None:
        """Raise DataError if there are more than may be skipped; UnusableNowError if time alone would mend the file.

        Args: least: stands before the number of rows in the message: "at least ", where the file was not read to its end.
        """
        if len(self._found) > (self._most or 0):
            raise too_many(self._path, self._found, self._most, least)


def too_many(path: str, rows: Sequence[BadRow], most: int | None, least: str = "") -> DataError:
    """The error of a file with more bad rows than may be skipped: UnusableNowError if those would be fewer once the time of all has come.

    Args: rows: one or more; with a single one, its reason is the error's. most, least: as for `BadRows`.
    """
    num_early = sum(row.is_early for row in rows)
    kind = UnusableNowError if num_early and len(rows) - num_early <= (most or 0) else DataError
    first, *others = rows
    if not others:
        return kind(first.reason)
    named = "; ".join(row.reason.removeprefix(f"{path}, ") for row in rows[:_NAMED])
    more = f"; and {least}{len(rows) - _NAMED:,} more" if len(rows) > _NAMED else ""
    bound, advice = ("", "") if most is None else (f", max_bad_rows is {most:,}", ", or raise the bound to skip them")
    return kind(f"{path}: {least}{len(rows):,} rows cannot be used{bound}; correct them{advice}: {named}{more}")


def with_path(found: Iterator[IndexedSamples], place: str, path: str) -> Iterator[IndexedSamples]:
    """What was found in a copy at `place`, with the path of the file that it is of in reasons and errors."""
    try:
        for chunk in found:
            rows = [row._replace(reason=row.reason.replace(place, path)) for row in chunk.skipped]
            yield replace(chunk, skipped=rows) if rows else chunk
    except DataError as error:
        kind = type(error) if isinstance(error, UnusableNowError) else DataError
        raise kind(error.message.replace(place, path)) from error
