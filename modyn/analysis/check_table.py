"""Table of the checks of a run's trigger policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd

from modyn.analysis.times import with_times
from modyn.supervisor.client import CheckRecord, EvidenceColumn, column_names, columns_of

_COLUMNS: Final = {"position": "int64", "timestamp": "Int64", "fires": "bool", "seconds": "float64", "online": "bool"}
NUM_COLUMNS: Final = len(_COLUMNS)
"""Number of columns of a table of checks before the columns of evidence."""


def evidence_columns(checks: Sequence[CheckRecord]) -> dict[EvidenceColumn, str]:
    """Return the column name in `checks_table` for each number in the evidence of the checks.

    A column has the name of the evidence, or `evidence.NAME` if another column of the table has this name.
    """
    names = column_names(dict.fromkeys(column for check in checks for column in columns_of(check.evidence)))
    return {column: f"evidence.{name}" if name in _COLUMNS else name for column, name in names.items()}


def checks_table(checks: Sequence[CheckRecord]) -> pd.DataFrame:
    """Return one row for each check: position, timestamp (the newest timestamp before the position), fires, seconds, online (whether the check
    belongs to `online.trigger`), and the `evidence_columns`.

    Evidence that a check does not have is missing (NaN, <NA>). Flags are booleans, counts are whole numbers, and all other evidence is floats.
    """
    rows = [[check.position, check.timestamp, check.fires, check.seconds, check.online] for check in checks]
    table = pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)
    numbers = [columns_of(check.evidence) for check in checks]
    evidence = {
        name: _typed(column, [of_check.get(column) for of_check in numbers]) for column, name in evidence_columns(checks).items()
    }
    # All columns are added together, because adding single columns would fragment the table.
    return pd.concat([table, pd.DataFrame(evidence, index=table.index)], axis=1)


def checks_with_times(checks: Sequence[CheckRecord]) -> pd.DataFrame:
    """Return `checks_table` with timestamps as UTC datetimes."""
    return with_times(checks_table(checks))


def _typed(column: EvidenceColumn, values: list[float | None]) -> pd.Series[Any]:
    numbers = pd.Series(values, dtype="float64")
    if column.is_flag and numbers.dropna().isin([0.0, 1.0]).all():
        return numbers.astype("boolean")
    return numbers.astype("Int64") if column.is_count and (numbers.dropna() % 1 == 0).all() else numbers
