"""CSV rows, against Python's csv module."""

from __future__ import annotations

import csv
import io
import os
import tracemalloc
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.errors import ConfigError, DataError
from modyn.storage.formats import build_format
from modyn.storage.formats.base import FileFormat, FormatResume
from modyn.storage.formats.csv import HEADER_CHARACTERS
from modyn.storage.model.schema import DatasetSchema, SchemaColumn
from modyn.testing.format_checks import resume_point


def csv_format(timestamp_source: str = "", **config: object) -> FileFormat:
    return build_format("CsvFileWrapper", {"label_index": 0, **config}, timestamp_source)


def rows_of(format_: FileFormat, path: Path, resume: FormatResume | None = None) -> list[tuple[bytes, float]]:
    """Payload and label of each sample."""
    content = path.read_bytes()
    rows: list[tuple[bytes, float]] = []
    for chunk in format_.index(str(path), resume):
        lengths = np.broadcast_to(chunk.lengths, len(chunk)).tolist()
        for offset, length, label in zip(chunk.offsets.tolist(), lengths, chunk.labels.tolist(), strict=True):
            rows.append((content[offset : offset + length], label))
        assert chunk.end <= len(content)
    return rows


field_text = st.text(st.sampled_from("ab ,;\"'\n\r\tü數"), max_size=8)


@settings(max_examples=3 * settings().max_examples)
@given(
    rows=st.lists(
        st.tuples(st.lists(field_text, max_size=3), st.integers(-(2**63), 2**63 - 1), st.lists(field_text, max_size=3))
    ),
    separator=st.sampled_from([",", ";", "\t"]),
    quote=st.sampled_from(['"', "'"]),
    line_break=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    header=st.booleans(),
    last_line_break=st.booleans(),
)
def test_rows_and_labels_are_those_that_python_reads(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[list[str], int, list[str]]],
    separator: str,
    quote: str,
    line_break: str,
    quoting: int,
    header: bool,
    last_line_break: bool,
) -> None:
    width = max((len(before) for before, _, _ in rows), default=0)
    if (
        quoting == csv.QUOTE_MINIMAL and line_break == "\n"
    ):  # Python's writer then leaves \r unquoted, and reads it as a line break
        rows = [
            ([text.replace("\r", "") for text in before], label, [text.replace("\r", "") for text in after])
            for before, label, after in rows
        ]
    width_after = max((len(after) for _, _, after in rows), default=0)
    table = [
        [*before, *[""] * (width - len(before)), str(label), *after, *[""] * (width_after - len(after))]
        for before, label, after in rows
    ]
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quotechar=quote, lineterminator=line_break, quoting=quoting)  # type: ignore[arg-type]
    if header:
        writer.writerow(["head\ner"] + ["x"] * (width + width_after))
    writer.writerows(table)
    content = text.getvalue()
    if not last_line_break:
        content = content.removesuffix(line_break)
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    path.write_bytes(content.encode())
    format_ = csv_format(separator=separator, quote=quote, label_index=width, ignore_first_line=header)
    found = rows_of(format_, path)
    assert [label for _, label in found] == [label for _, label, _ in rows]
    reread = [
        next(csv.reader(io.StringIO(payload.decode(), newline=""), delimiter=separator, quotechar=quote)) for payload, _ in found
    ]
    assert reread == table


@settings(max_examples=4 * settings().max_examples)
@given(text=st.text(st.sampled_from('01",\n'), max_size=30), newline=st.sampled_from(["\n", "\r\n", "\r"]))
def test_what_python_reads_strictly_is_read_alike(tmp_path_factory: pytest.TempPathFactory, text: str, newline: str) -> None:
    """Text that the standard reader refuses, or reads as rows of several numbers of fields, is refused."""
    text = text.replace("\n", newline)
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    path.write_bytes(text.encode())
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
        expected = [int(row[0]) for row in rows] if len({len(row) for row in rows}) < 2 else None
    except (csv.Error, ValueError):
        expected = None
    if expected is None:
        with pytest.raises(DataError):
            rows_of(csv_format(), path)
    else:
        assert [label for _, label in rows_of(csv_format(), path)] == expected


def test_payloads_are_the_bytes_of_the_row_in_any_encoding(tmp_path: Path) -> None:
    path = tmp_path / "daten.csv"
    path.write_bytes('1;Grüße\r\n2;"Käse;\n"\r\n'.encode("latin-1"))
    found = rows_of(csv_format(separator=";", encoding="latin-1"), path)
    assert found == [("1;Grüße".encode("latin-1"), 1), ('2;"Käse;\n"'.encode("latin-1"), 2)]


def test_float_labels_and_times_in_a_column(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('0.5,2020-01-01\n-1e3,"1970-01-01 00:00:10+00:00"\n7,-5\n')
    (chunk,) = csv_format("column:1", label_type="float").index(str(path))
    assert chunk.labels.tolist() == [0.5, -1000.0, 7.0]
    assert np.asarray(chunk.timestamps).tolist() == [1577836800, 10, -5]


@pytest.mark.parametrize(
    ("content", "config", "source", "message"),
    [
        ("1,a\nx7,b\n", {}, "", r"row 2 at byte 4: the field is not an int64 label"),
        ("1,a\n1.5,b\n", {}, "", r"row 2 at byte 4: the field '1.5' is not an int64 label"),
        (
            "a,9223372036854775808\n",
            {"label_index": 1},
            "",
            "row 1 at byte 2: the field '9223372036854775808' is out of the range",
        ),
        ("1,5\n\n2\n", {"label_index": 0}, "column:1", "row 2 at byte 5: there is no column 1 for the time"),
        ("1,soon\n", {}, "column:1", "the field 'soon' is neither a time in seconds since 1970 nor ISO 8601"),
        ("a\n", {"label_index": 3}, "", "no column 3 for the label, only 1 column"),
        ('1,"a\n2,b\n', {}, "", "row 1 at byte 2: the quote that opens here is never closed"),
        ("\xff\xf0,1\n", {}, "", "row 1 at byte 0: the byte here is not UTF-8"),
    ],
)
def test_errors_name_file_row_byte_and_text(
    tmp_path: Path, content: str, config: dict[str, object], source: str, message: str
) -> None:
    path = tmp_path / "bad file.csv"
    path.write_text(content, "latin-1")
    with pytest.raises(DataError, match=message) as caught:
        rows_of(csv_format(source, **config), path)
    assert str(path) in caught.value.message


def test_files_that_are_empty_missing_or_only_a_header(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.touch()
    assert rows_of(csv_format(ignore_first_line=True), path) == []
    path.write_text("a,b")
    assert rows_of(csv_format(ignore_first_line=True), path) == []
    with pytest.raises(DataError, match="cannot read"):
        list(csv_format().index(str(tmp_path / "missing.csv")))


def test_a_file_of_which_nothing_was_indexed_keeps_its_header(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("label,text\n")
    format_ = csv_format(ignore_first_line=True)
    resume = resume_point(path, 0, 0)
    path.write_text("label,text\n1,a\n")
    assert rows_of(format_, path, resume) == [(b"1,a", 1)]


LABEL_ONCE = "label_index or label_column is required, and not both"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"separator": ",", "quote": ","}, "."),
        ({"separator": "ü"}, "separator"),
        ({"separator": ";;"}, "separator"),
        ({"quote": "\n"}, "quote"),
        ({"encoding": "utf-16"}, "encoding"),
        ({"encoding": "shift_jis"}, "encoding"),
        ({"encoding": "klingon"}, "encoding"),
        ({"label_index": -1}, "label_index"),
        ({"label_index": None}, LABEL_ONCE),
        ({"label_column": "label"}, LABEL_ONCE),
    ],
)
def test_wrong_options_are_refused(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_format("CsvFileWrapper", {"label_index": 0, **config})


@pytest.mark.parametrize("header", ["id,time,label\n", '"id","time","label"\r\n', "\ufeffid, time ,label\n"])
def test_columns_may_be_chosen_by_name(tmp_path: Path, header: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(header + "x,1970-01-02,7\ny,5,-1\n", newline="")
    format_ = build_format("CsvFileWrapper", {"label_column": "label"}, "column:time")
    (chunk,) = format_.index(str(path))
    assert chunk.labels.tolist() == [7, -1]
    assert np.asarray(chunk.timestamps).tolist() == [86_400, 5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "id,tme,label\n1,2,3\n",
            r"the column 'time' is not named in the first line of .*a\.csv, which names 3",
        ),
        ("time,time,label\n1,2,3\n", "the column 'time' is named twice in the first line of .*, which names 3"),
        ("", "the first line of .*a.csv does not name its columns"),
    ],
)
def test_a_column_that_the_first_line_does_not_name(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        list(build_format("CsvFileWrapper", {"label_column": "label"}, "column:time").index(str(tmp_path / "a.csv")))


@pytest.mark.parametrize("begin", ["id,label", '"id,label\n'])
def test_a_first_line_without_an_end_is_not_read_whole(tmp_path: Path, begin: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(begin)
    os.truncate(path, 100 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"the first line of .*a\.csv does not end within 4,194,304 characters"):
            list(csv_format(label_index=None, label_column="label").index(str(path)))
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("rows", ["", "\n" + "1,2,3\n" * 50, "\n" + '1,"2",3\n' * 50, "\n" + "1,2,3\n" * 50_000], ids=len)
@pytest.mark.parametrize("known", [None, DatasetSchema("csv", tuple(map(SchemaColumn, "yab")), "0.csv")], ids=["first", "later"])
def test_a_quote_of_the_first_line_that_is_not_closed_is_said(tmp_path: Path, rows: str, known: DatasetSchema | None) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'y,"a,b{rows}')
    format_ = csv_format(ignore_first_line=True)
    format_.schema = known
    with pytest.raises(
        DataError, match=r"the first line of .*/a\.csv does not name its columns: a quote in it is not closed; close it"
    ) as error:
        list(format_.index(str(path)))
    assert len(error.value.message) < 150 + len(str(path))


@pytest.mark.parametrize(("name", "end"), [("label", "label\n"), ("la\nbel", '"la\nbel"\n')], ids=["line", "quoted"])
def test_a_first_line_may_have_as_many_characters_as_are_read(tmp_path: Path, name: str, end: str) -> None:
    """The bound counts the line's end; one more byte is refused, also in quotes."""
    path = tmp_path / "a.csv"
    begin = ("x" * 1023 + ",") * (HEADER_CHARACTERS // 1024 - 1)
    begin += "x" * (HEADER_CHARACTERS - len(begin) - len(end) - 1) + ","
    format_ = csv_format(label_index=None, label_column=name)
    path.write_text(f"{begin}{end}")
    assert sum(len(chunk.labels) for chunk in format_.index(str(path))) == 0
    path.write_text(f"x{begin}{end}")
    with pytest.raises(DataError, match="does not end within"):
        list(format_.index(str(path)))


def test_rows_that_are_appended_follow_the_same_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,label\nx,1\n")
    format_ = build_format("CsvFileWrapper", {"label_column": "label"})
    (chunk,) = format_.index(str(path))
    with path.open("a") as file:
        file.write("y,2\n")
    (more,) = format_.index(str(path), FormatResume(chunk.end, 1, ""))
    assert more.labels.tolist() == [2]


UNREADABLE = ['y,a,"b', '"y,a,b', 'y,a,"b" x', "y,a", "y,a,b,c"]
NAMED: list[dict[str, object]] = [{"label_index": 0, "ignore_first_line": True}, {"label_column": "y"}]
NOT_NAMED: list[dict[str, object]] = [{"label_index": 0}, {"label_index": 0, "columns": ["y", "b", "a"]}]


@pytest.mark.parametrize(
    ("header", "config"),
    [*product(UNREADABLE, NAMED), *product([*UNREADABLE, "y,a,b", '"y","a","b"', ",y,a"], NOT_NAMED)],
)
def test_a_first_line_that_is_not_read_as_names_is_never_skipped(tmp_path: Path, header: str, config: dict[str, object]) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n1,2,3\n4,5,6\n7,8\n9,10,11\n")
    with pytest.raises(DataError, match=r"a\.csv"):
        rows_of(build_format("CsvFileWrapper", {**config, "max_bad_rows": 1_000}), path)


def test_a_first_line_of_other_columns_than_rows_have_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("y,a\n1,2,3\n4,5\n6,7,8\n9,10,11\n")
    with pytest.raises(DataError, match=r"the first line of .*a\.csv names 2 columns, and most of the first rows have 3 fields"):
        rows_of(csv_format(label_index=None, label_column="y", max_bad_rows=1_000), path)


@pytest.mark.parametrize("row", ["?,1.5,x", "?,2024-03-01,x", ",,"])
def test_a_bad_first_row_of_values_is_skipped_as_others_are(tmp_path: Path, row: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{row}\n1,2,3\n4,5,6\n")
    (chunk,) = csv_format(max_bad_rows=1).index(str(path))
    assert (chunk.labels.tolist(), [bad.offset for bad in chunk.skipped]) == ([1, 4], [0])


def test_an_empty_first_line_is_not_a_header_where_other_files_have_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n1,2,3\n")
    built = csv_format(ignore_first_line=True)
    assert rows_of(built, path) == [(b"1,2,3", 1)]
    built.schema = DatasetSchema("csv", tuple(map(SchemaColumn, "yab")), "0.csv")
    with pytest.raises(
        DataError, match=r"the first line of .*a\.csv names no columns, and .* 0\.csv, decided, are 'y', 'a', 'b'"
    ):
        rows_of(built, path)
