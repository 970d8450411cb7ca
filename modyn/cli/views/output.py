"""Output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


def print_json(value: object, indent: int | None = 2) -> None:
    """Print `value` as JSON. The value may contain records, tables and paths. NaN and infinity become null."""
    json.dump(_plain(value), sys.stdout, indent=indent, ensure_ascii=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def printable(text: str) -> str:
    """Return `text` with control characters as escapes, so that a name cannot move the cursor or colour the following text.

    >>> printable("a\\x1b[31mb\\tc")
    'a\\\\x1b[31mb\\tc'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, what: str) -> str:
    """Format a number of things. Args: what: noun in the singular; the plural is formed with s.

    >>> counted(1, "file"), counted(2_000, "file")
    ('1 file', '2,000 files')
    """
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None, empty: str = "nothing there"
) -> None:
    """Print a table on a terminal, and tab-separated lines elsewhere.

    Args: rows: cells; numbers are formatted, and a missing value becomes a dash. title: printed above the table. empty: text that a terminal shows
    if there are no rows. Other outputs omit a table that has a title but no rows.
    """
    cells = [[printable(cell) if isinstance(cell, str) else _cell(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        # If a command prints several tables, they have titles. A single table starts with its columns.
        if title and not cells:
            return
        sys.stdout.write(f"\n# {title}\n" if title else "")
        for line in [list(columns), *cells]:
            sys.stdout.write("\t".join(" ".join(cell.split()) for cell in line) + "\n")
        return
    from rich.console import Console

    if not cells:
        sys.stdout.write(f"{empty}\n")
        return
    Console().print(drawn_table(columns, cells, title))


def drawn_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None) -> RenderableType:
    """Return a table as a terminal shows it. Args: see `print_table`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(Text(printable(cell) if isinstance(cell, str) else _cell(cell)) for cell in row))
    return table


def print_fields(fields: Mapping[str, object]) -> None:
    """Print names and values, one pair on each line."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        sys.stdout.write(f"{name:<{width}}  {printable(value) if isinstance(value, str) else _cell(value)}\n")


def date(timestamp: int | None) -> str:
    """Format a stream time (seconds since 1970) as UTC, or as a number if the time is outside of the calendar."""
    from modyn.config.durations import format_timestamp

    return "–" if timestamp is None else format_timestamp(timestamp)


def number(value: object) -> str:
    """Format the number of a trigger or model without thousands separators, because the number is a name."""
    return "–" if value is None or str(value) in ("<NA>", "nan") else str(value)


def day(timestamp: int) -> str:
    """Format the date of a stream time, UTC."""
    return date(timestamp).partition(" ")[0]


def clock(seconds: float | None) -> str:
    """Format wall-clock seconds as local time."""
    return "–" if not seconds else dt.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def size(num_bytes: float) -> str:
    """Format a number of bytes, e.g. `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)) or str(value) == "<NA>":
        return "–"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))


def _plain(value: object) -> Any:
    """Convert records, tables, arrays and missing values to JSON types, and other values to text."""
    match value:
        case enum.Enum():
            return value.value
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(mode="json"))
    if hasattr(value, "to_dict"):  # A table.
        return _plain(value.astype(object).where(value.notna(), None).to_dict("records"))  # type: ignore[attr-defined]
    if hasattr(value, "tolist"):  # An array, or a number of NumPy.
        return _plain(value.tolist())
    return None if str(value) in ("<NA>", "NaT") else str(value)
