"""A sample that is dated far in the future would end all intervals of a time trigger: its file waits until the time has come."""

from __future__ import annotations

import gzip
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modyn.config.system import SystemConfig
from modyn.testing.waiting import eventually
from tests.support.running_storage import (
    RunningStorage,
    files_dataset,
    image_dataset,
    running_storage,
    start_storage,
    write_image,
)


def tolerant(config: SystemConfig, tolerance_s: float | None) -> SystemConfig:
    return config.model_copy(update={"storage": config.storage.model_copy(update={"future_tolerance_s": tolerance_s})})


@pytest.mark.parametrize("tolerance_s", [60.0, None])
def test_rows(quick_config: SystemConfig, stack: ExitStack, tmp_path: Path, tolerance_s: float | None) -> None:
    config = files_dataset(tmp_path / "d", source="column:1", name="rows")
    (tmp_path / "d" / "good.csv").write_text("1,1970-01-02\n")
    (tmp_path / "d" / "far.csv").write_text("1,1970-01-02\n2,2100-01-01\n")
    storage = start_storage(tolerant(quick_config, tolerance_s), stack)
    assert storage.index(config).samples_indexed == (1 if tolerance_s else 3)
    problems = storage.reasons("rows")
    if tolerance_s:
        assert list(problems) == ["far.csv"]
        assert "far.csv, line 2 at byte 13: its time is more than 60 s in the future" in problems["far.csv"]
    else:
        assert not problems


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "bin"])
def test_refused_samples_name_their_lines(module_storage: RunningStorage, tmp_path: Path, kind: str) -> None:
    """In appended rows too. Where a file has no lines, the unit of the number is said."""
    folder = tmp_path / f"lines-{kind}"
    folder.mkdir()
    path = folder / f"a.{kind}"
    if kind == "bin":
        path.write_bytes(np.array([[1, 1000], [1, 1 << 32]], "<i8").tobytes())
        options = {"record_size": 16, "label_size": 8, "byteorder": "little"}
        reason = in_the_future(module_storage, folder, "BinaryFileWrapper", "field:8", **options)
        assert f"{path}, the sample at byte 24: its time is more than" in reason
        return
    if kind == "jsonl":
        row, rows, ends = '{"y": 1, "t": "DAY"}', ["1970-01-02", "2100-01-01"] * 2, ["\n"] * 4
        wrapper, source, options = "JsonLinesFileWrapper", "field:t", {"label_field": "y", "max_bad_rows": 2}
    else:
        row, rows, ends = '1,DAY,"a\nb"', ["1970-01-02", "2100-01-01"] * 2, ["\r\n", "\r\n", "\r", "\n"]
        wrapper, source, options = "CsvFileWrapper", "column:1", {"label_index": 0, "max_bad_rows": 2}
    parts = [f"{row.replace('DAY', day)}{end}".encode() for day, end in zip(rows, ends, strict=True)]
    config = files_dataset(folder, options, wrapper, source)
    module_storage.client.register_dataset(config)
    for end in (2, 4):
        content = b"".join(parts[:end])
        path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
        module_storage.ingest(folder.name)
    places = sorted(problem.reason.partition(": ")[0] for problem in module_storage.client.problems(folder.name))
    lines = (2, 4) if kind == "jsonl" else (3, 7)
    assert places == [f"{path}, line {line} at byte {len(b''.join(parts[:at]))}" for at, line in zip((1, 3), lines, strict=True)]


def test_rows_of_the_future_are_bad_rows_as_others(quick_config: SystemConfig, stack: ExitStack, tmp_path: Path) -> None:
    config = files_dataset(tmp_path / "d", {"label_index": 0, "max_bad_rows": 2}, source="column:1", name="rows")
    (tmp_path / "d" / "a.csv").write_text("1,1970-01-02\n2,2100-01-01\nbroken\n3,1970-01-03\n")
    storage = start_storage(tolerant(quick_config, 60.0), stack)
    assert storage.index(config).samples_indexed == 2
    info = storage.client.dataset("rows")
    assert (info.num_samples, info.num_skipped) == (2, 2)


@pytest.mark.parametrize(
    ("rows", "max_bad_rows", "samples_later"),
    [
        (["2,2100-01-01"] * 1500, 0, 1501),
        (["2,2100-01-01"] * 1500, 300, 1501),
        (["2,2100-01-01"] * 3 + ["broken"] * 2, 2, 4),
        (["2,2100-01-01"] * 3 + ["broken"] * 2, 1, 0),
    ],
)
def test_a_file_that_time_alone_would_mend_is_tried_again(
    quick_config: SystemConfig, stack: ExitStack, tmp_path: Path, rows: list[str], max_bad_rows: int, samples_later: int
) -> None:
    """The number of its rows in the future does not matter."""
    config = files_dataset(tmp_path / "d", {"label_index": 0, "max_bad_rows": max_bad_rows}, source="column:1", name="rows")
    (tmp_path / "d" / "a.csv").write_text("\n".join(["1,1970-01-02", *rows, ""]))
    storage = start_storage(tolerant(quick_config, 60.0), stack)
    assert storage.index(config).samples_indexed == 0
    assert "rows cannot be used" in storage.reasons("rows")["a.csv"]
    dataset = storage.store.dataset("rows")
    dataset.limits = replace(dataset.limits, future_tolerance_s=None)  # as if the time had come

    def looked() -> int:
        """Samples after a look as of a watcher, which does not try for good what cannot be mended."""
        storage.store._scan(dataset)
        return storage.client.dataset("rows").num_samples

    if samples_later:
        eventually(lambda: looked() == samples_later)
    else:
        assert looked() == 0
        assert dataset.problems.keys() == {"a.csv"}


def test_a_file_is_taken_once_its_time_has_come(quick_config: SystemConfig, tmp_path: Path) -> None:
    """Its size and time are the same then; only the tolerance accounts for the time that passes."""
    write_image(tmp_path / "d", "old", b"image", 1, 1000)
    write_image(tmp_path / "d", "far", b"image", 1, int(time.time()) + 1000)
    for tolerance_s, num_samples in ((10.0, 1), (5000.0, 2)):
        with running_storage(tolerant(quick_config, tolerance_s)) as storage:
            storage.index(image_dataset(tmp_path / "d"))
            assert storage.client.dataset("images").num_samples == num_samples
            for reason in (problems := storage.reasons("images")).values():
                assert "far.png yet: its time is more than 10 s in the future" in reason
                assert "storage.future_tolerance_s" in reason
            assert len(problems) == 2 - num_samples


def in_the_future(storage: RunningStorage, folder: Path, wrapper: str, source: str, **options: object) -> str:
    """The problem of the one file in `folder`, whose times lie in the future; the dataset has the name of the folder."""
    storage.index(files_dataset(folder, options, wrapper, source))
    (reason,) = storage.reasons(folder.name).values()
    return reason


@pytest.mark.parametrize("stored_as", ["timestamp", "int96", "date"])
def test_a_typed_time_of_the_future_gets_no_advice_of_other_formats(
    module_storage: RunningStorage, tmp_path: Path, stored_as: str
) -> None:
    """Parquet skips no rows, and the type of a time says what it is."""
    folder = tmp_path / f"typed-{stored_as}"
    folder.mkdir()
    days = np.array(["9999-12-30", "9999-12-31"], "datetime64[D]")
    times = pa.array(days) if stored_as == "date" else pa.array(days.astype("datetime64[us]"))
    table = pa.table({"x": [1, 2], "y": [0, 1], "t": times})
    pq.write_table(table, folder / "a.parquet", use_deprecated_int96_timestamps=stored_as == "int96")
    columns = {"payload_columns": ["x"], "label_column": "y"}
    reason = in_the_future(module_storage, folder, "ParquetFileWrapper", "column:t", **columns)
    assert "a.parquet: 2 rows cannot be used; correct them: row 0: its time is more than 86400 s in the future" in reason
    assert "at 9999-12-31 00:00:00; correct it; a time that is meant needs a larger storage.future_tolerance_s" in reason
    assert "max_bad_rows" not in reason
    assert "timestamp_format" not in reason


def test_a_number_of_the_future_gets_the_advice_that_its_format_can_use(module_storage: RunningStorage, tmp_path: Path) -> None:
    hours = [2034013112, 2034013113]
    columns = {"payload_columns": ["x"], "label_column": "y"}
    for name, options, advised in (("numbers", columns, True), ("declared", columns | {"timestamp_format": "s"}, False)):
        folder = tmp_path / name
        folder.mkdir()
        pq.write_table(pa.table({"x": [1, 2], "y": [0, 1], "t": hours}), folder / "a.parquet")
        reason = in_the_future(module_storage, folder, "ParquetFileWrapper", "column:t", **options)
        written = "if it is written as 2034013112, set the option timestamp_format='%Y%m%d%H' if it is 2034-01-31 12:00:00"
        assert (written in reason) == advised
        assert "max_bad_rows" not in reason
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.csv").write_text("".join(f"1,{hour}\n" for hour in hours))
    reason = in_the_future(module_storage, tmp_path / "rows", "CsvFileWrapper", "column:1", label_index=0)
    assert "2 rows cannot be used, max_bad_rows is 0; correct them, or raise the bound to skip them: " in reason
    write_image(tmp_path / "images", "far", b"image", 1, hours[0])
    endings = {"file_extension": ".png", "label_file_extension": ".label"}
    assert "timestamp_format" not in in_the_future(module_storage, tmp_path / "images", "SingleSampleFileWrapper", "", **endings)
