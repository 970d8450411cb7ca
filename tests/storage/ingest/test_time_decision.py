"""Years, months and days in place of seconds are refused, unless the dataset counts seconds from 0."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modyn.config.dataset import DatasetConfig
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.storage.client import NewRecord
from tests.support.running_storage import FileDataset, RunningStorage, files_dataset

YEAR_2013, MONTH_2013_12 = 1356998400, 1385856000


class Dated(FileDataset):
    """A dataset of CSV files whose rows are a label and a time."""

    def times_of(self, **files: list[int]) -> list[int]:
        """Write files in their order, and return the times of all samples."""
        for name, times in files.items():
            (self.folder / f"{name}.csv").write_text("".join(f"1,{time}\n" for time in times))
        return self.indexed()

    def indexed(self) -> list[int]:
        """Ingest, and return the times of all samples."""
        self.ingest()
        return self.times()


def dated(storage: RunningStorage, folder: Path, source: str = "column:1", **options: Any) -> Dated:
    return Dated(storage, files_dataset(folder, {"label_index": 0, **options}, source=source))


class Records:
    """A dataset of records with times."""

    def __init__(self, storage: RunningStorage, name: str) -> None:
        self.storage, self.name, self.sent = storage, name, 0
        storage.client.register_dataset(self.config())

    def config(self, **options: str) -> DatasetConfig:
        fields = {"name": self.name, "base_path": "records://", "file_wrapper_config": options}
        return DatasetConfig.model_validate(fields)

    def append(self, *times: int | None) -> None:
        """Append records with one call."""
        records = [NewRecord(f"{self.sent + i}", b"x", 1, time) for i, time in enumerate(times)]
        self.storage.client.append_records(self.name, records)
        self.sent += len(records)

    def times(self) -> list[int]:
        """Return the times of all samples that were made of the records."""
        for _ in self.storage.store.ingest(self.name):
            pass
        return self.storage.client.samples_by_key(self.name, np.arange(self.sent)).timestamps.tolist() if self.sent else []


CALENDAR = pytest.mark.parametrize(
    ("digits", "what", "spelling", "expected"),
    [
        ([1987, 2013], "1987 to 2013, are most likely years", "%Y", YEAR_2013),
        ([201301, 201312], "most likely months", "%Y%m", MONTH_2013_12),
        ([240229, 131201], "most likely days", "%y%m%d", MONTH_2013_12),
    ],
    ids=["years", "months", "days"],
)


@CALENDAR
def test_digits_of_a_calendar_are_refused_with_the_format_that_reads_them(
    module_storage: RunningStorage, tmp_path: Path, digits: list[int], what: str, spelling: str, expected: int
) -> None:
    rows = dated(module_storage, tmp_path / f"refused-{digits[0]}")
    assert rows.times_of(a=digits, b=digits[:1]) == []
    assert len(reasons := rows.reasons()) == 2
    assert all(re.search(rf"/[ab]\.csv: the times here, ({digits[0]}|{min(digits)} to)", reason) for reason in reasons)
    assert any(what in reason for reason in reasons)
    assert all(f"set the option timestamp_format='{spelling}'" in reason for reason in reasons)
    assert dated(module_storage, tmp_path / f"read-{digits[0]}", timestamp_format=spelling).times_of(a=digits)[1] == expected
    assert dated(module_storage, tmp_path / f"seconds-{digits[0]}", timestamp_format="s").times_of(a=digits) == digits


def test_seconds_that_are_counted_from_0_pass_through_years_and_months(module_storage: RunningStorage, tmp_path: Path) -> None:
    rows = dated(module_storage, tmp_path / "counted")
    files = {f"f{number:02}": list(range(100 * number, 100 * number + 100)) for number in range(23)}
    assert rows.times_of(**files) == list(range(2300))
    assert rows.times_of(later=[201301, 201302], one=[1950], day=[240301]) == [*range(2300), 201301, 201302, 1950, 240301]
    assert rows.reasons() == []


def test_years_among_seconds_of_this_century_are_refused(module_storage: RunningStorage, tmp_path: Path) -> None:
    rows = dated(module_storage, tmp_path / "mixed")
    assert rows.times_of(a=[1700000000], b=[2013, 2014]) == [1700000000]
    assert "2013 to 2014, are most likely years" in rows.reasons()[0]
    # A file that holds other times, too, is none of years.
    assert rows.times_of(c=[2013, 5000]) == [1700000000, 2013, 5000]


def test_a_year_in_a_file_with_times_of_this_century_is_refused(module_storage: RunningStorage, tmp_path: Path) -> None:
    """Catalogues of songs and books have whole dates next to years."""
    rows = dated(module_storage, tmp_path / "precision")
    (rows.folder / "a.csv").write_text("1,2013-05-01\n0,2014\n")
    (rows.folder / "b.csv").write_text("1,2013-05-01\n0,1970-01-01T00:00:01\n")
    assert sorted(rows.indexed()) == [1, 1367366400]
    assert "a.csv: the time 2014, next to times of this century, is most likely a year and not in seconds" in rows.reasons()[0]
    seconds = dated(module_storage, tmp_path / "seconds-precision", timestamp_format="s")
    assert sorted(seconds.times_of(a=[1700000000, 2014])) == [2014, 1700000000]
    records = Records(module_storage, "records-precision")
    with pytest.raises(InvalidArgumentError, match="the time 2014, next to times of this century, is most likely a year"):
        records.append(1_700_000_000, 2014)
    records.append(1_700_000_000)


def test_a_year_in_a_name_does_not_affect_other_files(module_storage: RunningStorage, tmp_path: Path) -> None:
    options = {"file_extension": ".png", "label_file_extension": ".label"}
    files = FileDataset(
        module_storage, files_dataset(tmp_path / "names-precision", options, "SingleSampleFileWrapper", source=r"name:(\d+)")
    )
    for name in ("1700000000", "2014"):
        (files.folder / f"{name}.png").write_bytes(b"x")
        (files.folder / f"{name}.label").write_text("1")
    files.ingest()
    assert 1700000000 in files.times()


def test_a_dataset_with_times_of_this_century_does_not_count_from_0(module_storage: RunningStorage, tmp_path: Path) -> None:
    """The dataset may contain an earlier time, such as 0 for a sample with an unknown time."""
    rows = dated(module_storage, tmp_path / "unknown")
    assert rows.times_of(a=[0, 1700000000], b=[2013], c=[201301]) == [0, 1700000000]
    assert len(rows.reasons()) == 2
    records = Records(module_storage, "records-unknown")
    records.append(0, 1_700_000_000)
    with pytest.raises(InvalidArgumentError, match="the times here, 2013, are most likely years"):
        records.append(2013)


def test_years_in_other_places_are_found_too(module_storage: RunningStorage, tmp_path: Path) -> None:
    named = dated(module_storage, tmp_path / "named", r"name:_(\d+)")
    (named.folder / "report_2013.csv").write_text("1,x\n")
    assert named.indexed() == []
    assert "report_2013.csv: the times here, 2013, are most likely years" in named.reasons()[0]

    endings = {"file_extension": ".png", "label_file_extension": ".label"}
    single = Dated(module_storage, files_dataset(tmp_path / "single", endings, "SingleSampleFileWrapper", r"name:(\d+)_"))
    for name in ("1999_a", "2013_b"):
        (single.folder / f"{name}.png").write_bytes(b"x")
        (single.folder / f"{name}.label").write_text("1")
    assert single.indexed() == []
    assert all("1999 to 2013, are most likely years" in reason for reason in single.reasons())
    assert len(single.reasons()) == 2


@CALENDAR
def test_records_of_one_call_are_judged_as_a_file_is(
    module_storage: RunningStorage, digits: list[int], what: str, spelling: str, expected: int
) -> None:
    """Records count seconds, so no format reads the digits of a calendar; that a dataset counts from 0 is declared as for files."""
    records = Records(module_storage, f"records-{digits[0]}")
    with pytest.raises(InvalidArgumentError, match=f"dataset '{records.name}': the times here, .*{what}") as refused:
        records.append(*digits)
    assert (
        "no seconds since 1970; send seconds since 1970, or none for the time of arrival; where a dataset"
        in refused.value.message
    )
    assert "`modyn data change NAME -o timestamp_format=s` says so" in refused.value.message
    assert refused.value.message.endswith("None of the records of this call was appended")
    with pytest.raises(InvalidArgumentError, match=f"the times here, {digits[0]}, are most likely"):
        records.append(digits[0], None)
    assert records.times() == []
    module_storage.client.change_dataset(records.config(timestamp_format="s"))
    records.append(*digits, 20130131)
    records.append(digits[0])
    assert records.times() == [*digits, 20130131, digits[0]]


def test_records_that_count_from_0_pass_through_years_and_months(module_storage: RunningStorage) -> None:
    """This holds right after records that are not samples yet."""
    records = Records(module_storage, "records-from-0")
    records.append(*range(100))
    for time in (1950, 201301, 240301):
        records.append(time)
    assert records.times() == [*range(100), 1950, 201301, 240301]
    with pytest.raises(
        InvalidArgumentError, match="its time is 20130131; as a date that is 2013-01-31 .* timestamp_format=s` says so"
    ):
        records.append(20130131)


def test_a_year_among_records_of_this_century_is_refused(module_storage: RunningStorage) -> None:
    records = Records(module_storage, "records-mixed")
    records.append(1_700_000_000)
    with pytest.raises(InvalidArgumentError, match="the times here, 2013, are most likely years"):
        records.append(2013)
    records.append(2013, 5000)
    assert records.times() == [1_700_000_000, 2013, 5000], "as a file that holds other times too"
    with pytest.raises(ConfigError, match="timestamp_format: 'ms' is wrong"):
        module_storage.client.change_dataset(records.config(timestamp_format="ms"))


def test_times_that_have_a_type_are_not_digits(module_storage: RunningStorage, tmp_path: Path) -> None:
    """No format would read them otherwise."""
    columns = {"payload_columns": ["x"], "label_column": "y"}
    rows = Dated(module_storage, files_dataset(tmp_path / "typed", columns, "ParquetFileWrapper", "column:t"))
    times = pa.array(np.array([2013, 2014], "datetime64[s]"))
    pq.write_table(pa.table({"x": [1, 2], "y": [0, 1], "t": times}), rows.folder / "a.parquet")
    assert rows.indexed() == [2013, 2014]
