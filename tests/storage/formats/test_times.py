"""A time is read alike in all formats, or refused with what to write: another unit or spelling is never taken for seconds."""

from __future__ import annotations

import datetime as dt
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modyn.cli.data import _option
from modyn.errors import DataError
from modyn.storage.formats import build_format
from modyn.storage.ingest.file_indexer import refused_samples
from tests.support.format_examples import tar_of

NOON = 1359636300  # 2013-01-31 12:45:00
DAY = NOON - 45_900


def _csv(path: Path, value: Any) -> tuple[str, dict[str, object], str]:
    path.write_text(f'1,"{value}"\n')
    return "CsvFileWrapper", {"label_index": 0}, "column:1"


def _json(path: Path, value: Any) -> tuple[str, dict[str, object], str]:
    path.write_text(json.dumps({"y": 1, "t": value}) + "\n")
    return "JsonLinesFileWrapper", {"label_field": "y"}, "field:t"


def _parquet(path: Path, value: Any) -> tuple[str, dict[str, object], str]:
    pq.write_table(pa.table({"x": [b"a"], "y": [1], "t": pa.array([value])}), path)
    return "ParquetFileWrapper", {"payload_columns": ["x"], "label_column": "y"}, "column:t"


def _tar(path: Path, value: Any) -> tuple[str, dict[str, object], str]:
    path.write_bytes(tar_of([("a.jpg", b"x"), ("a.json", json.dumps({"y": 1, "t": value}).encode())]))
    return "TarFileWrapper", {"payload_extension": "jpg", "label_extension": "json", "label_field": "y"}, "field:t"


def _binary(path: Path, value: Any) -> tuple[str, dict[str, object], str]:
    path.write_bytes(struct.pack("<iq", 1, value))
    return "BinaryFileWrapper", {"record_size": 12, "label_size": 4}, "field:4"


def _name(path: Path, value: Any) -> tuple[str, dict[str, object], str]:
    path.write_text("1,x\n")
    return "CsvFileWrapper", {"label_index": 0}, "name:_(.+)_"


WRITERS: dict[str, Callable[[Path, Any], tuple[str, dict[str, object], str]]] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
    "tar": _tar,
    "binary": _binary,
    "name": _name,
}
TEXTS = [name for name in WRITERS if name != "binary"]


def read(folder: Path, where: str, value: Any, spelling: str = "") -> int:
    """The time of one sample whose time is written as `value`. Raises: DataError."""
    shown = str(value).replace("/", "\N{DIVISION SLASH}") if where == "name" else ""
    path = folder / f"a_{shown}_.x"
    wrapper, options, source = WRITERS[where](path, value)
    options = {**options, "timestamp_format": spelling} if spelling else options
    (chunk,) = build_format(wrapper, options, source).index(str(path))
    assert not chunk.skipped
    (found,) = np.broadcast_to(np.asarray(chunk.timestamps), len(chunk)).tolist()
    return int(found)


def advised(message: str) -> list[str]:
    """The formats that an error names, as the command line takes them."""
    return [str(_option(f"timestamp_format={text}")[1]) for text in re.findall(r"timestamp_format='([^']*)' if", message)]


@pytest.mark.parametrize("where", TEXTS)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2013-01-31", DAY),
        ("2013-01-31T12:45:00", NOON),
        ("2013-01-31 12:45", NOON),
        ("2013-01-31 12:45:00.999", NOON),
        ("2013-01-31T12:45:00Z", NOON),
        ("2013-01-31T14:45:00+02:00", NOON),
        ("2013-01-31 12:45:00 UTC", NOON),
        ("2013-01-31 12:45:00 +0000", NOON),
        ("20130131T124500Z", NOON),
        ("1359636300", NOON),
        ("1359636300.5", NOON),
    ],
)
def test_common_spellings_need_no_format(tmp_path: Path, where: str, text: str, expected: int) -> None:
    assert read(tmp_path, where, text) == expected


SPELLINGS = [
    ("31/01/2013 12:45", "%d/%m/%Y %H:%M", NOON),
    ("01/31/2013", "%m/%d/%Y", DAY),
    ("31.1.2013", "%d.%m.%Y", DAY),
    ("2013/01/31 12:45:00", "%Y/%m/%d %H:%M:%S", NOON),
    ("31-Jan-2013", "%d-%b-%Y", DAY),
    ("Jan 31, 2013 12:45 PM", "%b %d, %Y %I:%M %p", NOON),
    ("Thu, 31 Jan 2013 12:45:00 +0000", "%a, %d %b %Y %H:%M:%S %z", NOON),
    ("31/Jan/2013:12:45:00 +0000", "%d/%b/%Y:%H:%M:%S %z", NOON),
    ("Thu Jan 31 12:45:00 2013", "%a %b %d %H:%M:%S %Y", NOON),
    ("31.01.13", "%d.%m.%y", DAY),
    ("20130131124500", "%Y%m%d%H%M%S", NOON),
    ("1359636300123", "ms", NOON),
    ("1359636300123456", "us", NOON),
    ("1359636300123456789", "ns", NOON),
]


@pytest.mark.parametrize("where", [where for where in TEXTS if where != "name"])
@pytest.mark.parametrize(("text", "spelling", "expected"), SPELLINGS)
def test_other_spellings_are_refused_with_a_format_that_reads_them(
    tmp_path: Path, where: str, text: str, spelling: str, expected: int
) -> None:
    assert read(tmp_path, where, text, spelling) == expected
    with pytest.raises(DataError, match=re.escape(f"'{text}'")) as caught:
        read(tmp_path, where, text)
    formats = advised(caught.value.message)
    assert expected in [read(tmp_path, where, text, format_) for format_ in formats]


@pytest.mark.parametrize("where", list(WRITERS))
@pytest.mark.parametrize(
    ("number", "expected"),
    [(20130131, DAY), (1359636300123, NOON), (1359636300123456, NOON), (1359636300123456789, NOON)],
)
def test_digits_that_are_not_seconds_are_refused_with_their_unit(tmp_path: Path, where: str, number: int, expected: int) -> None:
    with pytest.raises(DataError, match=f"'{number}' is most likely not a time in seconds since 1970") as caught:
        read(tmp_path, where, number)
    assert "tolerance" not in caught.value.message
    assert expected in [read(tmp_path, where, number, spelling) for spelling in advised(caught.value.message)]
    if number < 10**9:
        assert read(tmp_path, where, number, "s") == number


def test_a_text_of_eight_digits_is_a_date_where_numbers_have_a_type(tmp_path: Path) -> None:
    for where in ("json", "parquet", "tar"):
        assert read(tmp_path, where, "20130131") == DAY
    with pytest.raises(DataError, match="1970-08-21"):
        read(tmp_path, "csv", "20130131")


@pytest.mark.parametrize("where", list(WRITERS))
@pytest.mark.parametrize("number", [20130230, 20130000, 19991301, 21001232])
def test_digits_of_a_day_that_does_not_exist_are_not_a_time(tmp_path: Path, where: str, number: int) -> None:
    for spelling in ("", "%Y%m%d"):
        with pytest.raises(DataError, match=f"'{number}' .*is not a day of the calendar; correct it") as caught:
            read(tmp_path, where, number, spelling)
        assert "1970" not in caught.value.message, "which it is not"
    assert read(tmp_path, where, number, "s") == number


@pytest.mark.parametrize("where", ["csv", "json", "tar", "parquet"])
def test_no_digits_are_taken_for_a_date_and_an_hour(tmp_path: Path, where: str) -> None:
    """`datetime.fromisoformat` takes milliseconds of 2024 for the year 1712."""
    with pytest.raises(DataError, match="'1712010102345'.*timestamp_format='ms' if it is 2024-04-01"):
        read(tmp_path, where, "1712010102345")


def parquet_time(folder: Path, column: pa.Array, **options: Any) -> int:
    path = folder / "a.parquet"
    pq.write_table(pa.table({"x": [b"a"], "y": [1], "t": column}), path, **options)
    built = build_format("ParquetFileWrapper", {"payload_columns": ["x"], "label_column": "y"}, "column:t")
    (chunk,) = built.index(str(path))
    return int(np.asarray(chunk.timestamps)[0])


@pytest.mark.parametrize("year", [1, 1600, 1677, 1969, 2013, 2263, 9999])
def test_times_of_int96_do_not_wrap_around(tmp_path: Path, year: int) -> None:
    moment = dt.datetime(year, 1, 31, 12, 45, tzinfo=dt.UTC)
    column = pa.array([moment.replace(tzinfo=None)], pa.timestamp("us"))
    assert parquet_time(tmp_path, column, use_deprecated_int96_timestamps=True) == moment.timestamp()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([253_402_300_800], pa.timestamp("s")),
        pa.array([-62_135_596_801_000], pa.timestamp("ms")),
        pa.array([2**63 - 1], pa.timestamp("us")),
        pa.array([2**31 - 1], pa.int32()).view(pa.date32()),
        pa.array([2**62], pa.int64()).view(pa.date64()),
    ],
    ids=lambda column: str(column.type),
)
def test_typed_times_beyond_the_calendar_are_refused(tmp_path: Path, column: pa.Array) -> None:
    with pytest.raises(DataError, match="row 0: the time in column 't' is beyond the years 1 to 9999"):
        parquet_time(tmp_path, column)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([253_402_300_799], pa.timestamp("s")), 253_402_300_799),
        (pa.array([-1], pa.timestamp("ms")), -1),
        (pa.array([2**63 - 1], pa.timestamp("ns")), 9_223_372_036),
        (pa.array([dt.date(9999, 12, 31)], pa.date32()), 253_402_214_400),
        (pa.array([-86_400_000], pa.int64()).view(pa.date64()), -86_400),
        (pa.array([NOON], pa.uint64()), NOON),
        (pa.array([NOON + 0.5]), NOON),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_typed_times_within_the_calendar_are_read(tmp_path: Path, column: pa.Array, expected: int) -> None:
    assert parquet_time(tmp_path, column) == expected


def test_times_of_a_plug_in_are_within_the_calendar_too() -> None:
    times = np.array([0, 2**62, -(2**62), 253_402_300_799], np.int64)
    assert list(refused_samples(np.zeros(4, np.int64), times)) == [1, 2]
