"""One rule for all formats: byte order marks, other encodings, whole numbers as float labels, and files and members without a byte."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modyn.errors import DataError
from modyn.storage.formats import build_format
from modyn.storage.formats.base import FormatResume, RowColumn
from modyn.testing.format_checks import read_file, resume_point
from tests.support.format_examples import tar_of

MARK = b"\xef\xbb\xbf"
TEXTS: dict[str, tuple[str, dict[str, object], str]] = {
    "a.csv": ("CsvFileWrapper", {"label_index": 0}, "{},a\n"),
    "a.jsonl": ("JsonLinesFileWrapper", {"label_field": "y"}, '{{"y": {}}}\n'),
}


def labels(path: Path, label: str, *, mark: bytes = b"", label_type: str = "float") -> list[float]:
    """Write a file of the kind that the name of `path` says, with one label; `mark` stands before its text."""
    options: dict[str, object] = {"label_type": label_type}
    if path.name in TEXTS:
        wrapper, own, row = TEXTS[path.name]
        path.write_bytes(mark + row.format(label).encode())
    elif path.suffix == ".tar":
        wrapper, own = "TarFileWrapper", {"payload_extension": "bin"}
        path.write_bytes(tar_of([("a.bin", b"payload"), ("a.cls", mark + label.encode())]))
    elif path.suffix == ".parquet":
        wrapper, own = "ParquetFileWrapper", {"payload_columns": ["x"], "label_column": "y"}
        pq.write_table(pa.table({"x": [b"x"], "y": pa.array([int(label)], pa.int64())}), path)
    else:
        wrapper, own = "SingleSampleFileWrapper", {"file_extension": ".png", "label_file_extension": ".label"}
        path.write_bytes(b"x")
        path.with_suffix(".label").write_bytes(mark + label.encode())
    samples = read_file(build_format(wrapper, {**own, **options}), path).samples
    assert not any(payload.startswith(MARK) for payload, _ in samples)
    return [found for _, found in samples]


@pytest.mark.parametrize("name", [*TEXTS, "a.tar", "a.png"])
def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path, name: str) -> None:
    assert labels(tmp_path / name, "7", mark=MARK, label_type="int") == [7]


@pytest.mark.parametrize("mark", [b"", MARK], ids=["plain", "marked"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
@pytest.mark.parametrize("first", ['"price, EUR"', '"two\nlines"', '" price"', "price"])
def test_a_mark_before_a_header_in_quotes_moves_no_column(tmp_path: Path, mark: bytes, encoding: str, first: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(mark + f"{first},y,z\n5,0,7\n6,1,8\n".encode())
    built = build_format("CsvFileWrapper", {"label_column": "y", "encoding": encoding})
    assert [label for _, label in read_file(built, path).samples] == [0, 1]
    by_first = build_format("CsvFileWrapper", {"label_column": first.strip('" '), "encoding": encoding})
    assert [label for _, label in read_file(by_first, path).samples] == [5, 6]
    assert isinstance(column := built.column("y"), RowColumn)
    with path.open("rb") as file:
        assert column.header(str(path), file) == [first.strip('" '), "y", "z"]


def test_a_header_that_has_other_fields_than_names_is_refused(tmp_path: Path) -> None:
    """A second mark is text, after which a quote is an ordinary character for the rows of a file, and was none for its names."""
    path = tmp_path / "a.csv"
    path.write_bytes(MARK * 2 + b'"price, EUR",y,z\n5,0,7\n')
    built = build_format("CsvFileWrapper", {"label_column": "y", "encoding": "utf-8-sig"})
    with pytest.raises(DataError, match=r"the first line of .*a\.csv names 3 columns, and has 4 fields as rows are read"):
        read_file(built, path)


@pytest.mark.parametrize("name", [*TEXTS, "a.tar", "a.png", "a.parquet"])
def test_a_whole_number_that_a_float_label_would_round_is_refused(tmp_path: Path, name: str) -> None:
    for exact in (2**53, -(2**53) - 2, 2**62):
        assert labels(tmp_path / name, str(exact)) == [float(exact)]
    for rounded in (2**53 + 1, -(2**53) - 1, 2**63 - 1):
        message = f"'{rounded}' is a whole number that no float64 is: it would be rounded; set label_type to int"
        with pytest.raises(DataError, match=message):
            labels(tmp_path / name, str(rounded))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_text_of_wider_units_is_refused_by_name(tmp_path: Path, name: str, encoding: str) -> None:
    wrapper, options, row = TEXTS[name]
    path = tmp_path / name
    path.write_bytes("".join(row.format(i) for i in range(20)).encode(encoding))
    with pytest.raises(DataError, match=f"a.{name[2:]} is encoded in {encoding[:6].upper()}, in which no line break is one byte"):
        read_file(build_format(wrapper, options), path)


@pytest.mark.parametrize("name", TEXTS)
def test_a_compressed_file_whose_name_does_not_say_so_is_refused_by_name(tmp_path: Path, name: str) -> None:
    wrapper, options, row = TEXTS[name]
    path = tmp_path / name
    path.write_bytes(gzip.compress(row.format(1).encode()))
    with pytest.raises(
        DataError, match=r"is compressed with gzip, and its name does not say so; rename it, so that its name ends in '\.gz'"
    ):
        read_file(build_format(wrapper, options), path)


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("name", TEXTS)
def test_a_file_that_grows_is_indexed_once(tmp_path: Path, name: str, line_break: str) -> None:
    wrapper, options, row = TEXTS[name]
    path, header = tmp_path / name, ["label,text"] if name == "a.csv" else []
    built = build_format(wrapper, {**options, "ignore_first_line": True} if header else options)
    first, second, third = (row.format(i).rstrip() for i in (1, 2, 3))
    content = line_break.join([*header, first, second])  # no line break at the end yet

    def found(grown: str = "", resume: FormatResume | None = None) -> list[tuple[bytes, float]]:
        path.write_bytes((content + grown).encode())
        return read_file(built, path, resume).samples

    assert found() == [(first.encode(), 1), (second.encode(), 2)]
    resume = resume_point(path, len(content), 2)
    assert found(resume=resume) == []
    grown = line_break + third + line_break
    assert found(grown, resume) == [(third.encode(), 3)]
    with pytest.raises(DataError, match=rf"{'row' if header else 'line'} 4 at byte"):
        found(grown + "x,d", resume)
    with pytest.raises(DataError, match="was continued since.* `modyn data reindex NAME FILE`"):
        found(" " + line_break, resume)


@pytest.mark.parametrize("size", [0, 100, 10_000])
def test_zeros_that_a_crash_left_are_bad_rows(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"1,a\n2,b\n" + bytes(size))
    rows = build_format("CsvFileWrapper", {"label_index": 0, "max_bad_rows": 1})
    found = list(rows.index(str(path)))
    assert [label for chunk in found for label in chunk.labels.tolist()] == [1, 2]
    reasons = [row.reason for chunk in found for row in chunk.skipped]
    assert len(reasons) == (size > 0)
    assert all("line 3, row 3 at byte 8: a NUL byte stands here" in reason for reason in reasons)


def test_an_empty_member_is_refused_as_an_empty_file_is(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of([("a.bin", b""), ("a.cls", b"1")]))
    with pytest.raises(DataError, match=r"the member '\.bin' of the sample 'a' is empty"):
        read_file(build_format("TarFileWrapper", {"payload_extension": "bin"}), path)
