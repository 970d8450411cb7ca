"""The checks of a run's trigger policy as a table, and thinned for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd

from modyn.analysis.times import with_times
from modyn.supervisor.client import CheckRecord, is_count, is_flag

_COLUMNS: Final = {"position": "int64", "timestamp": "Int64", "fires": "bool", "seconds": "float64", "online": "bool"}
NUM_COLUMNS: Final = len(_COLUMNS)
"""Of a table of checks before those of evidence."""


def checks_table(checks: Sequence[CheckRecord]) -> pd.DataFrame:
    """Return checks as a table, one row each: position, timestamp (the newest one before it), fires, seconds, online (of
    `online.trigger`), and a column for each name of evidence.

    Evidence is missing (NaN, <NA>) where a check has none of its name. Flags are booleans, counts whole numbers, all else floats. A name
    that is one of the first five columns is `evidence.NAME`.
    """
    rows = [[check.position, check.timestamp, check.fires, check.seconds, check.online] for check in checks]
    table = pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)
    names = dict.fromkeys(name for check in checks for name in check.evidence)
    evidence = {
        f"evidence.{name}" if name in _COLUMNS else name: _column(name, [check.evidence.get(name) for check in checks])
        for name in names
    }
    # At once: one column after the other makes a table of many fragments.
    return pd.concat([table, pd.DataFrame(evidence, index=table.index)], axis=1)


def checks_with_times(checks: Sequence[CheckRecord]) -> pd.DataFrame:
    """Return `checks_table` with timestamps as datetimes of UTC."""
    return with_times(checks_table(checks))


def _column(name: str, values: list[float | None]) -> pd.Series[Any]:
    column = pd.Series(values, dtype="float64")
    if is_flag(name) and column.dropna().isin([0.0, 1.0]).all():
        return column.astype("boolean")
    if is_count(name) and (column.dropna() % 1 == 0).all():
        return column.astype("Int64")
    return column
