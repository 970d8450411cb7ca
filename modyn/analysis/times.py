"""Convert times in tables to datetimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np
import pandas as pd

_TIMES: Final = (
    *(
        "first_timestamp",
        "last_timestamp",
        "min_timestamp",
        "max_timestamp",
        "from_timestamp",
        "to_timestamp",
        "timestamp",
        "fired_at",
    ),
    *("submitted_at", "created_at", "started_at", "finished_at", "found_at", "first_at", "last_at", "start", "end", "anchor"),
)
"""Columns that are seconds since 1970."""
_CALENDAR: Final = (-62_135_596_800, 253_402_300_799)
"""Years 1 to 9999, the range of Python datetimes."""


def with_times(table: pd.DataFrame) -> pd.DataFrame:
    """Return `table` with its times as UTC datetimes; missing times become NaT.

    The resolution is seconds, or milliseconds if there are fractions. A column with a time outside of the years 1 to 9999 stays in seconds since
    1970.
    """
    found = {name: _datetimes(table[name]) for name in _TIMES if name in table}
    return table.assign(**{name: column for name, column in found.items() if column is not None})


def _datetimes(column: pd.Series[float]) -> pd.Series[pd.Timestamp] | None:
    known = column.notna().to_numpy()
    seconds = column[known]
    if len(seconds) and not _CALENDAR[0] <= min(seconds) <= max(seconds) <= _CALENDAR[1]:
        return None
    whole = all(float(value).is_integer() for value in seconds)
    unit, factor = ("s", 1) if whole else ("ms", 1000)
    values = np.full(len(column), np.iinfo(np.int64).min)  # NaT
    values[known] = [round(value * factor) for value in seconds]
    return pd.Series(values.view(f"datetime64[{unit}]"), index=column.index).dt.tz_localize("UTC")


def records_table(kind: type[Any], records: Sequence[Any], without: Sequence[str] = ()) -> pd.DataFrame:
    """Return records as a table with the fields of `kind` as columns. A table without rows also has these columns. Args: without: names of fields
    without a column.
    """
    shown = [field for field in fields(kind) if field.name not in without]
    rows = [[getattr(record, field.name) for field in shown] for record in records]
    # With nullable integer types, a column with missing values keeps its whole numbers.
    whole = {field.name: "Int64" for field in shown if field.type == "int | None"}
    return with_times(pd.DataFrame(rows, columns=[field.name for field in shown]).astype(whole))
