"""Payloads become the columns that they hold, and a bad one is named by row, column and value."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from modyn.config.base import load_section
from modyn.errors import ConfigError, DataError
from modyn.preprocessing import ColumnParser, ColumnSchema
from modyn.preprocessing.column_parser import BadRowError

COLUMNS = {"n": "number", "c": "category", "t": "text"}


def parser(**options: Any) -> ColumnParser:
    return ColumnParser(load_section(ColumnSchema, {"columns": COLUMNS, **options}, "preprocessing"))


CSV = parser(format="csv", names=["label", "n", "c", "t"])
JSON = parser(format="json")
STRICT = ColumnParser(
    load_section(ColumnSchema, {"columns": COLUMNS, "format": "json"}, "preprocessing"), absent_is_missing=False
)
DEEP = b"[" * 2000 + b"]" * 2000
VISIBLE = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=5)
ROWS = st.lists(st.tuples(st.none() | st.floats(-1e9, 1e9), st.none() | VISIBLE, st.none() | VISIBLE), max_size=6)


def parsed(of: ColumnParser, payloads: list[bytes]) -> list[tuple[Any, ...]]:
    columns = of.parse(payloads)
    assert list(columns) == list(COLUMNS)
    return list(zip(*(column.to_pylist() for column in columns.values()), strict=True))


@given(rows=ROWS)
def test_csv_rows(rows: list[tuple[Any, ...]]) -> None:
    payloads = []
    for row in rows:
        line = io.StringIO()
        csv.writer(line).writerow([0, *("" if value is None else value for value in row)])
        payloads.append(line.getvalue().encode())
    assert parsed(CSV, payloads) == rows


@given(rows=ROWS, pretty=st.booleans())
def test_json_objects(rows: list[tuple[Any, ...]], pretty: bool) -> None:
    objects = [{"more": [1], **dict(zip(COLUMNS, row, strict=True))} for row in rows]
    payloads = [json.dumps(found, indent=2 if pretty else None).encode() for found in objects]
    assert parsed(JSON, payloads) == rows


def test_fields_that_are_absent_and_categories_that_are_numbers() -> None:
    payloads = [b'{"n": 1, "c": 7}', b'{"n": true, "c": "x", "t": false}', b"{}", b'{"n": 1e999, "c": 12345678901234567890}']
    inf = float("inf")
    assert parsed(JSON, payloads) == [(1, "7", None), (1, "x", "false"), (None, None, None), (inf, "12345678901234567890", None)]


def test_fields_that_must_not_be_absent() -> None:
    whole = b'{"n": null, "c": "x", "t": null}'
    assert parsed(STRICT, [whole, b'{"n": 1, "c": 7, "t": ""}']) == [(None, "x", None), (1, "7", "")]
    for payload, message in {
        b'{"n": 1, "c": "t"}': "row 1, there is no column 't'; its fields are n, c. Write null where a value is unknown",
        b'{"n": 1, "T": "x", "c": 7}': "row 1, there is no column 't'; its fields are n, T, c.",
        b"{}": "row 1, there is no column 'n'; its fields are none.",
        b'{"n": 1, "c": "a", "x":' + b"[" * 2000 + b"]" * 2000 + b"}": "row 1, there is no column 't'; its fields are n, c.",
    }.items():
        with pytest.raises(DataError) as raised:
            STRICT.parse([whole, payload, whole])
        assert message in str(raised.value)


def test_other_separators_and_quoted_line_breaks() -> None:
    found = parser(format="csv", names=["t", "n", "c"], separator="\t")
    assert parsed(found, [b'"a\nb"\t1\tx', b"\t\t"]) == [(1, "x", "a\nb"), (None, None, None)]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (
            b"0,two,c,t",
            "row 1, column 'n': 'two' is not a number; correct it, add it to na_values, or declare the column as category",
        ),
        (b"0,1,c", "row 1, '0,1,c', is not one CSV line"),
        (b"0,1,c,t,5", "row 1, '0,1,c,t,5', is not one CSV line"),
        (
            b"0,1,c,t\n0,2,c,t",
            "row 1, '0,1,c,t\\n0,2,c,t', is not one CSV line of 4 fields with all quotes closed",
        ),
        (b'0,1,c,"t', "row 1, '0,1,c,\"t', is not one CSV line"),
        (b"", "row 1, '', is empty; a sample is one row with the fields label, n, c, t"),
        (b"0,1,\xff,t", "row 1, column 'c': '\\xff' is not UTF-8; correct it"),
    ],
)
def test_a_bad_csv_row_is_named(payload: bytes, message: str) -> None:
    with pytest.raises(DataError) as raised:
        CSV.parse([b"0,1,c,t", payload, b"0,1,c,t"])
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (
            b'{"n": "two"}',
            "row 1, column 'n': \"two\" is not a number; correct it, add it to na_values, or declare the column as category",
        ),
        (b'{"c": 1.5}', "row 1, column 'c': 1.5 is neither a text nor a whole number"),
        (b'{"t": ["x"]}', "row 1, column 't': a list is neither a text nor a whole number"),
        (b'{"n": {}}', "row 1, column 'n': an object is not a number"),
        (b'{"t": "hi \\ud83d"}', "row 1, column 't': \"hi \\ud83d\" is not a text, it has half of a surrogate pair; correct it"),
        (b'{"c": 1, "x": ' + DEEP + b"}", 'row 1, \'{"c": 1, "x": [[['),
        (b"null", "row 1, 'null', is not a JSON object"),
        (b"[1]", "row 1, '[1]', is not a JSON object"),
        (b'{"n": 1', "row 1, '{\"n\": 1', is not JSON"),
        (b"", "row 1, '', is not JSON"),
        (b'{"n": 1} {"n": 2}', "is not JSON"),
        (b'{"c": "\xff"}', "is not JSON"),
    ],
)
def test_a_bad_json_row_is_named(payload: bytes, message: str) -> None:
    with pytest.raises(DataError) as raised:
        JSON.parse([b'{"n": 1}', payload, b"{}"])
    assert message in str(raised.value)


def outcome(of: ColumnParser, payloads: list[bytes]) -> tuple[int, str] | list[str]:
    """The rows, with NaN and -0.0 as what they are; or the first bad one and what is wrong with it."""
    try:
        return list(map(repr, zip(*(column.to_pylist() for column in of.parse(payloads).values()), strict=True)))
    except BadRowError as error:
        return error.row, error.what


def check_rows_are_independent(of: ColumnParser, payloads: list[bytes]) -> None:
    """Each row alone is the oracle of all together."""
    rows = list[str]()
    for row, payload in enumerate(payloads):
        match outcome(of, [payload]):
            case list() as found:
                rows += found
            case (_, what):
                assert outcome(of, payloads) == (row, what)
                return
    assert outcome(of, payloads) == rows


def pieces(*texts: str | bytes) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from([text if isinstance(text, bytes) else text.encode() for text in texts]), max_size=8).map(
        b"".join
    )


CSV_PIECES = pieces(
    ",", ",", ",", '"', '"', "\n", "\r", "1", "x", "0,1,c,t", "0,1,", '0,1,"', "\x1e", ",\x1e\n", "\ufeff", b"\xff", "\0", " "
)
WHOLE = ('{"n":1,"c":"a"}', '{"c":7}', "{}", '{"n":1e999,"t":"\\ud83d"}')
VALUES = (
    "1",
    "-0",
    "1e305",
    "-1e999",
    "9" * 5000,
    "NaN",
    "-Inf",
    "Infinity",
    "true",
    "null",
    '"a"',
    '"\\ude00"',
    "[1]",
    "{}",
    DEEP,
    b'"\xff"',
)
FIELDS = [
    b'"%s":%s' % (name, value if isinstance(value, bytes) else value.encode()) for name in (b"n", b"c", b"x") for value in VALUES
]
JSON_PIECES = st.one_of(
    st.lists(st.sampled_from(FIELDS), max_size=3).map(lambda fields: b"{" + b",".join(fields) + b"}"),
    pieces(*WHOLE, "{", "}", "[", "]", ",", ":", '"', '"x":', "null", "\n", " ", "\ufeff", "\0", '{"x":', "1", b"\xff", b"\x0b"),
)


@settings(max_examples=5 * settings().max_examples)
@given(payloads=st.lists(CSV_PIECES, min_size=1, max_size=5))
@example(payloads=[b"0,1,c,t", b'0,1,c,"q', b"0,2,c,t", b'0,3,c,q"'])
@example(payloads=[b'0,1,c,"x', b'y"', b"0,1,c,z\n0,2,c,w"])
@example(payloads=[b'0,1,c,"x', b'y",\x1e\n0,2,c,z'])
@example(payloads=[b"0,1,c,t", b"\xef\xbb\xbf0,2,c,t"])
def test_a_csv_row_is_read_alike_alone_and_among_others(payloads: list[bytes]) -> None:
    check_rows_are_independent(CSV, payloads)
    check_rows_are_independent(parser(format="csv", names=["c"], columns={"c": "category"}), payloads)


@settings(max_examples=5 * settings().max_examples)
@given(payloads=st.lists(JSON_PIECES, min_size=1, max_size=5))
@example(payloads=[b'{"n":1}{"n":2}', b"", b'{"n":3}'])
@example(payloads=[b'{"n":1', b',"c":"a"}', b'{"n":2}{"n":3}'])
@example(payloads=[b'{"n":', b'{"n":1}}', b'{"n":2}{"n":3}'])
@example(payloads=[b"null"])
@example(payloads=[b'{"n":1}', b"null"])
@example(payloads=[b'{"n":1}', b'{"n":1,"x":' + DEEP + b"}", b'{"c":7}'])
@example(payloads=[b'{"n":-1e305,"x":"\xff"}', b'{"c":7}'])
def test_a_json_row_is_read_alike_alone_and_among_others(payloads: list[bytes]) -> None:
    check_rows_are_independent(JSON, payloads)
    check_rows_are_independent(STRICT, payloads)


def test_the_first_bad_row_of_many_is_found() -> None:
    payloads = [b"0,%d,c,t" % row for row in range(1000)]
    for row in (0, 613, 999):
        assert outcome(CSV, [*payloads[:row], b'0,1,c,"t', *payloads[row + 1 :], b""])[0] == row


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "preprocessing.format: is required to read payloads"),
        ({"format": "csv"}, "preprocessing.names: is required to read rows of CSV"),
        ({"format": "json", "names": ["n"]}, "preprocessing.names: needs `format: csv`"),
        (
            {"format": "csv", "names": ["n", "c", "t"], "separator": "é"},
            "preprocessing.separator: is 'é'; write one ASCII character",
        ),
        (
            {"format": "csv", "names": ["n", "c", "t"], "separator": "\n"},
            "preprocessing.separator: is '\\n'; write one ASCII character",
        ),
        ({"format": "csv", "names": ["n", "n", "c", "t"]}, "preprocessing.names: 'n' occurs twice"),
        ({"format": "csv", "names": ["n", "c", "text"]}, "preprocessing.columns.t: no field has this name"),
        ({"format": "xml"}, "preprocessing.format: 'xml' is wrong"),
        ({"columns": {"n": "float"}}, "preprocessing.columns.n: 'float' is wrong"),
    ],
)
def test_a_wrong_schema_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parser(**options)
    assert message in str(raised.value)


NA = ["", "NA", "N/A", "null", "None", "NaN", "?", "-"]


@pytest.mark.parametrize("text", NA)
def test_a_missing_number_has_many_names(text: str) -> None:
    """In CSV and JSON alike, alone and among others; a negative number is no dash, and a category may be called so."""
    texts = [text, "-5", "-0.5", text]
    numbers = [None, -5.0, -0.5, None]
    rows = [f'0,{value},"{value}",x'.encode() for value in texts]
    objects = [json.dumps({"n": value if value == text else float(value), "c": value, "t": "x"}).encode() for value in texts]
    assert [row[0] for row in parsed(CSV, rows)] == numbers
    assert [row[1] for row in parsed(CSV, rows)] == [value or None for value in texts]
    assert [row[:2] for row in parsed(JSON, objects)] == list(zip(numbers, texts, strict=True))
    assert [parsed(CSV, [row])[0][0] for row in rows] == numbers


def test_other_names_of_a_missing_number() -> None:
    found = parser(format="csv", names=["t", "n", "c"], na_values=["missing"])
    assert parsed(found, [b"a,missing,missing"]) == [(None, "missing", "a")]
    with pytest.raises(DataError, match="column 'n': 'NA' is not a number; correct it, add it to na_values"):
        found.parse([b"a,NA,b"])
    with pytest.raises(ConfigError, match="'-999' is a number, so it cannot mean a missing one"):
        parser(format="json", na_values=["-999"])
