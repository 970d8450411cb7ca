"""Times in tables are datetimes, if they are within the range of the calendar."""

from __future__ import annotations

import pandas as pd

from modyn.analysis.times import with_times
from modyn.records import MAX_TIMESTAMP


def test_times_become_datetimes() -> None:
    table = pd.DataFrame({"first_timestamp": [0, 86_400], "created_at": [0.25, None], "num": [1, 2]})
    found = with_times(table)
    assert found["first_timestamp"].tolist() == [pd.Timestamp("1970-01-01", tz="UTC"), pd.Timestamp("1970-01-02", tz="UTC")]
    assert found["created_at"][0] == pd.Timestamp("1970-01-01 00:00:00.250", tz="UTC")
    assert found["created_at"].isna().tolist() == [False, True]
    assert found["num"].tolist() == [1, 2]
    assert table["first_timestamp"].tolist() == [0, 86_400]


def test_times_of_distant_years() -> None:
    table = pd.DataFrame({"start": pd.array([pd.NA, 15_000_000_000], "Int64"), "end": [0, MAX_TIMESTAMP]})
    found = with_times(table)
    assert found["start"][1] == pd.Timestamp("2445-05-01 02:40", tz="UTC")
    assert found["end"].tolist() == [0, MAX_TIMESTAMP], "no calendar has this"
    assert str(found)


def test_an_empty_table_has_times_too() -> None:
    assert str(with_times(pd.DataFrame({"anchor": []}))["anchor"].dtype) == "datetime64[s, UTC]"
