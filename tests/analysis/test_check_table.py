"""The table of checks has a column for each name of evidence."""

from __future__ import annotations

import pandas as pd

from modyn.analysis.check_table import checks_table, checks_with_times
from modyn.supervisor.client import CheckRecord, Evidence, EvidenceKind


def measured(mmd: float, num_current: int, *, unusual: bool) -> list[Evidence]:
    return [
        Evidence("mmd", mmd, unusual=unusual),
        Evidence.flag("unusual", is_set=unusual),
        Evidence.count("current_samples", num_current),
    ]


CHECKS = [
    CheckRecord(10, True, [Evidence.flag("first_trigger")], 0.5, timestamp=86_400),
    CheckRecord(
        20,
        False,
        measured(0.25, 10, unusual=False),
        0.25,
        timestamp=172_800,
    ),
    CheckRecord(
        30,
        False,
        [*measured(0.5, 9, unusual=True), Evidence("seconds", 3.0)],
        timestamp=172_800,
    ),
]


def test_one_row_a_check_and_one_column_a_name() -> None:
    table = checks_with_times(CHECKS)
    types = {name: str(dtype) for name, dtype in table.dtypes.items()}
    assert types == {
        "position": "int64",
        "timestamp": "datetime64[s, UTC]",
        "fires": "bool",
        "seconds": "float64",
        "online": "bool",
        "first_trigger": "boolean",
        "mmd": "float64",
        "mmd.unusual": "boolean",
        "unusual": "boolean",
        "current_samples": "Int64",
        "evidence.seconds": "float64",
    }
    assert table["position"].to_list() == [10, 20, 30]
    assert table["timestamp"][1] == pd.Timestamp("1970-01-03", tz="UTC")
    assert table["mmd"].isna().to_list() == [True, False, False]
    assert table["mmd"][1:].to_list() == [0.25, 0.5]
    assert table["unusual"][1:].to_list() == [False, True]
    assert table["current_samples"][1:].to_list() == [10, 9]


def test_flags_and_counts_that_are_none_stay_numbers() -> None:
    table = checks_table([CheckRecord(1, False, [Evidence("a", 0.5, kind=EvidenceKind.VOTE), Evidence.count("b_samples", 1.5)])])
    assert table[["a.vote", "b_samples"]].to_numpy().tolist() == [[0.5, 1.5]]


def test_a_check_without_a_time_and_a_run_without_checks() -> None:
    assert checks_table([CheckRecord(1, False)])["timestamp"].isna().all()
    empty = checks_with_times([])
    assert empty.columns.to_list() == ["position", "timestamp", "fires", "seconds", "online"]
    assert str(empty["fires"].dtype) == "bool"
