"""Years, months and days in place of seconds are refused, unless the dataset counts seconds from 0."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modyn.config.dataset import DatasetConfig
from tests.support.running_storage import RunningStorage

YEAR_2013, MONTH_2013_12 = 1356998400, 1385856000


class Dated:
    """A dataset of CSV files whose rows are a label and a time."""

    def __init__(
        self, storage: RunningStorage, folder: Path, source: str = "column:1", wrapper: str = "CsvFileWrapper", **options: Any
    ) -> None:
        self.storage, self.name, self.folder = storage, folder.name, folder
        self.folder.mkdir()
        options = {"label_index": 0, **options} if wrapper == "CsvFileWrapper" else options
        config = {"base_path": folder, "file_wrapper": wrapper, "file_wrapper_config": options, "timestamp_source": source}
        storage.client.register_dataset(DatasetConfig.model_validate({"name": self.name, "watch": False, **config}))

    def times(self, **files: list[int]) -> list[int]:
        """Write files in their order, and return the times of all samples."""
        for name, times in files.items():
            (self.folder / f"{name}.csv").write_text("".join(f"1,{time}\n" for time in times))
        return self.indexed()

    def indexed(self) -> list[int]:
        """Ingest, and return the times of all samples."""
        for _ in self.storage.store.ingest(self.name):
            pass
        next_key = self.storage.client.dataset(self.name).next_key
        return self.storage.client.samples_by_key(self.name, np.arange(next_key)).timestamps.tolist() if next_key else []

    def reasons(self) -> list[str]:
        return [problem.reason for problem in self.storage.client.problems(self.name)]


@pytest.mark.parametrize(
    ("digits", "what", "spelling", "expected"),
    [
        ([1987, 2013], "1987 to 2013, are most likely years", "%Y", YEAR_2013),
        ([201301, 201312], "most likely months", "%Y%m", MONTH_2013_12),
        ([240229, 131201], "most likely days", "%y%m%d", MONTH_2013_12),
    ],
    ids=["years", "months", "days"],
)
def test_digits_of_a_calendar_are_refused_with_the_format_that_reads_them(
    module_storage: RunningStorage, tmp_path: Path, digits: list[int], what: str, spelling: str, expected: int
) -> None:
    dated = Dated(module_storage, tmp_path / f"refused-{digits[0]}")
    assert dated.times(a=digits, b=digits[:1]) == []
    assert len(reasons := dated.reasons()) == 2
    assert all(re.search(rf"/[ab]\.csv: the times here, ({digits[0]}|{min(digits)} to)", reason) for reason in reasons)
    assert any(what in reason for reason in reasons)
    assert all(f"set the option timestamp_format='{spelling}'" in reason for reason in reasons)
    assert Dated(module_storage, tmp_path / f"read-{digits[0]}", timestamp_format=spelling).times(a=digits)[1] == expected
    assert Dated(module_storage, tmp_path / f"seconds-{digits[0]}", timestamp_format="s").times(a=digits) == digits


def test_seconds_that_are_counted_from_0_pass_through_years_and_months(module_storage: RunningStorage, tmp_path: Path) -> None:
    dated = Dated(module_storage, tmp_path / "counted")
    files = {f"f{number:02}": list(range(100 * number, 100 * number + 100)) for number in range(23)}
    assert dated.times(**files) == list(range(2300))
    assert dated.times(later=[201301, 201302], one=[1950], day=[240301]) == [*range(2300), 201301, 201302, 1950, 240301]
    assert dated.reasons() == []


def test_years_among_seconds_of_this_century_are_refused(module_storage: RunningStorage, tmp_path: Path) -> None:
    dated = Dated(module_storage, tmp_path / "mixed")
    assert dated.times(a=[1700000000], b=[2013, 2014]) == [1700000000]
    assert "2013 to 2014, are most likely years" in dated.reasons()[0]
    # A file that holds other times, too, is none of years.
    assert dated.times(c=[2013, 5000]) == [1700000000, 2013, 5000]


def test_years_in_other_places_are_found_too(module_storage: RunningStorage, tmp_path: Path) -> None:
    named = Dated(module_storage, tmp_path / "named", r"name:_(\d+)")
    (named.folder / "report_2013.csv").write_text("1,x\n")
    assert named.indexed() == []
    assert "report_2013.csv: the times here, 2013, are most likely years" in named.reasons()[0]

    endings = {"file_extension": ".png", "label_file_extension": ".label"}
    single = Dated(module_storage, tmp_path / "single", r"name:(\d+)_", "SingleSampleFileWrapper", **endings)
    for name in ("1999_a", "2013_b"):
        (single.folder / f"{name}.png").write_bytes(b"x")
        (single.folder / f"{name}.label").write_text("1")
    assert single.indexed() == []
    assert all("1999 to 2013, are most likely years" in reason for reason in single.reasons())
    assert len(single.reasons()) == 2
